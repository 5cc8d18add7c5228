"""Harm prevented: the share of an attack's harm that a defense prevents."""

from __future__ import annotations

from collections.abc import Sequence

import datasets
import evaluate

from thiefbench import registry
from thiefbench.attacks.base import Attack
from thiefbench.suite.analysis.comparison import harm_of, share_prevented

INPUTS = """
Args:
    predictions: the attack's outcomes on completions of the defended models; None where it has no opinion.
    references: its outcomes on completions of the undefended models, equally many; pad the shorter list with None.
    baseline: its outcomes on what harm is measured against: the placebo's models, or for dos the control's.
    attack: spec string; it says what its harm is (by default the difference of the means to the baseline).
Returns:
    value: 1 - harm_defended / harm_undefended, unclipped; None where the undefended harm is below
        0.1.
    harm_defended, harm_undefended: the two harms; None, as is the value, where a list has no outcome.
"""


class HarmPrevented(evaluate.Metric):  # type: ignore[misc]  # evaluate comes without types
    """`evaluate.load(thiefbench.metrics.path("harm_prevented"))`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="1 - harm with the defense / harm without it, by the attack's own measure of harm.",
            citation="",
            inputs_description=INPUTS,
            features=datasets.Features({name: datasets.Value("float64") for name in ("predictions", "references")}),
        )

    def _compute(
        self,
        predictions: Sequence[float | None],
        references: Sequence[float | None],
        baseline: Sequence[float | None],
        attack: str,
    ) -> dict[str, float | None]:
        member: Attack = registry.make("attack", attack)
        defended, undefended, reference = (
            [float(outcome) for outcome in outcomes if outcome is not None]
            for outcomes in (predictions, references, baseline)
        )
        if not (defended and undefended and reference):
            return dict.fromkeys(("value", "harm_defended", "harm_undefended"))
        return {
            "value": share_prevented(member, defended, undefended, reference),
            "harm_defended": harm_of(member, defended, reference),
            "harm_undefended": harm_of(member, undefended, reference),
        }
