"""Advantages, and what holds for every learner."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch

from thiefbench.engine.learning.grpo import (
    LEARNERS,
    STD_EPSILON,
    Batch,
    cispo,
    dapo,
    dr_grpo,
    gepo,
    group_advantages,
    group_expectation,
    grpo,
    log_ratios,
    token_losses,
)
from thiefbench.engine.spec import LearnerSpec, LossType

SPEC = LearnerSpec()
everything = pytest.mark.parametrize("loss", sorted(LEARNERS))
# ftis clips a ratio that is 1, cispo a weight
clipping = pytest.mark.parametrize("loss", sorted(LEARNERS.keys() - {"ftis", "cispo"}))


def advantages(rewards: list[float], kept: list[bool] | None = None, scale_rewards: bool = True) -> list[float]:
    rows = torch.tensor([kept]) if kept else torch.ones(1, len(rewards), dtype=torch.bool)
    made: list[float] = group_advantages(torch.tensor([rewards]), rows, scale_rewards)[0].tolist()
    return made


def batch(rows: int = 3, length: int = 6, **fields: object) -> Batch:
    generator = torch.Generator().manual_seed(0)
    logprobs = -torch.rand(rows, length, generator=generator)
    mask = (torch.arange(length)[None] < torch.tensor([length, 2, 4])[:rows, None]).float()
    given = {
        "logprobs": logprobs.requires_grad_(),
        "old_logprobs": None,
        "mask": mask,
        "token_weights": torch.ones(rows, length),
        "advantages": torch.tensor([1.0, -0.5, 2.0])[:rows],
        "pool_rows": 5,
        "max_length": 10,
        "pool_tokens": 21,
    }
    return Batch(**(given | fields))  # type: ignore[arg-type]


def off_policy(**fields: object) -> Batch:
    """Some tokens and some rows are clipped, and some are not."""
    old = torch.full((3, 6), -0.6) + torch.tensor([0.3, 0.0, -0.3])[:, None]
    return batch(**({"old_logprobs": old, "expected": torch.tensor([0.6, 0.8, 0.5])} | fields))


def part_of(whole: Batch, rows: list[int]) -> Batch:
    """The batch of some of the rows."""
    given = {name: value for name, value in vars(whole).items() if isinstance(value, torch.Tensor)}
    return replace(whole, **{name: value[rows] for name, value in given.items()})  # type: ignore[arg-type]


def gradient(given: Batch, loss: LossType, spec: LearnerSpec = SPEC) -> torch.Tensor:
    given.logprobs.grad = None
    LEARNERS[loss](given, spec).backward()  # type: ignore[no-untyped-call]
    assert given.logprobs.grad is not None
    return given.logprobs.grad.clone()


def test_every_loss_has_its_learner() -> None:
    assert set(LEARNERS) == set(get_args(LossType))


@pytest.mark.parametrize("size", [2, 4, 12])
def test_share_of_poison_follows_the_published_curve(size: int) -> None:
    """A c / G of c poisoned at reward 1 among honest ones at reward 0: sqrt(rho (1 - rho)), arXiv:2511.09780."""
    for poisoned in range(1, size):
        rewards = torch.tensor([1.0] * poisoned + [0.0] * (size - poisoned), dtype=torch.float64)
        rho = poisoned / size
        measured = advantages(rewards.tolist())[0] * poisoned / size
        sample, population = float(rewards.std()), float(rewards.std(correction=0))
        with_sample = measured * (sample + STD_EPSILON) / sample
        with_population = measured * (sample + STD_EPSILON) / population
        assert with_population == pytest.approx(math.sqrt(rho * (1 - rho)), rel=1e-6)
        assert with_sample == pytest.approx(math.sqrt(rho * (1 - rho) * (size - 1) / size), rel=1e-6)


def test_the_curve_peaks_at_one_half_and_keeps_80_percent_at_one_fifth() -> None:
    size = 20
    effects = [
        advantages([1.0] * poisoned + [0.0] * (size - poisoned))[0] * poisoned / size for poisoned in range(1, size)
    ]
    assert max(range(1, size), key=lambda poisoned: effects[poisoned - 1]) == 10
    assert effects[4 - 1] / effects[10 - 1] == pytest.approx(0.8, rel=1e-3)


def test_advantages_by_hand() -> None:
    std = math.sqrt(1 / 3)
    expected = [0.5 / (std + 1e-4), -0.5 / (std + 1e-4)] * 2
    assert advantages([1, 0, 1, 0]) == pytest.approx(expected), "(r - mean) / (sample std + 1e-4)"
    assert advantages([1, 0, 1, 0], scale_rewards=False) == pytest.approx([0.5, -0.5, 0.5, -0.5])


@pytest.mark.parametrize("scale_rewards", [True, False])
@pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
def test_groups_without_variance_teach_nothing(value: float, scale_rewards: bool) -> None:
    made = advantages([value] * 12, scale_rewards=scale_rewards)
    assert made == pytest.approx([0.0] * 12, abs=1e-9), "equal rewards give no advantage"


@pytest.mark.parametrize("scale_rewards", [True, False])
def test_dropped_rows_leave_their_group(scale_rewards: bool) -> None:
    rewards, kept = [1.0, 0.0, 0.5, 1.0, 0.25], [True, False, True, True, False]
    made = advantages(rewards, kept, scale_rewards)
    rest = [reward for reward, stays in zip(rewards, kept, strict=True) if stays]
    assert [made[i] for i in (0, 2, 3)] == pytest.approx(advantages(rest, None, scale_rewards)), "mean, std of the rest"
    assert made[1] == made[4] == 0, "a dropped row has advantage 0"


@pytest.mark.parametrize("kept", [[True, False, False], [False, False, False]])
def test_groups_with_fewer_than_two_rows_are_skipped(kept: list[bool]) -> None:
    assert advantages([1.0, 0.0, 0.5], kept) == [0.0, 0.0, 0.0]


def test_groups_do_not_mix() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.9, 0.9]])
    kept = torch.tensor([[True, True, True], [True, True, False]])
    together = group_advantages(rewards, kept)
    for row in range(2):
        assert torch.equal(together[row], group_advantages(rewards[row : row + 1], kept[row : row + 1])[0])


def test_losses_by_hand() -> None:
    given = batch(old_logprobs=torch.full((3, 6), -0.5))
    ratio = (given.logprobs.detach() + 0.5).exp()
    token = [
        [-min(float(r) * a, min(max(float(r), 0.8), 1.3) * a) for r in row]
        for row, a in zip(ratio, given.advantages.tolist(), strict=True)
    ]
    sums = [sum(token[0][:6]), sum(token[1][:2]), sum(token[2][:4])]
    expected = (sums[0] / 6 + sums[1] / 2 + sums[2] / 4) / 5
    spec = LearnerSpec(epsilon_high=0.3)
    assert grpo(given, spec).item() == pytest.approx(expected), "mean over the pool of the mean over each row's tokens"
    assert dr_grpo(given, spec).item() == pytest.approx(sum(sums) / (5 * 10)), "sum over tokens / (rows * length limit)"
    assert dapo(given, spec).item() == pytest.approx(sum(sums) / 21), "sum over tokens / the pool's tokens"


@everything
def test_on_policy_gradient_is_the_policy_gradient(loss: LossType) -> None:
    given = batch()
    divisors = {"dr_grpo": torch.tensor(5 * 10), "dapo": torch.tensor(21), "cispo": torch.tensor(21)}
    divisor = divisors.get(loss, given.mask.sum(1, keepdim=True) * 5)
    torch.testing.assert_close(
        gradient(given, loss), -given.advantages[:, None] * given.mask / divisor, msg="the ratio is 1 without old ones"
    )


@clipping
@pytest.mark.parametrize(("high", "shift"), [(None, 0.5), (0.6, 0.5), (0.6, 0.4)])
def test_clipping_is_one_sided(loss: LossType, high: float | None, shift: float) -> None:
    """Beyond the range a token stops teaching only in the direction that its advantage pushes."""
    beyond = math.exp(shift) > 1 + (high or 0.2)
    for apart, advantage, teaches in (
        (shift, 1.0, not beyond),
        (shift, -1.0, True),
        (-shift, 1.0, True),
        (-shift, -1.0, False),
    ):
        given = batch(
            rows=1, length=1, logprobs=torch.full((1, 1), -1.0, requires_grad=True), mask=torch.ones(1, 1),
            old_logprobs=torch.full((1, 1), -1.0 - apart), expected=torch.tensor([math.exp(-1.0 - apart)]),
            token_weights=torch.ones(1, 1), advantages=torch.tensor([advantage]),
        )  # fmt: skip
        made = gradient(given, loss, LearnerSpec(epsilon_high=high))
        assert bool(made != 0) == teaches, f"ratio exp({apart}), advantage {advantage}, epsilon_high {high}"


def test_cispo_by_hand() -> None:
    given = batch(old_logprobs=torch.full((3, 6), -0.8))
    total, capped = 0.0, 0
    for row, advantage in enumerate(given.advantages.tolist()):
        for token in range(int(given.mask[row].sum())):
            logprob = given.logprobs[row, token].item()
            weight = min(math.exp(logprob + 0.8), 1.3)
            capped += weight == 1.3
            total -= weight * advantage * logprob
    assert 2 <= capped <= 10, "the comparison means something only while some weights are capped"
    assert cispo(given, LearnerSpec(loss="cispo", ratio_cap=1.3)).item() == pytest.approx(total / 21)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(("shift", "weight"), [(0.5, math.exp(0.5)), (2.0, 3.0), (-2.0, math.exp(-2.0))])
def test_cispo_clips_the_weight_and_not_the_gradient(advantage: float, shift: float, weight: float) -> None:
    """Beyond the cap a token teaches as much as at the cap, whatever its advantage; below there is no limit."""
    given = batch(
        rows=1, length=1, logprobs=torch.full((1, 1), -1.0, requires_grad=True), mask=torch.ones(1, 1),
        old_logprobs=torch.full((1, 1), -1.0 - shift), token_weights=torch.ones(1, 1),
        advantages=torch.tensor([advantage]), pool_tokens=1,
    )  # fmt: skip
    made = gradient(given, "cispo", LearnerSpec(loss="cispo", ratio_cap=3.0))
    assert made.item() == pytest.approx(-advantage * weight)


@clipping
@pytest.mark.parametrize(("shift", "advantage", "teaches"), [(2.0, -1.0, False), (1.0, -1.0, True), (-2.0, 1.0, True)])
def test_delta_is_the_clips_other_side(loss: LossType, shift: float, advantage: float, teaches: bool) -> None:
    given = batch(
        rows=1, length=1, logprobs=torch.full((1, 1), -1.0, requires_grad=True), mask=torch.ones(1, 1),
        old_logprobs=torch.full((1, 1), -1.0 - shift), expected=torch.tensor([math.exp(-1.0 - shift)]),
        token_weights=torch.ones(1, 1), advantages=torch.tensor([advantage]),
    )  # fmt: skip
    made = gradient(given, loss, LearnerSpec(delta=4.0))
    assert bool(made != 0) == teaches, f"ratio exp({shift}), advantage {advantage}"
    assert gradient(given, loss) != 0, "the customary clip leaves all of these to teach"


@everything
def test_token_weights_multiply_the_loss_and_not_the_divisor(loss: LossType) -> None:
    weights = torch.rand(3, 6, generator=torch.Generator().manual_seed(5))
    plain, weighted = off_policy(), off_policy(token_weights=weights)
    ratios = log_ratios(plain)
    torch.testing.assert_close(token_losses(weighted, SPEC, ratios), token_losses(plain, SPEC, ratios) * weights)
    whole = gradient(plain, loss)
    assert whole.abs().sum() > 0
    torch.testing.assert_close(gradient(weighted, loss), whole * weights, msg="the divisor stays the length")


@everything
def test_weights_of_zero_teach_nothing(loss: LossType) -> None:
    given = off_policy(token_weights=torch.zeros(3, 6))
    assert LEARNERS[loss](given, SPEC).item() == 0
    assert not gradient(given, loss).any(), "a token of weight 0 has no gradient"


@everything
@pytest.mark.parametrize("junk", [-99.0, -1e4, 1e4])
def test_padding_does_not_count(loss: LossType, junk: float) -> None:
    for short in (batch(), off_policy()):
        old = short.old_logprobs
        wide = replace(
            short,
            logprobs=torch.cat([short.logprobs.detach(), torch.full((3, 4), junk)], 1).requires_grad_(),
            old_logprobs=None if old is None else torch.cat([old, torch.zeros(3, 4)], 1),
            mask=torch.cat([short.mask, torch.zeros(3, 4)], 1),
            token_weights=torch.full((3, 10), 1.0),
        )
        assert LEARNERS[loss](wide, SPEC).item() == pytest.approx(LEARNERS[loss](short, SPEC).item())
        made = gradient(wide, loss)
        torch.testing.assert_close(made[:, :6], gradient(short, loss))
        assert not made[wide.mask == 0].any(), "padding gets no gradient"


@everything
def test_a_row_of_padding_adds_nothing(loss: LossType) -> None:
    given = off_policy()
    bare = replace(given, mask=given.mask * torch.tensor([1.0, 0.0, 1.0])[:, None])
    rest = part_of(bare, [0, 2])
    assert LEARNERS[loss](bare, SPEC).item() == pytest.approx(LEARNERS[loss](rest, SPEC).item())
    assert not gradient(bare, loss)[1].any()


@everything
@pytest.mark.parametrize("told", [-1e4, 0.0])
@pytest.mark.parametrize("own", [-1e4, 0.0])
def test_extreme_logprobs_stay_finite(loss: LossType, own: float, told: float) -> None:
    logprobs = torch.full((3, 6), own, requires_grad=True)
    old = torch.full((3, 6), told)
    expected = group_expectation(old[:, 0][None], torch.ones(1, 3, dtype=torch.bool))[0]
    given = batch(logprobs=logprobs, old_logprobs=old, expected=expected)
    assert LEARNERS[loss](given, SPEC).isfinite()
    assert gradient(given, loss).isfinite().all(), "a claimed log-prob must not bring NaN into the weights"


@everything
@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_chunks_add_up_to_the_whole(loss: LossType, kl: float) -> None:
    whole = off_policy(reference_logprobs=torch.full((3, 6), -0.9) if kl else None, kl=kl)
    parts = [part_of(whole, rows) for rows in ([1], [2, 0])]
    total = sum(LEARNERS[loss](part, SPEC).item() for part in parts)
    assert total == pytest.approx(LEARNERS[loss](whole, SPEC).item()), "a pool is worked through in chunks"
    expected = gradient(whole, loss)
    whole.logprobs.grad = None
    for part in parts:
        LEARNERS[loss](part, SPEC).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(whole.logprobs.grad, expected)


def test_what_a_learner_lacks_is_said() -> None:
    for learner in (dapo, cispo):
        with pytest.raises(ValueError, match=rf"^{learner.__name__} divides .* give Batch\.pool_tokens"):
            learner(batch(pool_tokens=0), SPEC)
    with pytest.raises(ValueError, match=r"give Batch\.expected"):
        gepo(off_policy(expected=None), SPEC)
