"""Keyed randomness: every draw is a pure hash of its purpose, so no batch, order or restart can change it.

A cell's seed determines all of its draws, including those that a defense must not know: who is malicious behind which
pseudonym, who answers which slot, the order of a pool, the payload. The seeds of a released suite are public, so a
defense could try them all. To prevent this, a cell's seed can come from `secret_seed`.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Sequence

SECRET_BYTES = 32
"""Length of a secret, and of seeds hashed with it: 256 bits, too many to try."""


def new_secret() -> bytes:
    """A secret from the operating system's generator."""
    return os.urandom(SECRET_BYTES)


def secret_seed(secret: bytes, *parts: int | str) -> int:
    """A cell's seed that only the owner of a secret can compute: BLAKE2b of `parts`, keyed by the secret.

    It replaces a public seed. All of the cell's draws, from pseudonyms to `DefenderView.rng`, are then hashes of these
    256 bits; even a complete view whose other inputs are known reveals nothing about the rest. The secret can be
    published afterwards, so that everybody can compute the same seed and run the same cell.

    Raises:
        ValueError: the secret is shorter than `SECRET_BYTES`, or longer than BLAKE2b takes.
    """
    if len(secret) < SECRET_BYTES:
        raise ValueError(f"a secret has at least {SECRET_BYTES} bytes, and this one has {len(secret)}")
    return int.from_bytes(hashlib.blake2b(_joined(parts), key=secret, digest_size=SECRET_BYTES).digest(), "little")


def is_secret(seed: int) -> bool:
    """Whether a cell's seed comes from `secret_seed`; public seeds have at most 64 bits."""
    return seed.bit_length() > 64


def key(*parts: int | str) -> int:
    """A signed 64-bit key of `parts`; distinct tuples of parts get distinct keys up to hash collisions."""
    return int.from_bytes(hashlib.blake2b(_joined(parts), digest_size=8).digest(), "little", signed=True)


def slot_key(beacon: tuple[int | str, ...], owner: int, position: int, item_id: str, index: int) -> int:
    """The key of a slot's noise, so that a slot has exactly one legitimate draw from given weights.

    Sampler and verifier both use this function. All parts are public, and the sender can choose none of them, except
    the item if the topology lets nodes pick items. The owner is the node that owes the slot, not its pseudonym, so a
    node with several pseudonyms has no additional draws.

    Args:
        beacon: the value fixed for the round after its weights; in a simulated swarm, the cell's seed and the round.
        owner: the node that owes the slot.
        position: the number of the prompt among the owner's prompts.
        item_id: the item.
        index: its number among the owner's completions for that prompt.
    """
    return key(*beacon, owner, position, item_id, index)


def generator(*parts: int | str) -> random.Random:
    """A Python random generator keyed by `parts`."""
    return random.Random(key(*parts))


def _joined(parts: Sequence[int | str]) -> bytes:
    return "\x1f".join(f"{type(part).__name__}:{part}" for part in parts).encode()
