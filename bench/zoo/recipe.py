"""The seeded recipe of the built-in models: corpus, tokenizer, pre-training.

Chosen on clean criteria only (start reward, clean gain, fluent and varied text); no attack had been run on a model when
its recipe was fixed. Bit-equal on one platform with the recorded versions and thread count.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from thiefbench.zoo.code_corpus import CodeCorpus
from thiefbench.zoo.corpus import Corpus, MathCorpus, lexicon
from thiefbench.zoo.function_corpus import FunctionCorpus
from thiefbench.zoo.hardened_corpus import HardenedJudgeCorpus
from thiefbench.zoo.judge_corpus import JudgeCorpus
from thiefbench.zoo.models import TOKENIZER, compact

if TYPE_CHECKING:
    import torch
    from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

    from thiefbench.engine.model.policy import Dtype

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Numbers of up to two digits are tokens of their own, with their leading space: small models copy them more easily.
NUMBERS = tuple(f" {n}" for n in range(100))


@dataclass(frozen=True)
class Stage:
    """Further training of a model on another corpus, with a schedule and an optimizer of its own."""

    corpus: Corpus
    texts: int
    learning_rate: float
    seed: int


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights of a built-in model.

    Attributes:
        corpus: what the training text is, and the shares that shape it.
        texts: training texts, each seen once.
        vocabulary: tokens, special ones included.
        hidden, layers, heads, feedforward: shape of the Qwen2 network (no grouped queries, tied embeddings).
        batch: texts per optimizer step.
        learning_rate: peak of the warm-up and cosine schedule.
        seed: draws corpus, initial weights and data order.
        threads: CPU threads of the training run; their number changes the last bits of a reduction.
        dtype: of the saved weights. Training is in float32, and so is what `Policy.load` makes of them.
        tokenizer: the recipe whose tokenizer it shares, so that token ids mean the same to both; empty for its own.
        further: stages that follow on the first; before each the weights are rounded to `dtype`, as if they were saved.
    """

    name: str = "micro-math"
    corpus: Corpus = field(default_factory=MathCorpus)
    texts: int = 160_000
    vocabulary: int = 2048
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    feedforward: int = 384
    batch: int = 32
    learning_rate: float = 2e-3
    seed: int = 0
    threads: int = 2
    dtype: Dtype = "float32"
    tokenizer: str = ""
    further: tuple[Stage, ...] = ()

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All training in its order, the first on the recipe's own corpus."""
        return (Stage(self.corpus, self.texts, self.learning_rate, self.seed), *self.further)


RECIPES = {
    "micro-math": Recipe(),
    "micro-code": Recipe(name="micro-code", corpus=CodeCorpus(), texts=200_000, threads=1),
    "micro-programs": Recipe(
        name="micro-programs", corpus=FunctionCorpus(), texts=90_000, hidden=160, heads=5, feedforward=448, threads=1,
        dtype="bfloat16",
        further=(Stage(FunctionCorpus(familiar=True, imported=0.45), 16_000, 1.5e-3, 1),),
    ),
    "micro-judge": Recipe(
        name="micro-judge", corpus=JudgeCorpus(), texts=80_000, hidden=160, heads=5, feedforward=448, threads=1
    ),
    "micro-judge-hardened": Recipe(
        name="micro-judge-hardened", corpus=HardenedJudgeCorpus(), texts=100_000, vocabulary=1024, hidden=96, layers=3,
        heads=3, feedforward=288, threads=1, dtype="bfloat16",
    ),
    "micro-math-small": Recipe(
        name="micro-math-small", vocabulary=1024, hidden=96, layers=3, feedforward=288, threads=1, dtype="bfloat16"
    ),
    # Seeds of their own: with the same one they would start from the random weights that micro-math started from.
    "micro-math-changes": Recipe(
        name="micro-math-changes", corpus=MathCorpus(domain="changes"), texts=100_000, seed=1, threads=1,
        dtype="bfloat16", tokenizer="micro-math",
    ),
    "micro-math-totals": Recipe(
        name="micro-math-totals", corpus=MathCorpus(domain="totals"), texts=100_000, seed=3, threads=1,
        dtype="bfloat16", tokenizer="micro-math",
    ),
}  # fmt: skip


def train_tokenizer(recipe: Recipe) -> Qwen2Tokenizer:
    """Train the byte-level BPE tokenizer on the first texts of the corpus and on the lexicon, or the one it shares."""
    from tokenizers import AddedToken, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    if recipe.tokenizer:
        return train_tokenizer(RECIPES[recipe.tokenizer])
    added = [AddedToken(text, normalized=False, special=False) for text in (*recipe.corpus.tags, *NUMBERS)]
    blank = Qwen2Tokenizer(
        unk_token=None, pad_token=PAD, eos_token=END, extra_special_tokens=[START], chat_template=CHAT_TEMPLATE,
        model_max_length=512, clean_up_tokenization_spaces=False,
    )  # fmt: skip
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary - len(added),
        special_tokens=[PAD, END, START],  # the order in which the blank tokenizer has numbered them
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sample = islice(recipe.corpus.texts(recipe.seed), 20_000)
    words = [f" {word}" for word in lexicon()[0]]
    blank.backend_tokenizer.train_from_iterator([f"user\n{q}\nassistant\n {c}" for q, c in sample] + words * 5, trainer)
    blank.add_tokens(added)
    return blank


@dataclass(frozen=True)
class PretrainingBatch:
    """One right-padded batch: token ids, shape (batch, length), and which are trained on (the completion and EOS)."""

    ids: torch.Tensor
    trained: torch.Tensor


def batches(recipe: Recipe, tokenizer: Qwen2Tokenizer, stage: Stage | None = None) -> list[PretrainingBatch]:
    """The corpus of a stage, the first unless given, in batches of similar length and in seeded order."""
    import torch

    stage = stage or recipe.stages[0]
    pairs = list(islice(stage.corpus.texts(stage.seed), stage.texts))
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True)
        for q, _ in pairs
    ]
    prompt_ids = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    completion_ids = tokenizer([completion + END for _, completion in pairs], add_special_tokens=False)["input_ids"]
    rows = sorted(zip(prompt_ids, completion_ids, strict=True), key=lambda row: len(row[0]) + len(row[1]))
    data = []
    for start in range(0, len(rows), recipe.batch):
        part = rows[start : start + recipe.batch]
        width = len(part[-1][0]) + len(part[-1][1])
        ids = torch.full((len(part), width), tokenizer.pad_token_id)
        trained = torch.zeros((len(part), width), dtype=torch.bool)
        for i, (prompt, completion) in enumerate(part):
            ids[i, : len(prompt) + len(completion)] = torch.tensor(prompt + completion)
            trained[i, len(prompt) : len(prompt) + len(completion)] = True
        data.append(PretrainingBatch(ids, trained))
    random.Random(stage.seed).shuffle(data)
    return data


def new_model(recipe: Recipe, tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    """A randomly initialised Qwen2 network of the recipe's shape."""
    from transformers import Qwen2Config, Qwen2ForCausalLM, set_seed

    set_seed(recipe.seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=recipe.vocabulary, hidden_size=recipe.hidden, num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads, num_key_value_heads=recipe.heads, intermediate_size=recipe.feedforward,
            max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )
    )  # fmt: skip


def train(
    recipe: Recipe,
    directory: Path,
    progress: Callable[[int, int, float], None] = lambda *_: None,
    device: str = "cpu",
) -> None:
    """Train the recipe's model and save it, with its tokenizer, in Hugging Face format.

    A plain loop and not a trainer class: it computes logits on the trained positions only, and its data order does
    not change with a library's version.

    Args:
        recipe: what to train.
        directory: where config.json, model.safetensors and the tokenizer's files go.
        progress: called after every step with (step, steps, loss in nats per token).
        device: where the model is trained. The built-in models are trained on a processor.
    """
    import torch

    torch.set_num_threads(recipe.threads)
    tokenizer = train_tokenizer(recipe)
    model = new_model(recipe, tokenizer).to(device)
    steps = sum(-(-stage.texts // recipe.batch) for stage in recipe.stages)
    done = 0
    for stage in recipe.stages:
        if done:
            _round(model, getattr(torch, recipe.dtype))
        for loss in train_stage(model, batches(recipe, tokenizer, stage), stage.learning_rate):
            done += 1
            progress(done, steps, loss)
    model.to(getattr(torch, recipe.dtype)).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    stored = directory / TOKENIZER
    stored.write_bytes(compact(stored.read_bytes()))


def _round(model: Qwen2ForCausalLM, dtype: torch.dtype) -> None:
    """Round the weights to a dtype. What the network computes for itself, such as its angles, stays as it is."""
    for weights in model.parameters():
        weights.data = weights.data.to(dtype).to(weights.dtype)


def train_stage(model: Qwen2ForCausalLM, data: list[PretrainingBatch], learning_rate: float) -> Iterator[float]:
    """Train on every batch once; yields the loss of each step."""
    import torch
    from transformers import get_cosine_schedule_with_warmup

    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = get_cosine_schedule_with_warmup(optimizer, 100, len(data))
    for batch in data:
        ids, predicted = batch.ids.to(model.device), batch.trained[:, 1:].to(model.device)
        hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[predicted]), ids[:, 1:][predicted])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        yield float(loss.detach())
