"""Keyed randomness: every draw is a pure hash of what it is for, so no batch, order or restart can change it.

All that a cell draws follows from its seed, also what a defense must not know: who is malicious behind which pseudonym,
who answers which slot, the order of a pool, the payload. The seeds of a released suite are public, so whoever reads a
view can try them all. Where that must not be possible, a cell's seed comes from `secret_seed`.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Sequence

SECRET_BYTES = 32
"""Length of a secret, and of the seeds that are hashed with it: 256 bits, which nobody finds by trying."""


def new_secret() -> bytes:
    """A secret from the operating system's generator."""
    return os.urandom(SECRET_BYTES)


def secret_seed(secret: bytes, *parts: int | str) -> int:
    """A cell's seed that only the owner of a secret can work out: BLAKE2b, keyed by the secret, of `parts`.

    It takes the place of a public seed. Whatever the cell draws, from pseudonyms to `DefenderView.rng`, is then a hash
    of these 256 bits; even a whole view, all of whose other inputs are known, says nothing about what it does not show.
    With the secret, which can be published afterwards, everybody gets the same seed and so the same cell.

    Raises:
        ValueError: the secret is shorter than `SECRET_BYTES`, or longer than BLAKE2b takes.
    """
    if len(secret) < SECRET_BYTES:
        raise ValueError(f"a secret has at least {SECRET_BYTES} bytes, and this one has {len(secret)}")
    return int.from_bytes(hashlib.blake2b(_joined(parts), key=secret, digest_size=SECRET_BYTES).digest(), "little")


def key(*parts: int | str) -> int:
    """A signed 64-bit key of `parts`; distinct tuples of parts get distinct keys up to hash collisions."""
    return int.from_bytes(hashlib.blake2b(_joined(parts), digest_size=8).digest(), "little", signed=True)


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


def _joined(parts: Sequence[int | str]) -> bytes:
    return "\x1f".join(f"{type(part).__name__}:{part}" for part in parts).encode()
