"""What travels between nodes. An arriving offer is data from a stranger: checked, bounded, never unpickled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thiefbench.engine.policy import Policy
from thiefbench.tasks.base import Completion


@dataclass(frozen=True)
class Offer:
    """One completion on the wire of a homogeneous swarm: token ids only, the closing EOS included."""

    node: int
    group: int
    place: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Received:
    """An offer after the receiver's checks.

    Attributes:
        completion: text and EOS derived from the ids by the receiver; empty where the offer was refused.
        refused: why it earns no reward whatever the task says, or an empty string.
    """

    completion: Completion
    refused: str


def receive(policy: Policy, offers: Sequence[Offer], max_new_tokens: int) -> list[Received]:
    """Check every offer and derive its text from its ids.

    An offer that is malformed arrives as an empty completion. A pad, EOS or chat-control token inside a completion
    forges structure and earns reward 0, but the completion stays visible.
    """
    reasons = [_malformed(policy, offer.ids, max_new_tokens) for offer in offers]
    rows = [() if reason else offer.ids for offer, reason in zip(offers, reasons, strict=True)]
    ended = [bool(row) and row[-1] == policy.eos for row in rows]
    bodies = [row[:-1] if end else row for row, end in zip(rows, ended, strict=True)]
    texts = policy.decode(bodies)
    received = []
    for body, text, end, reason in zip(bodies, texts, ended, reasons, strict=True):
        forged = "" if policy.special.isdisjoint(body) else "a control token inside the completion"
        received.append(Received(Completion(tuple(body), text, end), reason or forged))
    return received


def _malformed(policy: Policy, ids: object, max_new_tokens: int) -> str:
    if not isinstance(ids, tuple) or not all(type(token) is int for token in ids):
        return "ids are not a tuple of integers"
    if len(ids) > max_new_tokens:
        return f"{len(ids)} tokens, over the limit of {max_new_tokens}"
    if not ids:
        return "empty"
    if not all(0 <= token < policy.vocabulary for token in ids):
        return "a token id outside the vocabulary"
    return ""
