"""The rules for every stage check, as a test class."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import torch

from thiefbench.defenses.stages.base import PIPELINE, Recomputed, Signal, StageCheck, StageVerdict, StageView
from thiefbench.testing.contracts.subjects import made

STAGES, SIZE, HIDDEN = 4, 24, 8
"""How many stages a pipeline has in these tests, and how many numbers a stage's weights and an activation."""


def views_of_run(
    rounds: int, step: float = 0.01, stage: int = 2, seed: int = 0, size: int = SIZE
) -> Iterator[StageView]:
    """Views of a stage in a run in which every stage is honest: updates and signals are drawn anew in every round.

    Args:
        rounds: how many.
        step: the size of updates, and of changes of the signals; with 0, nothing ever changes.
        stage: the stage that is seen, from 1.
        seed: of the draws.
        size: how many numbers a stage's weights have.
    """
    noise = torch.Generator().manual_seed(seed)
    weights = torch.randn(STAGES, size, generator=noise)
    base = {name: torch.randn(HIDDEN, generator=noise) for name in ("received", "sent", "gradient")}
    for number in range(1, rounds + 1):
        before, weights = weights, weights + step * torch.randn(STAGES, size, generator=noise)
        means = {name: mean + step * torch.randn(HIDDEN, generator=noise) for name, mean in base.items()}
        signals = {name: Signal(mean, float(mean.square().mean()) ** 0.5, 100) for name, mean in means.items()}
        honest = Recomputed(weights[stage - 1].clone(), 0.0)
        yield StageView(
            round=number,
            stage=stage,
            stages=STAGES,
            received=signals["received"],
            sent=signals["sent"],
            gradient=signals["gradient"],
            weights=weights,
            before=before,
            rng=random.Random(number),
            recompute=lambda honest=honest: honest,  # type: ignore[misc]
        )


class StageCheckContract:
    """Subclass it as ``class TestMine(StageCheckContract)``; every rule is one test.

    The check sees made-up rounds of a pipeline, and numbers that a malicious stage may send. To leave out a rule that
    does not apply to a check, set it to None.

    Attributes:
        stage_check: a spec string, as "my_stage_check.py:Mine(level=2)", or the class itself.
    """

    stage_check: ClassVar[str | type[StageCheck]]

    def make(self) -> StageCheck:
        """A fresh check at every call; override this if neither a spec string nor a class is enough."""
        made_one: StageCheck = made(self, "stage_check")
        return made_one

    def test_it_has_a_name_and_requires_a_pipeline(self) -> None:
        """Other swarms refuse it, because no stage would be checked."""
        check = self.make()
        assert isinstance(check, StageCheck), "it derives from thiefbench.defenses.stages.base.StageCheck"
        assert isinstance(getattr(check, "name", None), str), "a stage check has a name"
        assert PIPELINE in check.requires, 'a stage check requires "pipeline"'

    def test_every_stage_gets_a_verdict_in_every_round(self) -> None:
        """The first and the last stage, too."""
        for stage in range(1, STAGES + 1):
            check = self.make()
            for view in views_of_run(8, stage=stage):
                _check(check.check(view))

    def test_a_stage_that_never_changes_is_accepted(self) -> None:
        """As in a swarm whose groups all have one reward, so that nobody learns."""
        check = self.make()
        for view in views_of_run(8, step=0.0):
            assert check.check(view).action == "accept", "a stage that does nothing is accepted"

    def test_silence_and_extreme_numbers_do_not_raise(self) -> None:
        """A stage could otherwise stop the run. Only finite numbers arrive; a stage may be skipped, or lie."""
        values = (1e30, -1e30, 0.0, 1e-40)
        extreme = [Signal(torch.full((HIDDEN,), value), abs(value), 1) for value in values]
        for value, signal in zip(values, extreme, strict=True):
            check = self.make()
            for view in views_of_run(6):
                weights = view.weights.clone()
                weights[1] = value
                silent = replace(view, received=None, sent=None, gradient=None)
                lying = replace(view, sent=signal, gradient=signal, weights=weights,
                                recompute=lambda view=view: Recomputed(view.weights[1], math.inf))  # type: ignore[misc]  # fmt: skip
                for each in (silent, view, lying):
                    try:
                        verdict = check.check(each)
                    except Exception as error:
                        raise AssertionError(
                            "silence, huge, tiny and zero numbers are checked like all others"
                        ) from error
                    _check(verdict)

    def test_it_changes_nothing(self) -> None:
        """Weights and signals are those of the run."""
        check = self.make()
        for view in views_of_run(6):
            kept = [view.weights.clone(), view.before.clone()]
            signals = [signal.mean for signal in (view.received, view.sent, view.gradient) if signal is not None]
            means = [mean.clone() for mean in signals]
            check.check(view)
            assert torch.equal(view.weights, kept[0]) and torch.equal(view.before, kept[1]), "weights are not modified"
            same = [torch.equal(mean, before) for mean, before in zip(signals, means, strict=True)]
            assert all(same), "signals are not modified"

    def test_equal_views_give_equal_verdicts(self) -> None:
        """They must not depend on a clock or a global random generator."""
        runs = [[check.check(view) for view in views_of_run(8)] for check in (self.make(), self.make())]
        assert runs[0] == runs[1], "equal views give equal verdicts"

    def test_state_survives_a_restart(self) -> None:
        """Through JSON, in the middle of a run."""
        whole, first, second = self.make(), self.make(), self.make()
        expected = [whole.check(view) for view in views_of_run(10)]
        for view in views_of_run(5):
            first.check(view)
        second.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
        later = [second.check(view) for view in views_of_run(10) if view.round > 5]
        assert later == expected[5:], "restore takes back what state gave, by way of JSON"


def _check(verdict: StageVerdict) -> None:
    """A verdict is one.

    Raises:
        AssertionError: a rule is broken; the message states it.
    """
    assert isinstance(verdict, StageVerdict), "check gives a StageVerdict"
    assert verdict.action in ("accept", "reject"), "an action is accept or reject"
    finite = isinstance(verdict.score, float) and math.isfinite(verdict.score)
    assert verdict.score is None or finite, "a score is a finite float or None"
    assert isinstance(verdict.reason, str), "a reason is text"
