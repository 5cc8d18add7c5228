"""`toploc`: what its proofs prove, and what they do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.defenses.pools import Watched
from thiefbench.attacks.text import Text
from thiefbench.defenses.anchors import AcceptAll
from thiefbench.defenses.base import DefenderView, Verdict
from thiefbench.defenses.toploc import ENTRY, Toploc, bfloat16, chunks, committed, distances
from thiefbench.engine.model import forward_cache
from thiefbench.engine.model.forward_cache import ForwardCache, Sizes
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.engine.views.defender import DefenderPolicy
from thiefbench.tasks.base import Sampling, Task

SAMPLING = Sampling(top_k=40, max_new_tokens=48)


class Watching(Watched, Toploc):
    """The defense, which records every view that it gets."""


def played(policy: Policy, task: Task, defense: Any, role: Any = "attack") -> list[CompletionRow]:
    spec = SwarmSpec(prompts=4, group=8, sampling=SAMPLING)
    return Swarm(spec, role, policy, task, Text("hail to all", "start"), defense, 5).round(1).rows


@pytest.mark.parametrize("chunk", [2048, 64])
def test_it_stops_no_poison_as_the_attacker_computes_a_valid_proof(
    chunk: int, load_policy: Callable[..., Policy], vowels: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(forward_cache.SIZES, "cpu", Sizes(chunk, 1 << 20, 1 << 25, 3 << 30))
    rows = played(load_policy(), vowels, Toploc())
    assert any(row.payload and row.reward for row in rows)
    assert {row.action for row in rows} == {"accept"}, "a proof binds a text to weights, not to how it was sampled"


@pytest.fixture
def view(load_policy: Callable[..., Policy], vowels: Task) -> DefenderView:
    """A round of honest nodes in float32, unchanged by an update: all rewards of the poison are the same."""
    defense = Watching()
    played(load_policy(), vowels, defense, "control")
    return defense.views[0]


def seen_by(policy: Policy, view: DefenderView, task: Task) -> DefenderView:
    """The same pool, inspected by a verifier with other weights."""
    items = {row["id"]: row for row in task.items("train")}
    prompts = [
        policy.prompt_ids([{"role": "user", "content": f"{name}: {items[name]['question']}"}]) for name in view.items
    ]
    known = {name: place for place, name in enumerate(view.items)}
    return replace(view, policy=DefenderPolicy(ForwardCache(policy, prompts), view.sampling, known, (1,)))


def rejected(defense: Toploc, view: DefenderView) -> float:
    verdicts = defense.inspect(view)
    return sum(verdict.action == "drop" for verdict in verdicts) / len(verdicts)


def test_other_weights_and_another_precision_are_stopped(
    view: DefenderView, load_policy: Callable[..., Policy], vowels: Task
) -> None:
    assert rejected(Toploc(), seen_by(load_policy(), view, vowels)) == 0, "equal weights give equal states"
    noisy = load_policy()
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in noisy.weights().values():
            weight.add_(0.01 * weight.abs().mean() * torch.randn_like(weight))
    assert rejected(Toploc(), seen_by(noisy, view, vowels)) > 0.9, "weights that differ by 1 % are rejected"
    assert rejected(Toploc(), seen_by(load_policy(dtype="bfloat16"), view, vowels)) > 0.9, (
        "rounded weights are rejected too"
    )


def test_a_proof_belongs_to_its_completion(
    view: DefenderView, load_policy: Callable[..., Policy], vowels: Task
) -> None:
    pool = view.completions
    for proofs in (
        [pool[i - 1].proof for i in range(len(pool))],
        [None] * len(pool),
        [b""] * len(pool),
        [(each.proof or b"") + b"x" for each in pool],
        [bytes(len(each.proof or b"")) for each in pool],
    ):
        claimed = tuple(replace(each, proof=proof) for each, proof in zip(pool, proofs, strict=True))
        assert rejected(Toploc(), seen_by(load_policy(), replace(view, completions=claimed), vowels)) == 1


def test_nobody_proves_anything_unasked(load_policy: Callable[..., Policy], vowels: Task) -> None:
    class Looks(AcceptAll):
        def inspect(self, view: DefenderView) -> Sequence[Verdict]:
            assert all(offered.proof is None for offered in view.completions)
            return super().inspect(view)

    played(load_policy(), vowels, Looks())


def test_a_commitment_holds_the_largest_elements_in_order() -> None:
    states = np.arange(40 * 8, dtype=np.float32).reshape(40, 8) - 100
    one, other = chunks(states)
    assert [part.size for part in (one, other)] == [32 * 8, 8 * 8], "32 tokens at a time"
    chosen = committed(one)
    assert len(chosen) == 64, "a quarter of the elements where that is fewer than 128"
    assert chosen["index"].tolist() == sorted(np.argsort(-np.abs(one))[:64].tolist())
    assert len(committed(np.ones(9999, np.float32))) == 128
    assert len(Toploc().prove(states)) == (64 + 16) * ENTRY.itemsize
    assert Toploc().prove(np.zeros((0, 8), np.float32)) == b"", "no tokens, no proof"


def test_distances_by_hand() -> None:
    states = np.full((1, 16), 0.5, np.float32)
    states[0, :4] = [4.0, 5.0, -6.0, 7.0]
    proof = Toploc().prove(states)
    (same,) = distances(proof, states) or []
    assert (same.exponents, same.mean, same.median) == (0, 0, 0)
    moved = states.copy()
    moved[0, :4] = [4.0 + 4 / 128, 5.0, 6.0, 9.0]
    (distance,) = distances(proof, moved) or []
    assert distance.exponents == 0.5, "a sign and an exponent differ, of four"
    assert (distance.mean, distance.median) == (0.5, 0.5), "one mantissa is off by one, the other is equal"
    elsewhere = states[:, ::-1].copy()
    assert (distances(proof, elsewhere) or [])[0].exponents == 1.0, "elements found elsewhere do not count as agreeing"
    assert distances(proof, np.zeros((0, 16), np.float32)) is None


def test_bfloat16_is_torch_s() -> None:
    values = torch.randn(1000) * 10.0 ** torch.randint(-3, 4, (1000,))
    theirs = values.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(bfloat16(values.numpy()), theirs)


@pytest.mark.parametrize("arguments", [{"exponents": 1.5}, {"exponents": -0.1}, {"mean": -1.0}, {"median": -1.0}])
def test_values_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="toploc: exponents is a share"):
        Toploc(**arguments)
