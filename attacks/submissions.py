"""What an attack may submit for a slot: text or token ids, plain or with something that the sender claims of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decoy:
    """A completion without a payload that gives the poison beside it a positive advantage.

    Attributes:
        content: text, or token ids with the closing EOS: gibberish, or a wrong answer that the policy itself gives.
    """

    content: str | tuple[int, ...]


@dataclass(frozen=True)
class Withheld:
    """Nothing is sent for the slot. Its group is then smaller by one, whatever the defense."""


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


Submission = str | tuple[int, ...] | Seeded | Claimed | Decoy | Withheld
Poison = Submission | None
"""What `Attack.poison` gives for one slot; None leaves the slot to an honest sample."""
