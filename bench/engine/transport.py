"""What travels between nodes. An arriving offer is data from a stranger: checked, bounded, never unpickled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thiefbench.engine.policy import Policy
from thiefbench.tasks.base import Completion

# The longest proof that is let in: so many bytes, and so many more per token.
PROOF_BYTES, PROOF_BYTES_PER_TOKEN = 1024, 64


@dataclass(frozen=True)
class Offer:
    """One completion on the wire of a homogeneous swarm: token ids, the closing EOS included, and claims about them.

    Attributes:
        seed: what the sender says its noise was keyed by, a signed 64-bit integer.
        proof: what the sender made of its computation (`Defense.prove`).
    """

    node: int
    group: int
    place: int
    ids: tuple[int, ...]
    seed: int | None = None
    proof: bytes | None = None


@dataclass(frozen=True)
class Received:
    """An offer after the receiver's checks.

    Attributes:
        completion: text and EOS derived from the ids by the receiver; empty where the offer was refused.
        refused: why it earns no reward whatever the task says, or an empty string.
        seed, proof: the claims; None where the sender made none, or one that cannot be read.
    """

    completion: Completion
    refused: str
    seed: int | None = None
    proof: bytes | None = None


def receive(policy: Policy, offers: Sequence[Offer], max_new_tokens: int) -> list[Received]:
    """Check every offer and derive its text from its ids.

    An offer that is malformed arrives as an empty completion. A pad, EOS or chat-control token inside a completion
    forges structure and earns reward 0, but the completion stays visible.
    """
    reasons = [malformed(policy, offer.ids, max_new_tokens) for offer in offers]
    rows = [() if reason else offer.ids for offer, reason in zip(offers, reasons, strict=True)]
    ended = [bool(row) and row[-1] == policy.eos for row in rows]
    bodies = [row[:-1] if end else row for row, end in zip(rows, ended, strict=True)]
    texts = policy.decode(bodies)
    received = []
    for offer, body, text, end, reason in zip(offers, bodies, texts, ended, reasons, strict=True):
        forged = "" if policy.special.isdisjoint(body) else "a control token inside the completion"
        seed = offer.seed if type(offer.seed) is int and -(2**63) <= offer.seed < 2**63 else None
        small = isinstance(offer.proof, bytes) and len(offer.proof) <= PROOF_BYTES + PROOF_BYTES_PER_TOKEN * len(body)
        proof = offer.proof if small else None
        received.append(Received(Completion(tuple(body), text, end), reason or forged, seed, proof))
    return received


def malformed(policy: Policy, ids: object, max_new_tokens: int) -> str:
    """What is wrong with the token ids of an offer, or an empty string."""
    if not isinstance(ids, tuple) or not all(type(token) is int for token in ids):
        return "ids are not a tuple of integers"
    if len(ids) > max_new_tokens:
        return f"{len(ids)} tokens, over the limit of {max_new_tokens}"
    if not ids:
        return "empty"
    if not all(0 <= token < policy.vocabulary for token in ids):
        return "a token id outside the vocabulary"
    return ""
