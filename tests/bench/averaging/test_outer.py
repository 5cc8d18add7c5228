"""The outer steps against torch's optimizer and the numbers of the authors' code."""

from __future__ import annotations

import pytest
import torch

from thiefbench.averaging.outer import NodeState, Outer
from thiefbench.averaging.spec import AveragingSpec
from thiefbench.engine.spec import SpecError, SwarmSpec


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def test_a_noloco_step_gives_the_numbers_of_the_authors_code() -> None:
    """`outer_step` of src/noloco/sparse_optimizer_c.py, two processes, outer_lr 0.7 and outer_momentum 0.5."""
    outer = Outer(AveragingSpec("noloco"))
    states = [
        NodeState(vector(1.0, -2.0, 0.5), vector(0.2, -0.4, 0.1)),
        NodeState(vector(3.0, 0.0, -1.5), vector(-0.3, 0.6, -0.2)),
    ]
    trained = [vector(0.6, -1.0, 0.25), vector(2.4, -0.5, -0.75)]
    expected = [
        ([0.45, 0.675, -0.475], [1.45, -1.325, 0.025]),
        ([-1.2, -0.225, 0.775], [1.8, -0.225, -0.725]),
    ]
    own = [outer.own(state, weights) for state, weights in zip(states, trained, strict=True)]
    messages = [outer.sent(each, state.slow) for each, state in zip(own, states, strict=True)]
    for node, (momentum, slow) in enumerate(expected):
        read = outer.received(messages[1 - node], states[node].slow)
        after = outer.adopted(states[node], (own[node] + read) / 2)
        assert after.momentum.tolist() == pytest.approx(momentum, abs=1e-6)
        assert after.slow.tolist() == pytest.approx(slow, abs=1e-6)


def test_diloco_steps_are_those_of_torch() -> None:
    """Three outer steps of SGD with Nesterov momentum on the mean pseudo-gradient."""
    outer, generator = Outer(AveragingSpec("diloco")), torch.Generator().manual_seed(0)
    slow = torch.randn(5, generator=generator)
    theirs = torch.nn.Parameter(slow.clone())
    optimizer = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True)
    state = NodeState(slow, torch.zeros(5))
    for _ in range(3):
        trained = [state.slow + 0.1 * torch.randn(5, generator=generator) for _ in range(3)]
        messages = [outer.sent(outer.own(state, weights), state.slow) for weights in trained]
        aggregate = torch.stack([outer.received(message, state.slow) for message in messages]).mean(0)
        theirs.grad = torch.stack([theirs.detach() - weights for weights in trained]).mean(0)
        optimizer.step()
        state = outer.adopted(state, aggregate)
        assert state.slow.tolist() == pytest.approx(theirs.tolist(), abs=1e-6)


def test_the_mean_is_the_mean_of_all_weights() -> None:
    outer = Outer(AveragingSpec("mean"))
    state, trained = NodeState(vector(1.0, 1.0), vector(0.0, 0.0)), [vector(2.0, 0.0), vector(4.0, 6.0)]
    read = [outer.received(outer.sent(outer.own(state, each), state.slow), state.slow) for each in trained]
    assert outer.adopted(state, torch.stack(read).mean(0)).slow.tolist() == [3.0, 3.0]


def test_the_defaults_are_the_papers() -> None:
    assert (AveragingSpec("diloco").outer_lr, AveragingSpec("diloco").outer_momentum) == (0.7, 0.9)
    noloco = AveragingSpec("noloco")
    assert (noloco.outer_lr, noloco.outer_momentum, noloco.outer_mixing) == (0.7, 0.5, 0.7)
    assert AveragingSpec("noloco", momentum=0.0, mixing=0.1).outer_mixing == 0.1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"method": "gossip"}, "method must be one of mean, diloco, noloco"),
        ({"every": 0}, "averaging.every must be at least 1"),
        ({"outer_lr": 0.0}, "outer_lr must be above 0"),
        ({"outer_lr": float("nan")}, "outer_lr must be above 0"),
        ({"momentum": 1.0}, "momentum must lie in"),
        ({"mixing": -1.0}, "mixing must be at least 0"),
        ({"held_out": 0}, "held_out must be at least 1"),
    ],
)
def test_impossible_settings_are_refused_in_words(fields: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        AveragingSpec(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("swarm", "words"),
    [
        (SwarmSpec(), "set topology: vertical"),
        (SwarmSpec(topology="vertical", nodes=1, malicious=0), "at least 2 nodes"),
        (SwarmSpec(topology="vertical", nodes=3, prompts=33), "must be even, got 3"),
        (SwarmSpec(topology="vertical", truth="sender"), "leave out truth"),
    ],
)
def test_swarms_that_cannot_exchange_weights_are_refused(swarm: SwarmSpec, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        AveragingSpec("noloco").check(swarm)
