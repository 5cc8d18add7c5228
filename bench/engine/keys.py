"""Keyed randomness: every draw is a pure hash of what it is for, so no batch, order or restart can change it."""

from __future__ import annotations

import hashlib
import random


def key(*parts: int | str) -> int:
    """A signed 64-bit key of `parts`; distinct tuples of parts get distinct keys up to hash collisions."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def slot_key(beacon: tuple[int | str, ...], owner: int, position: int, item_id: str, index: int) -> int:
    """The key of a slot's noise, which leaves the slot exactly one legitimate draw from given weights.

    Sampler and verifier both take it from here. All parts are public, and none is the sender's to choose but the item
    where the topology lets nodes pick items. The owner is the node that owes the slot, not the pseudonym it shows: who
    appears under several names has no more draws for it.

    Args:
        beacon: what is fixed for the round after its weights; in a simulated swarm the cell's seed and the round.
        owner: the node that owes the slot.
        position: which of the owner's own prompts it answers.
        item_id: the item.
        index: its number among the owner's completions for that prompt.
    """
    return key(*beacon, owner, position, item_id, index)


def generator(*parts: int | str) -> random.Random:
    """A Python random generator keyed by `parts`."""
    return random.Random(key(*parts))
