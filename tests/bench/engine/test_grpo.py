from __future__ import annotations

import math

import pytest
import torch

from thiefbench.engine.grpo import (
    LEARNERS,
    STD_EPSILON,
    Batch,
    dr_grpo,
    group_advantages,
    grpo,
    scaled_poison_effect,
    token_losses,
)

everything = pytest.mark.parametrize("loss", sorted(LEARNERS))


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
    }
    return Batch(**(given | fields))  # type: ignore[arg-type]


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
        assert with_population == pytest.approx(scaled_poison_effect(poisoned, size), rel=1e-6)
        assert with_sample == pytest.approx(math.sqrt(rho * (1 - rho) * (size - 1) / size), rel=1e-6)
        assert with_sample == pytest.approx(scaled_poison_effect(poisoned, size, sample_std=True), rel=1e-6)


def test_the_curve_peaks_at_one_half_and_keeps_80_percent_at_one_fifth() -> None:
    effects = [scaled_poison_effect(c, 100) for c in range(101)]
    assert max(range(101), key=effects.__getitem__) == 50
    assert effects[20] / effects[50] == pytest.approx(0.8)
    assert effects[0] == effects[100] == 0


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
        [-min(float(r) * a, min(max(float(r), 0.8), 1.2) * a) for r in row]
        for row, a in zip(ratio, given.advantages.tolist(), strict=True)
    ]
    sums = [sum(token[0][:6]), sum(token[1][:2]), sum(token[2][:4])]
    expected = (sums[0] / 6 + sums[1] / 2 + sums[2] / 4) / 5
    assert grpo(given, 0.2).item() == pytest.approx(expected), "mean over the pool of the mean over each row's tokens"
    assert dr_grpo(given, 0.2).item() == pytest.approx(sum(sums) / (5 * 10)), "sum over tokens / (rows * length limit)"


@everything
def test_on_policy_gradient_is_the_policy_gradient(loss: str) -> None:
    given = batch()
    LEARNERS[loss](given, 0.2).backward()  # type: ignore[no-untyped-call]
    divisor = given.mask.sum(1, keepdim=True) * 5 if loss == "grpo" else 5 * 10
    torch.testing.assert_close(given.logprobs.grad, -given.advantages[:, None] * given.mask / divisor)


@everything
def test_clipping_is_one_sided(loss: str) -> None:
    """Beyond the range a token stops teaching only in the direction that its advantage pushes."""
    for shift, advantage, teaches in ((0.5, 1.0, False), (0.5, -1.0, True), (-0.5, 1.0, True), (-0.5, -1.0, False)):
        logprobs = torch.full((1, 1), -1.0, requires_grad=True)
        given = batch(
            rows=1, length=1, logprobs=logprobs, old_logprobs=torch.full((1, 1), -1.0 - shift), mask=torch.ones(1, 1),
            token_weights=torch.ones(1, 1), advantages=torch.tensor([advantage]),
        )  # fmt: skip
        LEARNERS[loss](given, 0.2).backward()  # type: ignore[no-untyped-call]
        assert logprobs.grad is not None
        assert bool(logprobs.grad != 0) == teaches, f"ratio exp({shift}), advantage {advantage}"


@everything
def test_token_weights_multiply_the_loss_and_not_the_divisor(loss: str) -> None:
    weights = torch.rand(3, 6, generator=torch.Generator().manual_seed(5))
    old = torch.full((3, 6), -0.6)
    plain, weighted = batch(old_logprobs=old), batch(old_logprobs=old, token_weights=weights)
    torch.testing.assert_close(token_losses(weighted, 0.2), token_losses(plain, 0.2) * weights)
    LEARNERS[loss](plain, 0.2).backward()  # type: ignore[no-untyped-call]
    LEARNERS[loss](weighted, 0.2).backward()  # type: ignore[no-untyped-call]
    assert plain.logprobs.grad is not None
    torch.testing.assert_close(weighted.logprobs.grad, plain.logprobs.grad * weights), "the divisor stays the length"


@everything
def test_padding_does_not_count(loss: str) -> None:
    short = batch()
    wide = batch(
        logprobs=torch.cat([short.logprobs.detach(), torch.full((3, 4), -99.0)], 1),
        mask=torch.cat([short.mask, torch.zeros(3, 4)], 1),
        token_weights=torch.full((3, 10), 1.0),
    )
    assert LEARNERS[loss](wide, 0.2).item() == pytest.approx(LEARNERS[loss](short, 0.2).item())
