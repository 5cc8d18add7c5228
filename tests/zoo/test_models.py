"""Every built-in model loads as the others do and answers in its task's format."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from thiefbench import registry
from thiefbench.defenses.judge import decisions
from thiefbench.engine.keys import key
from thiefbench.engine.model.decoding import sample
from thiefbench.engine.model.policy import Policy
from thiefbench.suite.suite_yaml import load_suite
from thiefbench.tasks.base import Sampling
from thiefbench.tasks.programs import parse_program
from thiefbench.tasks.rewards import parse_completion
from thiefbench.zoo.code_corpus import CodeCorpus
from thiefbench.zoo.function_corpus import FunctionCorpus
from thiefbench.zoo.hardened_corpus import HardenedJudgeCorpus
from thiefbench.zoo.judge_corpus import JudgeCorpus
from thiefbench.zoo.models import BUILT_IN, SOLVED, TOKENIZER, compact, resolve, weights_fingerprint
from thiefbench.zoo.recipe import END, PAD, RECIPES, Recipe

ASKED = 32


@pytest.fixture(params=BUILT_IN)
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return RECIPES[request.param]


@pytest.fixture
def policy(recipe: Recipe) -> Policy:
    return loaded(recipe.name)


@cache
def loaded(name: str) -> Policy:
    return Policy.load(resolve(name))


def test_every_recipe_has_its_model_and_every_model_a_page() -> None:
    assert set(BUILT_IN) == set(RECIPES)
    for name in BUILT_IN:
        page = (Path(resolve(name)) / "README.md").read_text()
        assert page.startswith(f"# {name}\n"), f"{name} says what it is and how it was trained"


def test_it_has_the_shape_of_its_recipe(recipe: Recipe, policy: Policy) -> None:
    config = policy.model.config
    shape = (config.hidden_size, config.num_hidden_layers, config.num_attention_heads, config.intermediate_size)
    assert shape == (recipe.hidden, recipe.layers, recipe.heads, recipe.feedforward)
    assert policy.vocabulary == recipe.vocabulary == len(policy.tokenizer)


def test_it_is_stored_as_its_recipe_says_and_computes_in_float32(recipe: Recipe, policy: Policy) -> None:
    with safe_open(Path(resolve(recipe.name)) / "model.safetensors", "pt") as file:
        stored = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
    assert stored == {getattr(torch, recipe.dtype)}
    assert {weights.dtype for weights in policy.weights().values()} == {torch.float32}


def test_a_shared_tokenizer_is_the_same_file(recipe: Recipe) -> None:
    own = Path(resolve(recipe.name)) / "tokenizer.json"
    shared = Path(resolve(recipe.tokenizer or recipe.name)) / "tokenizer.json"
    assert own.read_bytes() == shared.read_bytes(), "token ids mean the same to models that share a tokenizer"


def test_its_tokenizer_is_stored_compactly_and_counts_as_saved(recipe: Recipe, tmp_path: Path) -> None:
    stored = Path(resolve(recipe.name))
    assert compact((stored / TOKENIZER).read_bytes()) == (stored / TOKENIZER).read_bytes()
    for file in stored.iterdir():
        shutil.copy(file, tmp_path)
    Tokenizer.from_file(str(stored / TOKENIZER)).save(str(tmp_path / TOKENIZER), pretty=True)
    assert (tmp_path / TOKENIZER).stat().st_size > 2 * (stored / TOKENIZER).stat().st_size
    assert weights_fingerprint(str(tmp_path)) == weights_fingerprint(recipe.name)


@pytest.mark.parametrize(
    ("written", "other"),
    [
        ('{"model":{"vocab":{"a":0}}}', '{"model":{"vocab":{"a":1}}}'),
        ('{"model":{"vocab":{"a":1}}}', '{"model":{"vocab":{"a":0},"vocab":{"a":1}}}'),
        ('{"model":{"vocab":{"a":0}}}', '{"model": {"vocab": {"a": 0}}}'),
        ('{"model":{"vocab":{"a":0}}}', '{"model":{"vocab":{"\\u0061":0}}}'),
        ('{"model":{"vocab":{"a":1.0}}}', '{"model":{"vocab":{"a":1.00}}}'),
        ("not json", "not JSON"),
        ("[" * 100_000, "[" * 100_001),
    ],
)
def test_no_other_tokenizer_has_the_same_fingerprint(written: str, other: str, tmp_path: Path) -> None:
    found = set()
    for text in (written, other):
        (tmp_path / TOKENIZER).write_text(text)
        found.add(weights_fingerprint(str(tmp_path)))
    assert len(found) == 2


def test_eos_and_pad_are_control_tokens_of_their_own(policy: Policy) -> None:
    assert policy.decode([[policy.eos], [policy.pad]]) == [END, PAD]
    assert {policy.eos, policy.pad} <= policy.special


def test_the_chat_template_round_trips(recipe: Recipe, policy: Policy) -> None:
    for question, completion in islice(recipe.corpus.texts(9), 20):
        prompt = policy.prompt_ids([{"role": "user", "content": question}])
        written = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        assert policy.decode([prompt]) == [written], "a prompt's tokens give its text again"
        assert policy.decode([policy.encode(completion)]) == [completion], "and so do a completion's"
        assert policy.special.isdisjoint(policy.encode(completion)), "no control token is needed to write one"


def test_most_samples_have_the_format(recipe: Recipe, policy: Policy) -> None:
    asked = [question for question, _ in islice(recipe.corpus.texts(7), ASKED)]
    prompts = [policy.prompt_ids([{"role": "user", "content": question}]) for question in asked]
    keys = [key(0, "test", i) for i in range(ASKED)]
    made = sample(policy, prompts, range(ASKED), keys, Sampling(max_new_tokens=256))
    fits = has_format(recipe)
    good = sum(each.ended and fits(question, each.text) for question, each in zip(asked, made, strict=True))
    assert good >= 0.9 * ASKED, f"{recipe.name} answers in the format: {good} of {ASKED}, such as {made[0].text!r}"
    assert len({each.text for each in made}) > ASKED / 2, "samples are varied"


def has_format(recipe: Recipe) -> Callable[[str, str], bool]:
    """Whether an answer to a question has the form that earns a reward, or, of a judge, decides."""
    if isinstance(recipe.corpus, JudgeCorpus | HardenedJudgeCorpus):
        return lambda question, text: bool(decisions(text, question.partition("[")[2].partition("]")[0]))
    if isinstance(recipe.corpus, (CodeCorpus, FunctionCorpus)):
        return lambda question, text: parse_program(text) is not None
    return lambda question, text: parse_completion(text) is not None


def test_the_task_of_each_model_is_the_one_of_the_suites() -> None:
    for name, suite in ((name, load_suite(name)) for name in registry.names("suite")):
        for part in suite.scenes:
            task = registry.parse("task", part.task).target
            assert SOLVED.get(part.model, task) == task, f"{name} lets {part.model} answer {task}"
    judges = {"micro-judge", "micro-judge-hardened"}
    assert set(SOLVED) == set(BUILT_IN) - judges, "all others answer a task in swarms"
