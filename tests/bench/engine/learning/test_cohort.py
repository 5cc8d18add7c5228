from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from thiefbench.defenses.anchors import AcceptAll, RejectAll
from thiefbench.defenses.base import DefenderView, Defense, Verdict
from thiefbench.engine.learning.cohort import Cohort, Step, TrainingRow
from thiefbench.engine.learning.grpo import group_advantages
from thiefbench.engine.model.forward_cache import CompletionKey, ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import LossType, SwarmSpec
from thiefbench.engine.swarm import Swarm

Tensors = dict[str, torch.Tensor]
Call = tuple[list[list[int]], list[TrainingRow]]


class Mixed(Defense):
    """Every kind of verdict: accepts, zeroes, drops, and halves the weight of every second token."""

    name = "mixed"

    def inspect(self, view: DefenderView) -> list[Verdict]:
        verdicts = []
        for i, offered in enumerate(view.completions):
            weights = tuple(1.0 - 0.5 * (t % 2) for t in range(len(offered.ids) + offered.ended))
            verdicts.append((Verdict(), Verdict("zero"), Verdict("drop"), Verdict(token_weights=weights))[i % 4])
        return verdicts


def copied(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def assert_bit_equal(one: Tensors, other: Tensors, rule: str) -> None:
    assert one.keys() == other.keys()
    differing = [name for name in one if not torch.equal(one[name], other[name])]
    assert not differing, f"{rule}; these differ: {differing}"


def gradient(
    cohort: Cohort, prompts: Sequence[Sequence[int]], pool: Sequence[TrainingRow], advantages: Sequence[float]
) -> Tensors:
    for weight in cohort.policy.weights().values():
        weight.grad = None
    cohort.accumulate(prompts, pool, advantages)
    return {name: weight.grad.clone() for name, weight in cohort.policy.weights().items() if weight.grad is not None}


def relative(one: Tensors, other: Tensors) -> float:
    apart = sum((one[name] - other[name]).square().sum() for name in other)
    return float((apart / sum(g.square().sum() for g in other.values())) ** 0.5)


@pytest.mark.parametrize("topology", ["horizontal", "vertical"])
def test_separate_nodes_end_bit_equal_to_the_cohort(
    topology: str,
    build_swarm: Callable[..., Swarm],
    load_policy: Callable[..., Policy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three honest nodes with models of their own, fed what the cohort was fed, are the cohort."""
    calls: list[Call] = []
    update = Cohort.update

    def watched(self: Cohort, prompts: list[list[int]], lessons: list[TrainingRow], reading: ForwardCache) -> Step:
        calls.append((prompts, lessons))
        return update(self, prompts, lessons, reading)

    monkeypatch.setattr(Cohort, "update", watched)
    swarm = build_swarm(topology=topology, defense=Mixed())
    records = [swarm.round(number) for number in range(1, 5)]
    monkeypatch.undo()

    assert len(calls) == 4
    assert all(record.grad_norm > 0 for record in records), "every round must have something to learn"
    for _ in range(3):
        node = Cohort(load_policy(), swarm.spec, AcceptAll())
        for prompts, lessons in calls:
            node.update(prompts, lessons)
        assert_bit_equal(node.state(), swarm.cohort.state(), "a node fed the same pool and verdicts equals its cohort")


@pytest.mark.parametrize("role", ["attack", "control"])
def test_reject_all_leaves_weights_bit_unchanged(role: str, build_swarm: Callable[..., Swarm]) -> None:
    swarm = build_swarm(role, defense=RejectAll())
    before = copied(dict(swarm.policy.weights()))
    for number in (1, 2):
        record = swarm.round(number)
        assert record.grad_norm == 0
        assert all(row.advantage == 0 for row in record.rows)
    assert_bit_equal(dict(swarm.policy.weights()), before, "a swarm that rejects everything learns nothing")


def test_an_empty_update_leaves_optimizer_momentum_out(
    make_cohort: Callable[..., Cohort], prompts: list[list[int]], pool: list[TrainingRow]
) -> None:
    """Momentum of earlier rounds must not move the weights in a round without any advantage."""
    cohort = make_cohort()
    cohort.update(prompts[:4], pool)
    before = copied(cohort.state())
    step = cohort.update(prompts[:4], [replace(lesson, reward=0.0) for lesson in pool])
    assert (step.grad_norm, set(step.advantages)) == (0.0, {0.0})
    assert_bit_equal(cohort.state(), before, "where no group has two different rewards nothing is updated")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_restored_cohort_goes_on_as_the_live_one(
    dtype: str, make_cohort: Callable[..., Cohort], prompts: list[list[int]], pool: list[TrainingRow]
) -> None:
    live = make_cohort(dtype=dtype)
    for _ in range(2):
        live.update(prompts[:4], pool)
    saved = copied(live.state())
    again = make_cohort(dtype=dtype)
    again.restore(copied(saved))
    assert_bit_equal(again.state(), saved, "restore takes back exactly what state gave")
    assert_bit_equal(
        dict(again.policy.weights()), dict(live.policy.weights()), "the restored policy is the one that was saved"
    )
    for _ in range(2):
        live_step, again_step = live.update(prompts[:4], pool), again.update(prompts[:4], pool)
        assert live_step == again_step
    assert_bit_equal(again.state(), live.state(), "after a restart the next updates are bit-equal")
    assert_bit_equal(dict(again.policy.weights()), dict(live.policy.weights()), "and so are the weights")


def test_restoring_before_the_first_update(
    make_cohort: Callable[..., Cohort], prompts: list[list[int]], pool: list[TrainingRow]
) -> None:
    live, again = make_cohort(), make_cohort()
    again.restore(copied(live.state()))
    live.update(prompts[:4], pool)
    again.update(prompts[:4], pool)
    assert_bit_equal(again.state(), live.state(), "a checkpoint of round 0 goes on like a fresh start")


def test_small_steps_do_not_vanish_in_bfloat16(
    make_cohort: Callable[..., Cohort], prompts: list[list[int]], pool: list[TrainingRow]
) -> None:
    cohort = make_cohort(dtype="bfloat16", learning_rate=1e-6)
    before = copied(cohort.state())
    cohort.update(prompts[:4], pool)
    after = cohort.state()
    weights = [name for name in before if name.startswith("weight/")]
    moved = [name for name in weights if not torch.equal(before[name], after[name])]
    assert moved == weights, "steps below bfloat16's resolution add up in float32 masters"


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo"])
def test_skipping_rows_without_advantage_leaves_the_gradient(
    loss: LossType, make_cohort: Callable[..., Cohort], prompts: list[list[int]], pool: list[TrainingRow]
) -> None:
    cohort = make_cohort(loss=loss)
    advantages = cohort.advantages(pool)
    idle = [i for i, advantage in enumerate(advantages) if advantage == 0]
    assert 0 < len(idle) < len(pool), "one group of the pool must be without variance"
    skipped = gradient(cohort, prompts, pool, advantages)
    # 1e-38 is not 0 and too small to change a gradient: these rows now take the whole way.
    included = gradient(cohort, prompts, pool, [advantage or 1e-38 for advantage in advantages])
    assert relative(skipped, included) <= 1e-6, "a row with advantage 0 has gradient 0, and still counts in the mean"


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo"])
def test_token_weights_in_the_update(
    loss: LossType, make_cohort: Callable[..., Cohort], prompts: list[list[int]], pool: list[TrainingRow]
) -> None:
    cohort = make_cohort(loss=loss)
    advantages = cohort.advantages(pool)
    whole = gradient(cohort, prompts, pool, advantages)

    def weighted(factor: Callable[[int], float]) -> Tensors:
        lessons = [
            replace(lesson, token_weights=tuple(factor(t) for t in range(len(lesson.targets)))) for lesson in pool
        ]
        return gradient(cohort, prompts, lessons, advantages)

    halves = weighted(lambda _: 0.5)
    assert relative({n: 2 * g for n, g in halves.items()}, whole) <= 1e-5, "weights of 1/2 halve the gradient"
    even, odd = weighted(lambda t: float(t % 2 == 0)), weighted(lambda t: float(t % 2))
    assert relative({n: even[n] + odd[n] for n in even}, whole) <= 1e-5, "the divisor stays the length: parts add up"


def test_dropped_rows_are_not_in_the_mean(
    make_cohort: Callable[..., Cohort], prompts: list[list[int]], pool: list[TrainingRow], spec: SwarmSpec
) -> None:
    """Dropping one whole group equals a pool without that group."""
    cohort = make_cohort()
    size = spec.group
    dropped = [replace(lesson, kept=lesson.prompt != 1) for lesson in pool]
    without = [lesson for lesson in pool if lesson.prompt != 1]
    made = gradient(cohort, prompts, dropped, cohort.advantages(dropped))
    expected = gradient(cohort, prompts, without, cohort.advantages(without))
    assert len(without) == len(pool) - size
    assert relative(made, expected) <= 1e-6, "dropped rows are in no mean, that over the pool included"


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo"])
def test_a_skipped_row_counts_in_its_groups_mean_and_in_nothing_else(
    loss: LossType, make_cohort: Callable[..., Cohort], prompts: list[list[int]], pool: list[TrainingRow]
) -> None:
    cohort = make_cohort(loss=loss)
    skipped = [replace(lesson, learned=i % 3 != 0) for i, lesson in enumerate(pool)]
    everyone, advantages = cohort.advantages(pool), cohort.advantages(skipped)
    assert advantages == [0.0 if i % 3 == 0 else advantage for i, advantage in enumerate(everyone)]
    assert any(everyone[::3]), "the test means something only if rows with an advantage are skipped"
    made = gradient(cohort, prompts, skipped, advantages)
    rows = [i for i in range(len(pool)) if i % 3]
    sent = gradient(cohort, prompts, [pool[i] for i in rows], [everyone[i] for i in rows])
    assert relative(made, sent) <= 1e-6, "the update is that of a pool without them, whose advantages were known"


def test_a_skipped_row_is_like_a_masked_one_but_for_the_divisor(
    make_cohort: Callable[..., Cohort], prompts: list[list[int]], pool: list[TrainingRow]
) -> None:
    cohort = make_cohort()
    masked = [
        replace(row, token_weights=(0.0,) * len(row.targets)) if i % 3 == 0 else row for i, row in enumerate(pool)
    ]
    skipped = [replace(row, learned=i % 3 != 0) for i, row in enumerate(pool)]
    silent = gradient(cohort, prompts, masked, cohort.advantages(masked))
    made = gradient(cohort, prompts, skipped, cohort.advantages(skipped))
    share = sum(row.learned for row in skipped) / len(pool)
    assert relative({name: share * g for name, g in made.items()}, silent) <= 1e-5


def test_skipping_everything_changes_nothing(
    make_cohort: Callable[..., Cohort], prompts: list[list[int]], pool: list[TrainingRow]
) -> None:
    cohort = make_cohort(kl=0.5)
    before = cohort.state()
    step = cohort.update(prompts, [replace(row, learned=False) for row in pool])
    assert step.grad_norm == 0 and not any(step.advantages)
    after = cohort.state()
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("weight/"))


def test_advantages_are_per_group(make_cohort: Callable[..., Cohort], pool: list[TrainingRow], spec: SwarmSpec) -> None:
    kept = [replace(lesson, kept=i % 3 != 0) for i, lesson in enumerate(pool)]
    rewards = torch.tensor([lesson.reward for lesson in kept]).view(-1, spec.group)
    stays = torch.tensor([lesson.kept for lesson in kept]).view(-1, spec.group)
    assert make_cohort().advantages(kept) == group_advantages(rewards, stays).flatten().tolist()


def test_an_empty_completion_teaches_nothing_but_counts(
    make_cohort: Callable[..., Cohort], prompts: list[list[int]], pool: list[TrainingRow]
) -> None:
    cohort = make_cohort()
    advantages = cohort.advantages(pool)
    row = next(i for i, advantage in enumerate(advantages) if advantage < 0)
    refused = [replace(lesson, targets=()) if i == row else lesson for i, lesson in enumerate(pool)]
    made = gradient(cohort, prompts, refused, advantages)
    expected = gradient(cohort, prompts, pool, [0.0 if i == row else a for i, a in enumerate(advantages)])
    assert_bit_equal(made, expected, "an empty row has no tokens to learn from; the others keep their weight")


def test_gradient_norm_is_clipped(
    make_cohort: Callable[..., Cohort], prompts: list[list[int]], pool: list[TrainingRow]
) -> None:
    cohort = make_cohort(max_grad_norm=1e-3)
    expected = gradient(cohort, prompts, pool, cohort.advantages(pool))
    norm = float(sum(g.square().sum() for g in expected.values()) ** 0.5)
    assert norm > 1e-3
    step = cohort.update(prompts[:4], pool)
    assert step.grad_norm == pytest.approx(norm, rel=1e-4), "the norm that is reported is the one before clipping"
    left = sum(w.grad.square().sum() for w in cohort.policy.weights().values() if w.grad is not None)
    assert float(left**0.5) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo"])
def test_a_kl_term_measures_the_way_from_the_start_model(
    loss: LossType, make_cohort: Callable[..., Cohort], prompts: list[list[int]], pool: list[TrainingRow]
) -> None:
    pool = [replace(lesson, kept=i % 5 != 0) for i, lesson in enumerate(pool)]
    free, held = make_cohort(loss=loss), make_cohort(loss=loss, kl=0.5, learning_rate=1e-4)
    advantages = held.advantages(pool)
    apart = relative(gradient(held, prompts, pool, advantages), gradient(free, prompts, pool, advantages))
    assert apart <= 1e-5, "at the start model the KL divergence has its minimum"

    before = read(held.policy, prompts, pool)
    with torch.no_grad():
        held.policy.weights()["model.norm.weight"].mul_(1.2)
    after = read(held.policy, prompts, pool)
    rows = [(lesson.prompt, lesson.targets) for lesson in pool if lesson.kept and lesson.targets]
    divergence = [(before[row] - after[row]).exp() - (before[row] - after[row]) - 1 for row in rows]
    limit = held.spec.sampling.max_new_tokens
    told = sum(float(d.mean()) if loss == "grpo" else float(d.sum()) / limit for d in divergence)
    silent = [0.0] * len(pool)
    value = held.accumulate(prompts, pool, silent)
    assert value == pytest.approx(0.5 * told / sum(lesson.kept for lesson in pool), rel=1e-4)
    held.update(prompts, [replace(lesson, reward=1.0) for lesson in pool])
    assert held.accumulate(prompts, pool, silent) < value, "an update without any advantage goes back to the start"


def read(policy: Policy, prompts: list[list[int]], pool: Sequence[TrainingRow]) -> dict[CompletionKey, torch.Tensor]:
    made: dict[CompletionKey, torch.Tensor] = {}
    for chunk in ForwardCache(policy, prompts).chunks((lesson.prompt, lesson.targets) for lesson in pool):
        made |= dict(zip(chunk.answers, chunk.logprobs(1.0).split(chunk.counts), strict=True))
    return made
