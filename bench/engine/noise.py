"""Keyed randomness: every draw is a pure hash of what it is for, so no batch, order or restart can change it."""

from __future__ import annotations

import hashlib
import random

import torch

_GOLDEN, _MIX_1, _MIX_2 = (c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


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


def gumbel(row_keys: torch.Tensor, step: int | torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise for (row, step, token), independent of how rows are batched.

    Args:
        row_keys: int64, shape (rows,).
        step: position in the completion, from 0; one for all rows, or int64 of shape (rows,).
        tokens: int64 candidate token ids, shape (rows, candidates).

    Returns:
        float64, shape (rows, candidates).
    """
    mixed = _mix(_mix(row_keys ^ step)[:, None] ^ tokens)
    uniform = (_shift(mixed, 12).double() + 0.5) * 2.0**-52  # exact in float64, and never 0 or 1
    return -torch.log(-torch.log(uniform))


def _mix(x: torch.Tensor) -> torch.Tensor:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014) on wrapping int64."""
    x = x + _GOLDEN
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift: int64 has only an arithmetic one."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
