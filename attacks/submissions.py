"""What an attack may submit for a slot: text or token ids, plain or with something that the sender claims of them."""

from __future__ import annotations

from dataclasses import dataclass


class Decoy(str):
    """Text without a payload, such as gibberish, that gives the poison beside it a positive advantage."""

    __slots__ = ()


@dataclass(frozen=True)
class Seeded:
    """Token ids (EOS included where the completion ended) with the seed that they are claimed to be drawn with."""

    ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Claimed:
    """A completion with what its sender claims of it. In a swarm where such claims do not travel they are left out.

    Attributes:
        content: text, or token ids with the closing EOS.
        logprob: the natural-log probability claimed for every token; None reports the true ones.
        version: how many updates the weights behind it are claimed to have had; None claims the current weights.
    """

    content: str | tuple[int, ...]
    logprob: float | None = None
    version: int | None = None


Submission = str | tuple[int, ...] | Seeded | Claimed
Poison = Submission | None
"""What `Attack.poison` gives for one slot; None leaves the slot to an honest sample."""
