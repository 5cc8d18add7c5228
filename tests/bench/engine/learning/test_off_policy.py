"""Losses for completions of other models: against their formulas written out in float64, and in their limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import get_args

import pytest
import torch

from thiefbench.engine.learning.cohort import Cohort, TrainingRow
from thiefbench.engine.learning.grpo import LEARNERS, Batch, ftis, gepo, group_expectation, grpo, gspo
from thiefbench.engine.model.forward_cache import CompletionKey, ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import LearnerSpec, LossType, SwarmSpec

GROUPS, SIZE, LENGTH = 4, 5, 7
SPEC = LearnerSpec(epsilon=0.1, epsilon_high=0.15, ratio_cap=1.5, kl_gate=1.0)


@dataclass(frozen=True)
class Pool:
    """GROUPS * SIZE rows of one to LENGTH tokens, of which some are dropped; the batch holds the kept ones."""

    batch: Batch
    lengths: list[int]
    expected: list[float]


def pool(apart: float = 0.6, **fields: object) -> Pool:
    """Log-probs of learner and generator differ by `apart`, as a standard deviation."""
    generator = torch.Generator().manual_seed(11)
    rows = GROUPS * SIZE
    lengths = torch.randint(1, LENGTH + 1, (rows,), generator=generator)
    lengths[0] = 1
    mask = (torch.arange(LENGTH)[None] < lengths[:, None]).double()
    logprobs = -2 * torch.rand(rows, LENGTH, generator=generator).double()
    shift = torch.randn(rows, LENGTH, generator=generator) + torch.randn(rows, 1, generator=generator) / 2
    old = logprobs - apart * shift
    kept = torch.rand(rows, generator=generator) < 0.8
    expected = []  # by its formula, one row at a time
    for row in range(rows):
        first = row - row % SIZE
        q = [
            math.exp(sum(old[i, t].item() for t in range(lengths[i])) / int(lengths[i]))
            for i in range(first, first + SIZE)
            if kept[i]
        ]
        expected.append(sum(each**2 for each in q) / sum(q))
    given = {
        "logprobs": (logprobs * mask)[kept].requires_grad_(),
        "old_logprobs": (old * mask)[kept],
        "mask": mask[kept],
        "token_weights": 2 * torch.rand(rows, LENGTH, generator=generator).double()[kept],
        "advantages": torch.randn(rows, generator=generator).double()[kept],
        "pool_rows": int(kept.sum()),
        "max_length": LENGTH,
        "expected": torch.tensor(expected, dtype=torch.float64)[kept],
    }
    stay = [i for i in range(rows) if kept[i]]
    batch = Batch(**(given | fields))  # type: ignore[arg-type]
    return Pool(batch, [int(lengths[i]) for i in stay], [expected[i] for i in stay])


def gradient(given: Batch, loss: LossType, spec: LearnerSpec = SPEC) -> torch.Tensor:
    given.logprobs.grad = None
    LEARNERS[loss](given, spec).backward()  # type: ignore[no-untyped-call]
    assert given.logprobs.grad is not None
    return given.logprobs.grad.clone()


def clip(value: torch.Tensor, spec: LearnerSpec) -> torch.Tensor:
    assert spec.epsilon_high is not None
    if value < 1 - spec.epsilon:
        return torch.tensor(1 - spec.epsilon, dtype=torch.float64)
    return torch.tensor(1 + spec.epsilon_high, dtype=torch.float64) if value > 1 + spec.epsilon_high else value


def literal_ftis(given: Pool, spec: LearnerSpec) -> tuple[torch.Tensor, int, int]:
    """The loss, and how many rows were filtered and how many tokens truncated."""
    batch, total, filtered, truncated = given.batch, torch.zeros(()).double(), 0, 0
    assert batch.old_logprobs is not None
    for i, length in enumerate(given.lengths):
        divergence, row = 0.0, torch.zeros(()).double()
        for t in range(length):
            ratio = math.exp(batch.logprobs[i, t].item()) / math.exp(batch.old_logprobs[i, t].item())
            divergence += ratio - 1 - math.log(ratio)
        advantage = float(batch.advantages[i])
        if not (advantage > 0 or divergence < spec.kl_gate):
            advantage, filtered = 0.0, filtered + 1
        for t in range(length):
            p = batch.logprobs[i, t].exp()
            weight = min(p.item() / math.exp(batch.old_logprobs[i, t].item()), spec.ratio_cap)
            truncated += weight == spec.ratio_cap
            r = p / p.detach()
            row = row + batch.token_weights[i, t] * weight * torch.min(r * advantage, clip(r, spec) * advantage)
        total = total + row / length
    return -total / batch.pool_rows, filtered, truncated


def literal_gepo(given: Pool, spec: LearnerSpec) -> tuple[torch.Tensor, int, int]:
    """The loss, and how many rows were clipped from above and from below; for token weights of 1."""
    batch, total, above, below = given.batch, torch.zeros(()).double(), 0, 0
    for i, length in enumerate(given.lengths):
        mean = torch.zeros(()).double()
        for t in range(length):
            mean = mean + batch.logprobs[i, t] / length
        weight, advantage = mean.exp() / given.expected[i], batch.advantages[i]
        above += bool(weight > 1 + (spec.epsilon_high or 0) and advantage > 0)
        below += bool(weight < 1 - spec.epsilon and advantage < 0)
        total = total + torch.min(weight * advantage, clip(weight, spec) * advantage)
    return -total / batch.pool_rows, above, below


def literal_gspo(given: Pool, spec: LearnerSpec) -> tuple[torch.Tensor, int, int]:
    """The loss, and how many rows were clipped from above and from below; for token weights of 1."""
    batch, total, above, below = given.batch, torch.zeros(()).double(), 0, 0
    assert batch.old_logprobs is not None
    for i, length in enumerate(given.lengths):
        whole = torch.ones(()).double()
        for t in range(length):
            whole = whole * (batch.logprobs[i, t].exp() / batch.old_logprobs[i, t].exp())
        ratio, advantage = whole ** (1 / length), batch.advantages[i]
        above += bool(ratio > 1 + (spec.epsilon_high or 0) and advantage > 0)
        below += bool(ratio < 1 - spec.epsilon and advantage < 0)
        total = total + torch.min(ratio * advantage, clip(ratio, spec) * advantage)
    return -total / batch.pool_rows, above, below


def assert_equal_to(literal: torch.Tensor, given: Batch, loss: LossType) -> None:
    made = LEARNERS[loss](given, SPEC)
    torch.testing.assert_close(made, literal, rtol=1e-12, atol=1e-14, msg=f"the {loss} loss must be its formula's")
    (expected,) = torch.autograd.grad(literal, given.logprobs)
    torch.testing.assert_close(
        gradient(given, loss), expected, rtol=1e-12, atol=1e-14, msg=f"the {loss} gradient must be its formula's"
    )


def test_ftis_is_its_formula() -> None:
    given = pool()
    literal, filtered, truncated = literal_ftis(given, SPEC)
    negative = int((given.batch.advantages < 0).sum())
    assert 0 < filtered < negative, "the comparison means something only while some negative rows are filtered"
    assert 0 < truncated < given.batch.mask.sum(), "and some tokens truncated"
    assert_equal_to(literal, given.batch, "ftis")


@pytest.mark.parametrize(("loss", "formula"), [("gepo", literal_gepo), ("gspo", literal_gspo)])
def test_ratios_of_completions_are_their_formula(loss: LossType, formula: object) -> None:
    given = pool()
    given = replace(given, batch=replace(given.batch, token_weights=torch.ones_like(given.batch.mask)))
    literal, above, below = formula(given, SPEC)  # type: ignore[operator]
    assert above
    assert below
    assert above + below < len(given.lengths), "the comparison means something only while some rows are clipped"
    assert_equal_to(literal, given.batch, loss)


def test_expectation_is_its_formula() -> None:
    generator = torch.Generator().manual_seed(2)
    mean = -3 * torch.rand(6, 8, generator=generator)
    kept = torch.rand(6, 8, generator=generator) < 0.7
    made = group_expectation(mean, kept)
    for group in range(6):
        q = [math.exp(mean[group, i]) for i in range(8) if kept[group, i]]
        expected = sum(each**2 for each in q) / sum(q)
        assert made[group].tolist() == pytest.approx([expected] * 8), "sum q^2 / sum q over the kept rows, for all rows"


def test_expectation_of_the_improbable() -> None:
    everyone = torch.ones(1, 3, dtype=torch.bool)
    assert group_expectation(torch.full((1, 3), -90.0), everyone)[0, 0] == pytest.approx(math.exp(-90), rel=1e-3)
    assert group_expectation(torch.full((1, 3), -1e4), everyone).tolist() == [[0.0] * 3], (
        "too small for a float, not NaN"
    )
    lone = group_expectation(torch.tensor([[-1e4, -0.5, -1e4]]), everyone)
    assert lone[0].tolist() == pytest.approx([math.exp(-0.5)] * 3), "the expectation follows the probable completions"
    assert group_expectation(torch.zeros(1, 3), ~everyone).tolist() == [[1.0] * 3], "no kept row, nothing to divide"


@pytest.mark.parametrize("cap", [1.0, 2.0])
def test_ftis_of_equal_models_is_grpo(cap: float) -> None:
    given = pool(apart=0.0).batch
    spec = LearnerSpec(ratio_cap=cap, kl_gate=1e-6)
    torch.testing.assert_close(gradient(given, "ftis", spec), gradient(given, "grpo", spec))


@pytest.mark.parametrize("loss", ["ftis", "gepo", "gspo"])
def test_without_old_logprobs_all_are_grpo(loss: LossType) -> None:
    given = replace(pool().batch, old_logprobs=None, expected=None)
    torch.testing.assert_close(gradient(given, loss), gradient(given, "grpo"), msg="without them q is pi")


@pytest.mark.parametrize("loss", ["gepo", "gspo"])
def test_a_group_of_equal_logprobs_is_grpo(loss: LossType) -> None:
    given = pool().batch
    same = torch.full_like(given.mask, -0.7)
    equal = replace(
        given, logprobs=same.clone().requires_grad_(), old_logprobs=same,
        expected=torch.full_like(given.advantages, math.exp(-0.7)),
    )  # fmt: skip
    torch.testing.assert_close(gradient(equal, loss), gradient(replace(equal, old_logprobs=None), "grpo"))


def test_gepo_of_equally_probable_completions_is_gspo() -> None:
    """Learner and generator differ; the completions of a group are equally probable to the generator."""
    given = pool().batch
    assert given.old_logprobs is not None
    equal = replace(given, old_logprobs=-0.7 * given.mask, expected=torch.full_like(given.advantages, math.exp(-0.7)))
    assert gradient(equal, "gspo").any()
    torch.testing.assert_close(gradient(equal, "gepo"), gradient(equal, "gspo"), msg="E_q[q] is then each row's own q")


def test_a_tiny_gate_drops_exactly_the_negative_rows() -> None:
    given = pool().batch
    made = gradient(given, "ftis", LearnerSpec(kl_gate=1e-9))
    assert (given.advantages < 0).any()
    for row, advantage in zip(made, given.advantages.tolist(), strict=True):
        assert row.any() == (advantage > 0), "a foreign row teaches where it is better than its group, and not else"


def test_the_gate_lies_where_a_completion_is_foreign_to_the_learner() -> None:
    """30 tokens, each e^-3 times as probable to the learner as to the generator: about 2 nats each, 61 in all."""
    given = Batch(
        logprobs=torch.full((1, 30), -4.0, requires_grad=True), old_logprobs=torch.full((1, 30), -1.0),
        mask=torch.ones(1, 30), token_weights=torch.ones(1, 30), advantages=torch.tensor([-1.0]), pool_rows=1,
        max_length=30,
    )  # fmt: skip
    divergence = 30 * (math.exp(-3) - 1 + 3)
    assert 50 < divergence < 62
    assert not gradient(given, "ftis", LearnerSpec()).any(), "g = 50 filters it"
    assert gradient(given, "ftis", LearnerSpec(kl_gate=62.0)).any()
    assert gradient(replace(given, advantages=torch.tensor([1.0])), "ftis", LearnerSpec()).any(), "never a good one"


@pytest.mark.parametrize("told", [-3.0, -80.0, -1e4])
def test_understated_logprobs_get_exactly_the_cap(told: float) -> None:
    given = replace(pool().batch, advantages=torch.ones_like(pool().batch.advantages))
    lying = replace(given, old_logprobs=torch.full_like(given.mask, told))
    torch.testing.assert_close(
        gradient(lying, "ftis", LearnerSpec(ratio_cap=2.0)),
        2 * gradient(replace(given, old_logprobs=None), "grpo"),
        msg="whoever reports low log-probs is learned from C times as much, and no more",
    )


def test_one_token() -> None:
    """A completion of a single token: ratio of the token and of the completion are one."""
    given = Batch(
        logprobs=torch.tensor([[-0.4]], requires_grad=True), old_logprobs=torch.tensor([[-0.5]]),
        mask=torch.ones(1, 1), token_weights=torch.ones(1, 1), advantages=torch.tensor([2.0]), pool_rows=1,
        max_length=1, expected=torch.tensor([math.exp(-0.5)]),
    )  # fmt: skip
    spec = LearnerSpec()
    for learner in (grpo, gspo, gepo):
        assert learner(given, spec).item() == pytest.approx(-2 * math.exp(0.1))
    for loss in ("grpo", "gspo", "gepo", "ftis"):
        assert gradient(given, loss, spec).item() == pytest.approx(-2 * math.exp(0.1)), loss
    assert ftis(given, spec).item() == pytest.approx(-2 * math.exp(0.1))


@pytest.mark.parametrize("loss", get_args(LossType))
@pytest.mark.parametrize("stale", [True, False])
def test_a_cohort_gives_the_learners_own_gradient(
    loss: LossType,
    stale: bool,
    make_cohort: Callable[..., Cohort],
    load_other: Callable[..., Policy],
    pool: list[TrainingRow],
    prompts: list[list[int]],
    spec: SwarmSpec,
) -> None:
    """Chunks, equal rows and skipped rows in a cohort, against the pure function on the whole pool at once."""
    cohort = make_cohort(loss=loss, epsilon=0.1, epsilon_high=0.15, ratio_cap=1.5, kl_gate=20.0)
    temperature, asked = spec.sampling.temperature, prompts[: spec.prompts]

    def logprobs_of(policy: Policy) -> dict[CompletionKey, torch.Tensor]:
        made: dict[CompletionKey, torch.Tensor] = {}
        for chunk in ForwardCache(policy, asked).chunks([(row.prompt, row.targets) for row in pool]):
            made |= dict(zip(chunk.answers, torch.split(chunk.logprobs(temperature), chunk.counts), strict=True))
        return made

    told = {key: (0.1 * value - 2.5).tolist() for key, value in logprobs_of(load_other()).items()}
    lessons = [
        replace(
            row,
            kept=i % 7 != 3,
            token_weights=tuple(0.5 + t % 2 for t in range(len(row.targets))) if i % 3 == 0 else None,
            old_logprobs=tuple(told[row.prompt, row.targets]) if stale and i % 5 else None,
        )
        for i, row in enumerate(pool)
    ]
    advantages = cohort.advantages(lessons)
    cohort.accumulate(asked, lessons, advantages)
    made = {name: weight.grad.clone() for name, weight in cohort.weights.items() if weight.grad is not None}

    length = max(len(row.targets) for row in lessons)
    mask, weights = torch.zeros(len(lessons), length), torch.ones(len(lessons), length)
    for i, row in enumerate(lessons):
        mask[i, : len(row.targets)] = 1
        weights[i, : len(row.targets)] = torch.tensor(row.token_weights or [1.0] * len(row.targets))
    for weight in cohort.weights.values():
        weight.grad = None
    cache = ForwardCache(cohort.policy, asked)
    cache.expect([(row.prompt, row.targets) for row in lessons])
    flat: dict[CompletionKey, torch.Tensor] = {}
    for chunk in cache.training_chunks([(row.prompt, row.targets) for row in lessons]):
        flat |= dict(zip(chunk.answers, torch.split(chunk.logprobs(temperature), chunk.counts), strict=True))
    rows = [flat[row.prompt, row.targets] for row in lessons]
    logprobs = torch.stack([torch.cat([row, row.new_zeros(length - len(row))]) for row in rows])
    old = logprobs.detach().clone()
    expected = []
    for i, row in enumerate(lessons):
        if row.old_logprobs is not None:
            old[i, : len(row.targets)] = torch.tensor(row.old_logprobs)
    for i in range(len(lessons)):
        mates = [lessons[j] for j in range(len(lessons)) if j // spec.group == i // spec.group]
        q = [math.exp(sum(m.old_logprobs) / len(m.old_logprobs)) for m in mates if m.kept and m.old_logprobs]
        expected.append(sum(each**2 for each in q) / sum(q) if q else 1.0)
    batch = Batch(
        logprobs=logprobs, old_logprobs=old if stale else None, mask=mask, token_weights=weights,
        advantages=torch.tensor(advantages), pool_rows=sum(row.kept for row in lessons),
        pool_tokens=sum(len(row.targets) for row in lessons if row.kept), max_length=spec.sampling.max_new_tokens,
        expected=torch.tensor(expected) if stale else None,
    )  # fmt: skip
    LEARNERS[loss](batch, cohort.spec.learner).backward()  # type: ignore[no-untyped-call]
    cache.backward()
    assert made, "there is a gradient"
    for name, gradient in made.items():
        whole = cohort.weights[name].grad
        assert whole is not None
        assert torch.allclose(gradient, whole, rtol=1e-3, atol=1e-6), f"the gradient of {name} is the learner's"
