"""Stage checks: their statistics against numbers by hand, and what they find in made-up rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from thiefbench import registry
from thiefbench.defenses.stages import statistics
from thiefbench.defenses.stages.base import Recomputed, Signal, StageCheck, StageView
from thiefbench.testing.contracts.stage_check import views_of_run

Change = Callable[[StageView], StageView]


def verdicts(spec: str, change: Change, of: int = 12, since: int = 9, stage: int = 2) -> list[str]:
    """The actions of a check in a run in which the stage departs from the honest one in the rounds from `since` on."""
    check: StageCheck = registry.make("defense", spec)
    views = views_of_run(of, stage=stage)
    return [check.check(change(view) if view.round >= since else view).action for view in views]


def test_moving_averages_and_their_deviations() -> None:
    average = statistics.moving_average(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 4.0]), 0.75)
    assert average.tolist() == [1.5, 1.0]
    assert statistics.deviation(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 4.0])) == pytest.approx(3 / 5)
    assert statistics.deviation(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 4.0])) == pytest.approx(3 / 4)
    assert statistics.deviation(torch.tensor([0.0, 1.0]), torch.tensor([0.0, -1.0])) == 2
    assert statistics.deviation(torch.zeros(2), torch.zeros(2)) == 0


def test_the_fence_is_tukeys() -> None:
    values = [0.1, 0.4, 0.2, 0.9, 0.3, 0.35]
    first, third = np.quantile(values, [0.25, 0.75])
    assert statistics.upper_fence(values, 1.5) == pytest.approx(third + 1.5 * (third - first))
    assert statistics.upper_fence([2.0, 2.0], 3.0) == 2.0


def test_distances_to_neighbours_by_hand() -> None:
    weights = torch.tensor([[0.0, 1.0], [2.0, 0.0], [4.0, 3.0]])
    first, middle, last = statistics.neighbour_distances(weights)
    assert first == pytest.approx(5**0.5 / 2), "one neighbour, (2, 0)"
    assert middle == pytest.approx(2 / 8**0.5), "the mean of the others is (2, 2)"
    assert last == pytest.approx(13**0.5 / 2)
    assert statistics.excess([0.1, 0.9, 0.2, 0.4], 1) == pytest.approx(0.7)


def sends(scale: float) -> Change:
    def change(view: StageView) -> StageView:
        assert view.sent is not None
        return replace(view, sent=Signal(view.sent.mean * scale, view.sent.rms * scale, view.sent.tokens))

    return change


def returns(view: StageView) -> StageView:
    assert view.gradient is not None
    return replace(view, gradient=Signal(-view.gradient.mean, view.gradient.rms, view.gradient.tokens))


def adds(length: float) -> Change:
    def change(view: StageView) -> StageView:
        weights = view.weights.clone()
        weights[view.stage - 1] += length
        return replace(view, weights=weights)

    return change


@pytest.mark.parametrize(("change", "reason"), [(sends(1.5), "activations"), (returns, "gradients")])
def test_the_monitor_finds_a_sudden_change(change: Change, reason: str) -> None:
    assert verdicts("stage_monitor", change) == ["accept"] * 8 + ["reject"] * 4
    check = registry.make("defense", "stage_monitor")
    last = [check.check(change(view) if view.round == 9 else view) for view in views_of_run(9)][-1]
    assert reason in last.reason and last.score > 1


def test_the_monitor_accepts_honest_rounds_and_says_nothing_at_first() -> None:
    assert verdicts("stage_monitor", lambda view: view) == ["accept"] * 12
    assert verdicts("stage_monitor", sends(5.0), of=3, since=2) == ["accept"] * 3, "nothing is known yet"


def test_the_monitor_lets_slow_changes_pass() -> None:
    """Its weakness: each round is compared with the rounds before it."""
    slow = ["accept"] * 30
    assert verdicts("stage_monitor", lambda view: sends(1 + 0.002 * view.round)(view), of=30, since=1) == slow


def test_recomputation_finds_weights_and_activations_that_are_not_of_the_update() -> None:
    assert verdicts("recomputation(share=1.0)", adds(0.01)) == ["accept"] * 8 + ["reject"] * 4
    liar: Change = lambda view: replace(view, recompute=lambda: Recomputed(view.weights[1], 0.5))  # noqa: E731
    assert verdicts("recomputation(share=1.0)", liar) == ["accept"] * 8 + ["reject"] * 4
    small: Change = lambda view: replace(view, recompute=lambda: Recomputed(view.weights[1] * (1 + 1e-6), 1e-5))  # noqa: E731
    assert verdicts("recomputation(share=1.0)", small, since=1) == ["accept"] * 12, "last bits of another machine"


def test_recomputation_asks_only_where_it_is_drawn() -> None:
    asked = []

    def counts(view: StageView) -> StageView:
        def repeat() -> Recomputed:
            asked.append(view.round)
            return Recomputed(view.weights[1], 0.0)

        return replace(view, recompute=repeat)

    assert verdicts("recomputation(share=0.3)", counts, of=60, since=1) == ["accept"] * 60
    assert 8 <= len(asked) <= 30 and len(set(asked)) == len(asked)


def test_the_distance_to_neighbours_counts_from_the_start_and_against_the_others() -> None:
    away: Change = adds(1.0)
    assert verdicts("neighbour_distance", away) == ["accept"] * 8 + ["reject"] * 4
    everyone: Change = lambda view: replace(view, weights=view.weights * 1.5)  # noqa: E731
    assert verdicts("neighbour_distance", everyone)[8:] == ["accept"] * 4, "all stages alike"
    assert verdicts("neighbour_distance", adds(0.001)) == ["accept"] * 12


def with_recovery(since: int, spec: str, known: bool) -> list[tuple[str, ...]]:
    """The actions of the checks of all stages, by round, if stage 2 is recovered from its neighbours before a round."""
    checks = [registry.make("defense", spec) for _ in range(4)]
    actions = []
    for views in zip(*(views_of_run(12, stage=stage) for stage in (1, 2, 3, 4)), strict=True):
        seen = [recovered(view, since, known) for view in views]
        actions.append(tuple(check.check(view).action for check, view in zip(checks, seen, strict=True)))
    return actions


def recovered(view: StageView, since: int, known: bool) -> StageView:
    if view.round < since:
        return view
    moved = [weights.clone() for weights in (view.before, view.weights)]
    for weights in moved:
        weights[1] = (weights[0] + weights[2]) / 2
    before = view.before if known and view.round == since else None
    changed = replace(view, before=moved[0], weights=moved[1], before_recovery=before)
    return sends(3.0)(changed) if view.stage > 1 else changed


@pytest.mark.parametrize("spec", ["neighbour_distance", "stage_monitor"])
def test_a_recovered_stage_and_its_neighbours_are_not_taken_for_malicious(spec: str) -> None:
    honest = ("accept",) * 4
    assert with_recovery(9, spec, known=True) == [honest] * 12
    assert with_recovery(9, spec, known=False)[8] != honest, "without being told, it rejects"


def test_a_recovery_forgives_no_growth() -> None:
    """Ten equal parts are too much, whether or not some stage was recovered before the ninth."""

    def grown(view: StageView, told: bool) -> StageView:
        before, weights = view.before.clone(), view.weights.clone()
        away = before[1] - (before[0] + before[2]) / 2
        before[1] += 0.05 * (view.round - 1) * away
        weights[1] += 0.05 * view.round * away
        return replace(view, before=before, weights=weights, before_recovery=before if told else None)

    runs = []
    for when in (0, 9):
        check = registry.make("defense", "neighbour_distance(tolerance=0.9)")
        runs.append([check.check(grown(view, view.round == when)).action for view in views_of_run(10)])
    assert runs[0] == runs[1] and runs[0][0] == "accept" and runs[0][-1] == "reject"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("stage_monitor(decay=1.0)", "decay must lie in"), ("stage_monitor(warmup=1)", "warmup must be at least 2"),
        ("stage_monitor(width=0)", "width and slack must be above 0"), ("recomputation(share=0)", "share must lie in"),
        ("recomputation(tolerance=0)", "tolerance must be above 0"),
        ("neighbour_distance(tolerance=-1)", "tolerance must be above 0"),
    ],
)  # fmt: skip
def test_impossible_arguments_are_refused_in_words(spec: str, words: str) -> None:
    with pytest.raises(registry.SpecStringError, match=words):
        registry.make("defense", spec)
