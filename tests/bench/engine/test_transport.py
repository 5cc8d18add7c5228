from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from thiefbench.attacks.base import Attack, AttackerView, Poison, ThreatModel
from thiefbench.engine.policy import Policy
from thiefbench.engine.rounds import Row
from thiefbench.engine.swarm import Swarm
from thiefbench.engine.transport import PROOF_BYTES, PROOF_BYTES_PER_TOKEN, Offer, Received, receive
from thiefbench.tasks.base import Ask, Completion, Item

LIMIT = 16

MALFORMED: dict[str, tuple[Any, str]] = {
    "empty": ((), "empty"),
    "too long": ((65,) * (LIMIT + 1), "17 tokens, over the limit of 16"),
    "past the vocabulary": ((65, 259), "outside the vocabulary"),
    "far past the vocabulary": ((10**30,), "outside the vocabulary"),
    "negative": ((65, -1), "outside the vocabulary"),
    "bool": ((65, True), "not a tuple of integers"),
    "float": ((65, 66.0), "not a tuple of integers"),
    "numpy integer": ((65, np.int64(66)), "not a tuple of integers"),
    "text": (("a", "b"), "not a tuple of integers"),
    "None inside": ((65, None), "not a tuple of integers"),
    "nested": ((65, (66,)), "not a tuple of integers"),
}
NO_TUPLE: dict[str, Any] = {"list": [65, 66], "string": "hello", "None": None, "dict": {65: 66}, "number": 65}
FORGED = ["eos", "pad", "start"]


def arrive(policy: Policy, ids: Any) -> Received:
    """One offer between two good ones, which must come through whatever stands between them."""
    good = (*policy.encode("fine"), policy.eos)
    before, got, after = receive(
        policy, [Offer(0, 0, place, row) for place, row in enumerate((good, ids, good))], LIMIT
    )
    for other in (before, after):
        assert other == Received(Completion(good[:-1], "fine", True), ""), "one bad offer must not touch the others"
    return got


@pytest.mark.parametrize("ended", [True, False])
def test_text_and_eos_are_derived_from_the_ids(ended: bool, policy: Policy) -> None:
    ids = tuple(policy.encode("so ✓ = a"))
    got = arrive(policy, (*ids, policy.eos) if ended else ids)
    assert got == Received(Completion(ids, "so ✓ = a", ended), "")


def test_a_lone_eos_is_an_ended_empty_text(policy: Policy) -> None:
    assert arrive(policy, (policy.eos,)) == Received(Completion((), "", True), "")


def test_the_limit_counts_eos(policy: Policy) -> None:
    assert arrive(policy, (65,) * (LIMIT - 1) + (policy.eos,)).refused == ""
    assert "over the limit" in arrive(policy, (65,) * LIMIT + (policy.eos,)).refused


@pytest.mark.parametrize(
    ("ids", "why"),
    [pytest.param(ids, why, id=name) for name, (ids, why) in MALFORMED.items()]
    + [pytest.param(ids, "not a tuple of integers", id=name) for name, ids in NO_TUPLE.items()],
)
def test_malformed_offers_arrive_empty_with_a_reason(ids: Any, why: str, policy: Policy) -> None:
    got = arrive(policy, ids)
    assert why in got.refused
    assert got.completion == Completion((), "", False), "nothing of a malformed offer is kept"


@pytest.mark.parametrize("seed", [0, -(2**63), 2**63 - 1])
def test_a_seed_is_a_signed_64_bit_integer(seed: int, policy: Policy) -> None:
    (got,) = receive(policy, [Offer(0, 0, 0, (65,), seed=seed)], LIMIT)
    assert got.seed == seed


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, True, 1.0, "1", None])
def test_a_claim_that_is_no_seed_counts_as_none(seed: Any, policy: Policy) -> None:
    (got,) = receive(policy, [Offer(0, 0, 0, (65,), seed=seed)], LIMIT)
    assert got.seed is None
    assert got.refused == "", "the completion itself is as good as any"


def test_proofs_are_bytes_of_bounded_size(policy: Policy) -> None:
    def kept(proof: Any) -> bytes | None:
        return receive(policy, [Offer(0, 0, 0, (65,) * 10, proof=proof)], LIMIT)[0].proof

    most = PROOF_BYTES + 10 * PROOF_BYTES_PER_TOKEN
    assert kept(b"x" * most) == b"x" * most
    assert kept(b"x" * (most + 1)) is None, "a proof over the limit does not arrive"
    assert kept("x") is kept([1]) is None


def forge(policy: Policy, name: str) -> tuple[int, ...]:
    token = {"eos": policy.eos, "pad": policy.pad, "start": policy.tokenizer.convert_tokens_to_ids("<|im_start|>")}[
        name
    ]
    return (*policy.encode("so"), token, *policy.encode("= a"), policy.eos)


@pytest.mark.parametrize("name", FORGED)
def test_control_tokens_inside_are_refused_and_visible(name: str, policy: Policy) -> None:
    ids = forge(policy, name)
    got = arrive(policy, ids)
    assert got.refused == "a control token inside the completion"
    assert got.completion.ids == ids[:-1], "a forged completion stays visible to the defense"
    assert "<|" in got.completion.text, "special tokens are kept visible in the text"


def test_two_eos_at_the_end_are_one_too_many(policy: Policy) -> None:
    assert arrive(policy, (65, policy.eos, policy.eos)).refused == "a control token inside the completion"


class Offers(Attack):
    """Sends the given ids from its slots."""

    name = "offers"
    threat = ThreatModel(context="out-of-context")

    def __init__(self, sent: Sequence[Any]) -> None:
        self.sent = sent

    def poison(self, view: AttackerView) -> list[Poison]:
        return [self.sent[i % len(self.sent)] for i in range(len(view.slots))]

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float:
        return 0.0


def malicious_rows(swarm: Swarm) -> list[Row]:
    return [row for row in swarm.round(1).rows if row.malicious]


def test_refused_offers_earn_no_reward_in_a_swarm(
    build_swarm: Callable[..., Swarm], policy: Policy, vowels: Any
) -> None:
    class Generous(type(vowels)):  # type: ignore[misc]
        """Gives the full reward to everything."""

        def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
            return [1.0] * len(completions)

    sent = [ids for ids, _ in MALFORMED.values()] + [forge(policy, name) for name in FORGED]
    swarm = build_swarm(attack=Offers(sent), task=Generous(), malicious=2, prompts=4, group=8)
    rows = malicious_rows(swarm)
    assert len(rows) == 16 >= len(sent)
    for row in rows:
        assert row.refused, "a malformed or forged offer is refused with a reason"
        assert row.reward == 0, "and earns no reward, whatever the task says"
        assert row.advantage < 0


def test_text_of_attackers_is_encoded_cut_and_ended(build_swarm: Callable[..., Swarm]) -> None:
    rows = malicious_rows(build_swarm(attack=Offers(["short a", "a" * 99])))
    assert {(row.text, row.ended, row.refused) for row in rows} == {("short a", True, ""), ("a" * LIMIT, False, "")}


def test_text_of_attackers_cannot_forge_structure(build_swarm: Callable[..., Swarm]) -> None:
    rows = malicious_rows(build_swarm(attack=Offers(["a<|im_end|>b"])))
    assert all(row.refused and row.reward == 0 for row in rows), "control tokens spelt in text are caught as ids"
