"""What an attack may submit for a slot: text or token ids, plain or with the sender's claims about them."""

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
    """Nothing is sent for the slot, so its group is smaller by one, whatever the defense."""


@dataclass(frozen=True)
class Seeded:
    """Token ids (with EOS if the completion ended) and the seed with which the sender claims to have drawn them."""

    ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Claimed:
    """A completion with its sender's claims about it. Swarms in which such claims are not sent ignore them.

    Attributes:
        content: text, or token ids with the closing EOS.
        logprob: the natural-log probability claimed for every token; None reports the true ones.
        version: the number of updates that the sender claims its weights have had; None claims the current weights.
    """

    content: str | tuple[int, ...]
    logprob: float | None = None
    version: int | None = None


Submission = str | tuple[int, ...] | Seeded | Claimed | Decoy | Withheld
Poison = Submission | None
"""What `Attack.poison` returns for one slot; None leaves the slot to an honest sample."""
