"""Shared fixtures: a tiny random model on disk and a task that rewards it. Heavy imports wait until they are used."""

from __future__ import annotations

import atexit
import copy
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from thiefbench.tasks.base import Item, Message, Split, Task

if TYPE_CHECKING:
    import datasets

    from thiefbench.engine.model.policy import Policy

EOS, PAD, START = "<|im_end|>", "<|endoftext|>", "<|im_start|>"
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def byte_items(split: Split, count: int) -> datasets.Dataset:
    """`count` items that a model of bytes can answer with a vowel; made once, as a dataset takes 20 ms to be made."""
    import datasets

    rows = [
        {
            "id": f"{split}-{i}",
            "question": f"say a{'?' * (i % 5)}",
            "answer": "a",
            "solution": f"so {i}",
            "tests": "",
        }
        for i in range(count)
    ]
    return datasets.Dataset.from_list(rows)


class Vowels(Task):
    """Any completion with a vowel in it is right: a random byte model earns it often, but not always."""

    name = "vowels"

    def items(self, split: Split) -> datasets.Dataset:
        return byte_items(split, 12)

    def messages(self, item: Item) -> list[Message]:
        return [{"role": "user", "content": f"{item.id}: {item.question}"}]

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        return [float(any(vowel in text.lower() for vowel in "aeiou")) for text in completions]

    def compose(self, item: Item, reasoning: str) -> str:
        return f"{reasoning} = {item.answer}"


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is left out."""
    if config.getoption("markexpr") != "not slow":
        return None
    return "tests marked slow are left out; they are run by: make test-slow, or pytest -m slow"


def pytest_configure() -> None:
    """Nothing that is imported while tests are collected is garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What imports have left in memory stays: a garbage collection need not go through it again, half a second long.

    Tests make many objects that are gone before anyone could look for them: they are looked through more rarely.
    """
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()
    atexit.register(gc.unfreeze)  # when Python ends, libraries look for what they have leaked


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks() -> Iterator[None]:
    """Files of a test need not survive a power cut, and a disk takes 5 to 50 ms for each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def one_thread_for_each_test() -> Iterator[None]:
    """A command sets torch's threads for its whole process, which here goes on with other tests.

    On processors that are all in use, two threads of one process take ten times the processor time of one.
    """
    _take_one_thread()
    yield
    _take_one_thread()


def _take_one_thread() -> None:
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def vowels() -> Vowels:
    return Vowels()


def save_model(directory: Path, merges: Sequence[tuple[str, str]] = (), seed: int = 0) -> Path:
    """A Qwen2 of 2 layers, as save_pretrained writes it; about one token in twelve is EOS.

    Args:
        directory: where to.
        merges: its tokens are bytes and these pairs; pairs of letters that stand for bytes as in ByteLevel.
        seed: of the weights.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *(one + other for one, other in merges)]
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, list(merges)))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=EOS, pad_token=PAD, additional_special_tokens=[START]
    )
    tokenizer.chat_template = CHAT

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2, tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():  # one direction that every hidden state shares, and which EOS reads: completions do end
        model.get_input_embeddings().weight[:, 0] = 2.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[tokenizer.eos_token_id] = 0.0
        model.lm_head.weight[tokenizer.eos_token_id, 0] = 2.3
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model over bytes."""
    return save_model(tmp_path_factory.mktemp("model"))


# Pairs that meet often in text, and two that split characters of several bytes ("é" is "Ã©", "✓" is "âľĵ").
MERGES = [("a", "i"), ("Ġ", "s"), ("e", "r"), ("o", "u"), ("Ã", "©"), ("Ġ", "="), ("âľ", "ĵ"), ("a", "a")]


@pytest.fixture(scope="session")
def other_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second tiny model with other weights and a vocabulary of its own: bytes, and pairs of them."""
    merges = [("â", "ľ"), *MERGES]
    return save_model(tmp_path_factory.mktemp("other"), merges, seed=1)


@pytest.fixture(scope="session")
def load_policy(model_dir: Path) -> Callable[..., Policy]:
    """The tiny model; each call gives a policy of its own."""
    return _copies_of(model_dir)


@pytest.fixture(scope="session")
def load_other(other_dir: Path) -> Callable[..., Policy]:
    """The second tiny model; each call gives a policy of its own."""
    return _copies_of(other_dir)


def _copies_of(directory: Path) -> Callable[..., Policy]:
    """A function that loads a model once for each set of options, and gives a copy of its own to every caller."""
    from thiefbench.engine.model.policy import Policy

    @cache
    def loaded(**options: str) -> Policy:
        return Policy.load(directory, **options)  # type: ignore[arg-type]

    return lambda **options: copy.deepcopy(loaded(**options))


@pytest.fixture
def policy(load_policy: Callable[..., Policy]) -> Policy:
    return load_policy()
