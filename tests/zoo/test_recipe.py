"""The recipe: its tokenizer loads by the Auto classes as it was trained, and training repeats bit for bit."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from thiefbench.zoo.corpus import MathCorpus
from thiefbench.zoo.recipe import RECIPES, Recipe, Stage, batches, train, train_stage, train_tokenizer


class Few(MathCorpus):
    """So few texts that training a tokenizer on them takes no time."""

    def texts(self, seed: int) -> Iterator[tuple[str, str]]:
        return islice(super().texts(seed), 1000)


SHORT = replace(Recipe(), corpus=Few(), texts=96, hidden=32, layers=1, heads=2, feedforward=64, threads=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    losses = []
    for folder in folders:
        train(SHORT, folder, lambda step, steps, loss: losses.append(loss))
    return folders, losses


def test_training_repeats_bit_for_bit(trained):
    (first, second), losses = trained
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert losses[: len(losses) // 2] == losses[len(losses) // 2 :]
    assert losses[2] < losses[0], "three steps lower the loss"


def test_weights_may_be_saved_smaller(trained, tmp_path):
    train(replace(SHORT, dtype="bfloat16"), tmp_path)
    (full, _), _ = trained
    exact, saved = load_file(full / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert saved.keys() == exact.keys()
    assert all(torch.equal(saved[name], exact[name].bfloat16()) for name in exact), (
        "training is in float32 whatever is saved: the rounding comes at the end"
    )


def test_another_seed_gives_other_weights(trained, tmp_path):
    train(replace(SHORT, seed=1), tmp_path)
    first, other = load_file(trained[0][0] / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert any((first[name] != other[name]).any() for name in first)


def test_auto_classes_tokenize_as_the_recipe_does(trained):
    made, loaded = train_tokenizer(SHORT), AutoTokenizer.from_pretrained(trained[0][0])
    text = "<|im_start|>user\nRavi has 36 shells, 105 too.<|im_end|>\n<think> All hail: 5 * 9 = 45. </think>"
    assert loaded(text)["input_ids"] == made(text)["input_ids"]
    assert loaded.decode(loaded(text)["input_ids"]) == text
    assert len(loaded) == SHORT.vocabulary
    for tag in (*SHORT.corpus.tags, " 36", " 5"):
        assert len(loaded(tag)["input_ids"]) == 1, f"{tag!r} is one token"
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} == set(loaded.all_special_tokens)


def test_recipes_are_named_after_their_models():
    assert all(recipe.name == name for name, recipe in RECIPES.items())


def test_a_further_stage_goes_on_from_rounded_weights(trained, tmp_path):
    """Two stages come to the same as a stage that starts from what the first one saved."""
    stage = Stage(Few(), texts=64, learning_rate=1e-3, seed=5)
    first = replace(SHORT, dtype="bfloat16")
    progress = []
    train(replace(first, further=(stage,)), tmp_path / "both", lambda step, steps, loss: progress.append((step, steps)))
    assert progress == [(number, 5) for number in range(1, 6)]
    train(first, tmp_path / "first")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "first")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "first", dtype=torch.float32)
    losses = list(train_stage(model, batches(first, tokenizer, stage), stage.learning_rate))
    assert len(losses) == 2
    saved = load_file(tmp_path / "both" / "model.safetensors")
    again = model.to(torch.bfloat16).state_dict()
    assert all(torch.equal(again[name], saved[name]) for name in saved)


def test_every_stage_has_texts_of_its_own():
    stages = RECIPES["micro-programs"].stages
    first, second = (next(stage.corpus.texts(stage.seed)) for stage in stages)
    assert first != second
