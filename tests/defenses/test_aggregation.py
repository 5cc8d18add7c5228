"""Aggregation rules against the numbers of ByzFL 0.0.11, and what each does to outliers."""

from __future__ import annotations

import pytest
import torch

from thiefbench import registry
from thiefbench.defenses.aggregation import vectors
from thiefbench.defenses.aggregation.base import Aggregation
from thiefbench.testing.contracts.aggregation import view_of, view_of_round

EIGHT = torch.tensor(
    [
        [-1.25, -0.5, 0.25], [0.5, 1.25, -0.75], [-0.5, 0.25, 1.0], [1.25, -0.75, 0.0],
        [0.25, 1.0, -1.0], [-0.75, 0.0, 0.75], [4.0, 2.0, 2.75], [3.0, 3.75, 1.75],
    ]
)  # fmt: skip


def of(spec: str) -> Aggregation:
    made: Aggregation = registry.make("defense", spec)
    return made


# Each is what the class of ByzFL 0.0.11 (MIT) that stands beside it returned for these eight vectors.
BYZFL = {
    "Median()": (vectors.coordinate_median(EIGHT), [0.375, 0.625, 0.5]),
    "TrMean(f=1)": (vectors.trimmed_mean(EIGHT, 1), [0.625, 0.6666666865, 0.5]),
    "GeometricMedian(nu=0.1, T=200)": (
        vectors.geometric_median(EIGHT, 200, 0.1),
        [0.194499343634, 0.489832818508, 0.294888854027],
    ),
    "CenteredClipping(L=3, tau=2.0)": (
        vectors.centered_clipping(EIGHT, torch.zeros(3), 2.0, 3),
        [0.372526884079, 0.550529956818, 0.321739733219],
    ),
    "Krum(f=2)": (EIGHT[vectors.krum_scores(EIGHT, 2).argmin()], [-0.75, 0.0, 0.75]),
    "MultiKrum(f=2)": (
        EIGHT[vectors.krum_scores(EIGHT, 2).sort().indices[:6]].mean(0),
        [-0.083333335817, 0.208333328366, 0.041666667908],
    ),
    "NNM(f=2), of the first": (
        vectors.nearest_mixing(EIGHT, 2)[0],
        [-0.083333335817, 0.208333328366, 0.041666667908],
    ),
    "NNM(f=2), of the last": (vectors.nearest_mixing(EIGHT, 2)[7], [1.41666662693, 1.25, 0.625]),
    "Clipping(c=2.0), of the last": (vectors.clipped(EIGHT, 2.0)[7], [1.17387843132, 1.467348098755, 0.68476241827]),
}


@pytest.mark.parametrize("rule", BYZFL)
def test_rules_give_the_numbers_of_byzfl(rule: str) -> None:
    ours, theirs = BYZFL[rule]
    assert ours.tolist() == pytest.approx(theirs, abs=1e-6)


def test_krum_sums_as_many_distances_as_its_paper_says() -> None:
    """n - f - 2 of them; ByzFL sums one more, and on random vectors may choose another one."""
    assert vectors.krum_scores(EIGHT, 2).tolist() == pytest.approx(
        [14.875, 15.75, 12.0, 20.375, 15.4375, 11.125, 79.1875, 71.5625]
    )


ROBUST = (
    "coordinate_median", "trimmed_mean(f=2)", "krum(f=2)", "multi_krum(f=2)", "geometric_median",
    "centered_clipping", "norm_bound", "norm_bound(rule='coordinate_median')",
    "nearest_mixing(f=2)", "nearest_mixing(f=2, rule='krum(f=2)')", "held_out", "held_out(measure='reward')",
)  # fmt: skip


@pytest.mark.parametrize("spec", ROBUST)
def test_two_far_vectors_of_nine_move_no_robust_rule_far(spec: str) -> None:
    honest = view_of_round(6)
    far = [torch.full_like(honest.own, value) for value in (50.0, 60.0)]
    attacked = view_of(honest.own, [*(sent.vector for sent in honest.vectors), *far])
    rule, length = of(spec), float(honest.own.norm())
    moved = float((rule.aggregate(attacked).vector - honest.stacked().mean(0)).norm())
    by_mean = float((of("mean").aggregate(attacked).vector - honest.stacked().mean(0)).norm())
    assert by_mean > 50 * length, "the mean follows the outliers"
    assert moved < length, "no further than an honest vector is long"


@pytest.mark.parametrize("spec", ["krum(f=2)", "multi_krum(f=2)", "held_out", "held_out(measure='reward')"])
def test_rules_that_choose_reject_the_far_ones_only(spec: str) -> None:
    honest = view_of_round(6)
    far = [torch.full_like(honest.own, 50.0)] * 2
    joined = of(spec).aggregate(view_of(honest.own, [*(sent.vector for sent in honest.vectors), *far]))
    actions = [verdict.action for verdict in joined.verdicts]
    assert actions[6:] == ["reject"] * 2
    if spec != "krum(f=2)":
        assert actions[:6] == ["accept"] * 6


@pytest.mark.parametrize("spec", ["centered_clipping", "norm_bound"])
def test_rules_that_shorten_say_so(spec: str) -> None:
    view = view_of_round(0)
    joined = of(spec).aggregate(view_of(view.own, [view.own * 1.01, view.own * 0.99, view.own * 9]))
    assert joined.verdicts[1].action == "accept" and joined.verdicts[2].action == "clip"
    assert joined.verdicts[2].score == pytest.approx(8 if spec == "centered_clipping" else 9, rel=1e-4)


def test_in_pairs_only_what_starts_from_the_own_vector_resists() -> None:
    """A gossiping node holds two vectors, and the median of two is their mean."""
    view = view_of_round(0)
    pair = view_of(view.own, [view.own * -40])
    pulled = of("mean").aggregate(pair).vector
    for spec in ("coordinate_median", "trimmed_mean", "geometric_median", "multi_krum(f=0)"):
        assert torch.allclose(of(spec).aggregate(pair).vector, pulled, atol=1e-4), f"{spec} is the mean"
    for spec in ("centered_clipping", "held_out", "held_out(measure='reward')"):
        moved = float((of(spec).aggregate(pair).vector - view.own).norm())
        assert moved <= 0.51 * float(view.own.norm()), f"{spec} stays near the own vector"
    assert torch.equal(of("krum").aggregate(pair).vector, view.own), "krum never adopts anything"


def test_a_model_whose_loss_is_not_a_number_is_rejected() -> None:
    view = view_of_round(1)
    broken = view_of(view.own, [view.vectors[0].vector])
    object.__setattr__(broken, "loss", lambda vector: 1.0 if torch.equal(vector, view.own) else float("nan"))
    joined = of("held_out").aggregate(broken)
    assert joined.verdicts[0].action == "reject" and torch.equal(joined.vector, view.own)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("krum(f=-1)", "f is the number of malicious nodes"),
        ("trimmed_mean(f=0.5)", "f must be a whole number"),
        ("multi_krum(keep=0)", "keep is how many"),
        ("geometric_median(steps=0)", "steps must be at least 1"),
        ("centered_clipping(radius=0)", "radius must be above 0"),
        ("norm_bound(factor=-1)", "factor must be above 0"),
        ("norm_bound(rule='logit')", "logit inspects completions"),
        ("nearest_mixing(rule='krum+mean')", "inspects completions"),
        ("held_out(measure='vibes')", "measure must be reward or loss"),
        ("held_out(tolerance=-0.1)", "tolerance must be at least 0"),
    ],
)
def test_impossible_arguments_are_refused_in_words(spec: str, words: str) -> None:
    with pytest.raises(registry.SpecStringError, match=words):
        registry.make("defense", spec)
