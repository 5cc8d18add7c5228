"""Updates that waited give the bits of those that did not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from tests.bench.engine.conftest import same_weights
from thiefbench.defenses.anchors import AcceptAll
from thiefbench.engine.learning.cohort import Cohort, TrainingRow
from thiefbench.engine.learning.deferred import DeferringCohort
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import LearnerSpec, SwarmSpec

Cohorts = tuple[Cohort, DeferringCohort]


@pytest.fixture(params=[0.0, 0.1])
def cohorts(request: pytest.FixtureRequest, load_policy: Callable[..., Policy], spec: SwarmSpec) -> Cohorts:
    """One that updates at once and one that lets its updates wait, with a KL term and without."""
    learner = LearnerSpec(learning_rate=1e-3, kl=request.param)
    made = replace(spec, learner=learner)
    deferring = DeferringCohort(load_policy(), made, AcceptAll(), range(3), 0, 0)
    deferring.defers = True
    return Cohort(load_policy(), made, AcceptAll(), range(3)), deferring


def pools(pool: Sequence[TrainingRow]) -> list[list[TrainingRow]]:
    """Four rounds: the pool, with some rows dropped, with other rewards, and with nothing to learn."""
    return [
        list(pool),
        [replace(row, kept=bool(i % 5)) for i, row in enumerate(pool)],
        [replace(row, reward=float(i % 3)) for i, row in enumerate(pool)],
        [replace(row, reward=1.0) for row in pool],
    ]


def owe(cohort: DeferringCohort, prompts: list[list[int]], rounds: list[list[TrainingRow]], norms: list[float]) -> None:
    for number, (rows, norm) in enumerate(zip(rounds, norms, strict=True), 1):
        cohort.update(prompts, rows)
        assert cohort.settle(number, norm) == norm


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in policy.weights().items()}


@pytest.mark.parametrize("touch", ["weights", "prefill", "deepcopy", "state", "update"])
def test_whoever_gets_hold_of_the_model_finds_it_up_to_date(
    touch: str, cohorts: Cohorts, pool: list[TrainingRow], prompts: list[list[int]]
) -> None:
    at_once, later = cohorts
    rounds = pools(pool)
    steps = [at_once.update(prompts, rows) for rows in rounds]
    start = later.state_before_owed()["weight/" + next(iter(later.masters))].clone()
    owe(later, prompts, rounds, [step.grad_norm for step in steps])
    assert len(later.owed) == len(rounds)
    assert torch.equal(start, later.state_before_owed()["weight/" + next(iter(later.masters))]), "they wait"
    if touch == "prefill":
        with torch.inference_mode():
            later.policy.prefill(prompts[:2])
    elif touch == "deepcopy":
        copied = copy.deepcopy(later.policy)
        assert copied.before_use is None
    elif touch == "state":
        later.state()
    elif touch == "update":
        later.defers = False
        assert later.update(prompts, rounds[1]) == at_once.update(prompts, rounds[1])
    assert same_weights(weights(at_once.policy), weights(later.policy))
    moments = [cohort.state() for cohort in cohorts]
    assert moments[0].keys() == moments[1].keys()
    assert all(torch.equal(moments[0][name], moments[1][name]) for name in moments[0])
    assert later.reproduced


@pytest.mark.parametrize("kept", [1, 2, 4])
def test_a_kept_state_stands_for_the_updates_before_it(
    kept: int, cohorts: Cohorts, pool: list[TrainingRow], prompts: list[list[int]]
) -> None:
    at_once, later = cohorts
    rounds = pools(pool)
    norms, states = [], {}
    for number, rows in enumerate(rounds, 1):
        norms.append(at_once.update(prompts, rows).grad_norm)
        states[number] = {name: tensor.detach().clone() for name, tensor in at_once.state().items()}
    owe(later, prompts, rounds, norms)
    later.kept = lambda owed: (kept, states[kept])
    with torch.inference_mode():
        later.policy.prefill(prompts[:2])
    later.defers = False
    assert later.update(prompts, rounds[1]) == at_once.update(prompts, rounds[1])
    assert same_weights(weights(at_once.policy), weights(later.policy))
    assert later.reproduced


def test_looking_at_what_no_update_changes_makes_none(
    cohorts: Cohorts, pool: list[TrainingRow], prompts: list[list[int]]
) -> None:
    _, later = cohorts
    owe(later, prompts, [pool], [1.0])
    policy = later.policy
    assert (policy.device, policy.dtype, policy.config.vocab_size) == (
        torch.device("cpu"),
        torch.float32,
        policy.vocabulary,
    )
    assert policy.decode([policy.encode("a")])
    assert later.owed, "it still waits"


def test_another_gradient_norm_is_noticed(cohorts: Cohorts, pool: list[TrainingRow], prompts: list[list[int]]) -> None:
    _, later = cohorts
    owe(later, prompts, [pool], [1.0])
    later.catch_up()
    assert not later.reproduced
