"""Stages as pure functions: division, skipping, loss, recovery, microbatches."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
import torch

from thiefbench.engine.spec import SpecError
from thiefbench.pipeline.line import Tally, problem
from thiefbench.pipeline.stages import commitment, layer_tensors, lost, microbatches, recovered, skip_schedule, split


def test_layers_are_divided_equally() -> None:
    assert split(4, 4) == [range(0, 1), range(1, 2), range(2, 3), range(3, 4)]
    assert split(12, 3) == [range(0, 4), range(4, 8), range(8, 12)]
    with pytest.raises(SpecError, match="3 layers cannot be split into 4 stages"):
        split(3, 4)


def test_a_stage_has_its_layers_tensors() -> None:
    names = ["embed.weight", "layers.1.a", "layers.1.b", "layers.10.a", "layers.11.a", "norm.weight"]
    tensors = {name: torch.zeros(1) for name in names}
    assert list(layer_tensors(tensors, range(1, 2), "layers.")) == ["layers.1.a", "layers.1.b"]
    assert list(layer_tensors(tensors, range(10, 12), "layers.")) == ["layers.10.a", "layers.11.a"]


@pytest.mark.parametrize(("stages", "skipped", "count"), [(4, 1, 4), (4, 2, 3), (8, 2, 5), (6, 0, 4), (24, 12, 7)])
def test_stages_are_skipped_in_turn_and_never_the_first_or_last(stages: int, skipped: int, count: int) -> None:
    schedule = skip_schedule(stages, skipped, count, random.Random(0))
    assert [len(skips) for skips in schedule] == [skipped] * count, "every microbatch skips as many"
    uses = Counter(stage for skips in schedule for stage in skips)
    assert set(uses) <= set(range(1, stages - 1))
    if skipped:
        times = [uses[stage] for stage in range(1, stages - 1)]
        assert max(times) - min(times) <= 1
    orders = {tuple(skip_schedule(8, 2, 4, random.Random(seed))) for seed in range(5)}
    assert len(orders) > 1, "the order is drawn"


def test_a_lost_stage_is_its_neighbours_weighted_mean() -> None:
    """By hand: (3.0001 * 1 + 1.0001 * 5) / 4.0002."""
    mean = recovered(torch.tensor([1.0, 0.0]), torch.tensor([5.0, 4.0]), 3.0, 1.0)
    assert mean.tolist() == pytest.approx([(3.0001 + 5 * 1.0001) / 4.0002, 4 * 1.0001 / 4.0002])
    assert recovered(torch.tensor([1.0]), torch.tensor([5.0]), 0.0, 0.0).item() == pytest.approx(3.0)


def test_what_others_hold_decides_what_is_drawn_about_a_stage() -> None:
    weights = torch.zeros(4, 3)
    own, other = weights.clone(), weights.clone()
    own[1], other[2] = 1.0, 1e-7
    assert commitment(own, 1) == commitment(weights, 1), "its own weights are left out, so that it cannot try some"
    assert commitment(other, 1) != commitment(weights, 1)


def test_losses_are_of_middle_stages_that_are_no_neighbours() -> None:
    assert lost(6, 0.0, random.Random(0)) == []
    assert lost(6, 1.0, random.Random(0)) == [1, 3]
    drawn = [lost(6, 0.5, random.Random(seed)) for seed in range(200)]
    assert all(b - a > 1 for each in drawn for a, b in pairwise(each))
    assert {stage for each in drawn for stage in each} == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("prompts", "count", "parts"),
    [
        ([0, 0, 1, 2, 2, 3], 2, [[0, 1], [2, 3]]), ([0, 1, 2], 2, [[0], [1, 2]]), ([4, 4], 3, [[4]]), ([], 4, []),
        ([0, 1, 2, 3, 4], 1, [[0, 1, 2, 3, 4]]),
    ],
)  # fmt: skip
def test_prompts_are_divided_without_a_rest(prompts: list[int], count: int, parts: list[list[int]]) -> None:
    assert microbatches(prompts, count) == parts


def test_a_signal_is_the_mean_over_real_tokens() -> None:
    tally = Tally()
    assert tally.signal() is None
    values = torch.tensor([[[1.0, 2.0], [100.0, 100.0]], [[3.0, 4.0], [5.0, 6.0]]])
    tally.add(values, torch.tensor([[True, False], [True, True]]))
    signal = tally.signal()
    assert signal is not None and signal.tokens == 3 and signal.mean.tolist() == [3.0, 4.0]
    assert signal.rms == pytest.approx(((1 + 4 + 9 + 16 + 25 + 36) / 6) ** 0.5)


def test_sound_activations_are_named_so() -> None:
    like = torch.zeros(2, 3, 4)
    assert problem(torch.ones(2, 3, 4), like) == ""
    assert problem(None, like) == "missing"
    assert problem(torch.ones(2, 3, 4).half(), like) == "not float32 activations but float16"
    assert problem(torch.ones(3, 2, 4), like) == "wrong shape (3, 2, 4), not (2, 3, 4)"
    assert problem(like.index_fill(1, torch.tensor([1]), float("-inf")), like) == "not finite"
