"""One forward pass for the defense and the update, against plain passes row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from thiefbench.defenses.base import PoolCompletion
from thiefbench.engine.learning.cohort import Cohort, TrainingRow
from thiefbench.engine.model import forward_cache as module
from thiefbench.engine.model.forward_cache import CompletionKey, ForwardCache, token_logprobs
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.views.defender import DefenderPolicy


@pytest.fixture
def answers(pool: list[TrainingRow]) -> list[CompletionKey]:
    return [(lesson.prompt, lesson.targets) for lesson in pool]


def logits_of(cache: ForwardCache, answers: Sequence[CompletionKey]) -> dict[CompletionKey, torch.Tensor]:
    made: dict[CompletionKey, torch.Tensor] = {}
    for chunk in cache.chunks(answers):
        logits = chunk.per_block(lambda logits, targets: logits)
        made |= dict(zip(chunk.answers, logits.split(chunk.counts), strict=True))
    return made


@torch.no_grad()
def test_logits_equal_the_plain_ones(
    policy: Policy, prompts: list[list[int]], answers: list[CompletionKey], plain_logits: Callable[..., torch.Tensor]
) -> None:
    made = logits_of(ForwardCache(policy, prompts), answers)
    assert set(made) == set(answers)
    for (prompt, ids), logits in made.items():
        torch.testing.assert_close(logits, plain_logits(policy, prompts[prompt], ids), rtol=0, atol=1e-4)


def test_gradients_equal_plain_autograd(
    load_policy: Callable[..., Policy],
    prompts: list[list[int]],
    answers: list[CompletionKey],
    plain_logits: Callable[..., torch.Tensor],
) -> None:
    factors = dict(zip(answers, torch.randn(len(answers), generator=torch.Generator().manual_seed(3)), strict=True))
    shared, plain = load_policy(), load_policy()
    cache = ForwardCache(shared, prompts)
    for chunk in cache.training_chunks(answers):
        parts = zip(chunk.answers, chunk.logprobs(0.7).split(chunk.counts), strict=True)
        sum(factors[answer] * part.sum() for answer, part in parts).backward()  # type: ignore[union-attr]
    cache.backward()
    for (prompt, ids), factor in factors.items():
        logprobs = (plain_logits(plain, prompts[prompt], ids) / 0.7).log_softmax(-1)
        (factor * logprobs.gather(1, torch.tensor(ids)[:, None]).sum()).backward()
    assert_gradients(shared, plain, 1e-5)


def assert_gradients(one: Policy, other: Policy, tolerance: float) -> None:
    for name, weight in other.weights().items():
        expected, made = weight.grad, one.weights()[name].grad
        assert expected is not None, f"{name} got no gradient"
        assert made is not None, f"{name} got no gradient"
        difference = float((made - expected).norm() / expected.norm())
        assert difference <= tolerance, f"the gradient of {name} is {difference:.1e} off, more than {tolerance}"


@pytest.mark.parametrize("kept", [0, 1 << 25], ids=["computed twice", "kept"])
@pytest.mark.parametrize("block", [1, 700, 1 << 20])
def test_token_logprobs_have_the_gradient_of_a_log_softmax(
    kept: int, block: int, load_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    resize(monkeypatch, block=block, blocks_kept=kept)
    policy = load_policy()
    policy.model.double()
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(9, 32, generator=generator, dtype=torch.double, requires_grad=True)
    targets = torch.randint(0, policy.vocabulary, (9,), generator=generator)
    slopes = torch.randn(9, generator=generator, dtype=torch.double)

    def gradients(logprobs: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(logprobs @ slopes, [hidden, policy.head_weight]))

    made = token_logprobs(policy, hidden, targets, 0.8)
    logits = hidden @ policy.head_weight.T / 0.8
    expected = logits.log_softmax(1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(made, expected)
    for one, other in zip(gradients(made), gradients(expected), strict=True):
        torch.testing.assert_close(one, other)


def test_chunks_and_blocks_change_nothing(
    policy: Policy, prompts: list[list[int]], answers: list[CompletionKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = logits_of(ForwardCache(policy, prompts), answers)
    assert len(list(ForwardCache(policy, prompts).chunks(answers))) == 1
    resize(monkeypatch, chunk=40, block=3 * policy.vocabulary)
    chunks = list(ForwardCache(policy, prompts).chunks(answers))
    assert len(chunks) > 5
    assert all(len(c.answers) * max(c.counts) <= 40 for c in chunks), "a chunk is bounded, padding included"
    for answer, logits in logits_of(ForwardCache(policy, prompts), answers).items():
        torch.testing.assert_close(logits, whole[answer], rtol=0, atol=1e-4)


def test_empty_answers_are_left_out_and_equal_ones_run_once(policy: Policy, prompts: list[list[int]]) -> None:
    cache = ForwardCache(policy, prompts)
    read = [chunk.answers for chunk in cache.chunks([(0, ()), (1, (5, 6)), (0, (5, 6)), (1, (5, 6))])]
    assert read == [[(0, (5, 6)), (1, (5, 6))]], "equal tokens of two prompts are two answers"
    assert list(cache.chunks([(0, ())])) == []
    assert list(cache.training_chunks([(0, ())])) == []


def test_equal_rows_count_as_often_as_they_occur(
    make_cohort: Callable[..., Cohort], prompts: list[list[int]], pool: list[TrainingRow], spec: SwarmSpec
) -> None:
    """Three equal rows of a group, run once, give the gradient of three rows run one by one."""
    size = spec.group
    doubled = [pool[i - i % size] if i % size in (3, 5) else lesson for i, lesson in enumerate(pool)]
    shared, apart = make_cohort(), make_cohort()
    advantages = shared.advantages(doubled)
    loss = shared.accumulate(prompts, doubled, advantages)
    losses = [
        apart.accumulate(prompts, doubled, [a if i == row else 0.0 for i, a in enumerate(advantages)])
        for row in range(len(doubled))
    ]
    assert sum(losses) == pytest.approx(loss, abs=1e-6)
    assert_gradients(shared.policy, apart.policy, 1e-5)


def test_an_update_after_a_defense_runs_nothing_again(
    make_cohort: Callable[..., Cohort],
    prompts: list[list[int]],
    pool: list[TrainingRow],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fresh, after = make_cohort(), make_cohort()
    advantages = fresh.advantages(pool)
    loss = fresh.accumulate(prompts, pool, advantages)
    answers = [(lesson.prompt, lesson.targets) for lesson in pool]
    cache = ForwardCache(after.policy, prompts, [a for a, taught in zip(answers, advantages, strict=True) if taught])
    view = view_of(cache, after.spec)
    completions = [offered(prompt, ids) for prompt, ids in answers]
    supported, logprobs = view.in_support(completions), view.token_logprobs(completions)
    passes = count_passes(after.policy, monkeypatch)
    assert after.accumulate(prompts, pool, advantages, cache) == pytest.approx(loss, abs=1e-6)
    assert passes == [], "every row that is learned from was read for the defense"
    assert_gradients(after.policy, fresh.policy, 1e-5)
    plain = view_of(ForwardCache(fresh.policy, prompts), fresh.spec)
    for one, other in zip(supported, plain.in_support(completions), strict=True):
        assert (one == other).all()
    for one, other in zip(logprobs, plain.token_logprobs(completions), strict=True):
        assert abs(one - other).max() <= 1e-4


def test_a_cache_too_large_to_keep_is_run_again(
    make_cohort: Callable[..., Cohort],
    prompts: list[list[int]],
    pool: list[TrainingRow],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resize(monkeypatch, graphs_kept=1000)
    fresh, after = make_cohort(), make_cohort()
    advantages = fresh.advantages(pool)
    fresh.accumulate(prompts, pool, advantages)
    answers = [(lesson.prompt, lesson.targets) for lesson in pool]
    cache = ForwardCache(after.policy, prompts, answers)
    list(cache.chunks(answers))
    passes = count_passes(after.policy, monkeypatch)
    after.accumulate(prompts, pool, advantages, cache)
    assert passes, "graphs beyond the limit are not held"
    assert_gradients(after.policy, fresh.policy, 1e-5)


def test_a_defense_gets_no_gradients(policy: Policy, prompts: list[list[int]], pool: list[TrainingRow]) -> None:
    answers = [(lesson.prompt, lesson.targets) for lesson in pool]
    view = view_of(ForwardCache(policy, prompts, answers), SwarmSpec())
    completions = [offered(prompt, ids) for prompt, ids in answers]
    states = view.hidden(completions)
    states[0][:] = 0
    assert abs(view.hidden(completions)[0]).max() > 0, "what a defense does to its copy does not reach the model"
    assert all(weight.grad is None for weight in policy.weights().values())


def resize(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    monkeypatch.setattr(module, "SIZES", {"cpu": replace(module.SIZES["cpu"], **sizes)})


def count_passes(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    passes: list[int] = []
    forward = policy.forward

    def counted(ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        passes.append(len(ids))
        return forward(ids, *rest)

    monkeypatch.setattr(policy, "forward", counted)
    return passes


def view_of(cache: ForwardCache, spec: SwarmSpec) -> DefenderPolicy:
    return DefenderPolicy(cache, spec.sampling, {str(i): i for i in range(len(cache.prompts))}, (5, 1))


def offered(prompt: int, ids: tuple[int, ...]) -> PoolCompletion:
    return PoolCompletion(str(prompt), 0, 0, "someone", ids, "", False, 1.0)
