from __future__ import annotations

from dataclasses import fields

import pytest

from thiefbench.engine.spec import LATER, LearnerSpec, SpecError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": "ppo"}, "loss must be one of grpo, dr_grpo, dapo, cispo, gspo, ftis, gepo, got 'ppo'"),
        ({"epsilon_high": 0.0}, "epsilon_high must be above 0, or left out to take epsilon, got 0.0"),
        ({"epsilon_high": -0.1}, "epsilon_high must be above 0, or left out to take epsilon, got -0.1"),
        ({"ratio_cap": 0.0}, "ratio_cap must be above 0, got 0.0"),
        ({"ratio_cap": float("nan")}, "ratio_cap must be a finite number, got nan"),
        ({"kl_gate": -1.0}, "kl_gate must be at least 0, got -1.0"),
        ({"delta": 1.2}, "delta must be above 1 + epsilon_high, 1.2 here, got 1.2"),
        ({"delta": float("nan")}, "delta must be a finite number, got nan"),
        ({"delta": 1.25, "epsilon_high": 0.28}, "delta must be above 1 + epsilon_high, 1.28 here, got 1.25"),
        ({"kl": -0.1}, "kl must be at least 0, got -0.1"),
    ],
)
def test_impossible_learners_are_refused_in_one_sentence(given: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        LearnerSpec(**given)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_the_clipping_range_is_symmetric_unless_it_is_said() -> None:
    assert LearnerSpec(epsilon=0.1).clip_range == pytest.approx((0.9, 1.1))
    assert LearnerSpec(epsilon=0.2, epsilon_high=0.28).clip_range == pytest.approx((0.8, 1.28))


def test_which_losses_need_the_generators_logprobs() -> None:
    needing = {
        loss
        for loss in ("grpo", "dr_grpo", "dapo", "cispo", "gspo", "ftis", "gepo")
        if LearnerSpec(loss=loss).needs_logprobs
    }  # type: ignore[arg-type]
    assert needing == {"ftis", "gepo"}


def test_fields_that_came_later_are_marked() -> None:
    later = {field.name for field in fields(LearnerSpec) if field.metadata == LATER}
    known = {"epsilon_high", "ratio_cap", "kl_gate", "delta"}
    assert later == known, "an older suite's identity must not change with them"
