"""What happens to a completion that a defense objects to: reward 0, dropped, or masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from thiefbench.defenses.base import ACCEPT, DefenderView, PoolCompletion, Verdict

Reject = Literal["zero", "drop"]
RejectOrMask = Literal["zero", "drop", "mask"]
Range = tuple[int, int]
"""A part of a text: the positions of its first character and of the one after its last."""


@dataclass(frozen=True)
class Objection:
    """A defense's objection to a completion.

    Attributes:
        score: how suspicious it is, in a unit that the defense chooses.
        reason: a few words for reports.
        ranges: where in the text it was found.
    """

    score: float
    reason: str
    ranges: tuple[Range, ...] = ()


def checked(name: str, reject: Any, allowed: object = Reject) -> Any:
    """Return `reject` unchanged if it is one of `allowed`.

    Raises:
        ValueError: it is none of `allowed`.
    """
    if reject not in get_args(allowed):
        raise ValueError(f"{name}: reject must be one of {', '.join(get_args(allowed))}, not {reject!r}")
    return reject


def judged(view: DefenderView, objections: Mapping[int, Objection], reject: RejectOrMask) -> list[Verdict]:
    """One verdict per completion of the view.

    Args:
        view: the pool.
        objections: by place in the pool; all other completions are accepted.
        reject: "zero" and "drop" as in `Verdict`. "mask" accepts, with weight 0 for every token that overlaps one of
            the objection's ranges and 1 for the others: the completion still counts in its group's mean and standard
            deviation, and its advantage goes to the other tokens. If no token overlaps a range, nothing is learned from
            the completion.
    """
    verdicts = [ACCEPT] * len(view.completions)
    if reject != "mask":
        for place, objection in objections.items():
            verdicts[place] = Verdict(reject, objection.score, reason=objection.reason)
        return verdicts
    completions = [view.completions[place] for place in objections]
    spans = view.policy.spans(completions) if completions else []
    for (place, objection), token_spans in zip(objections.items(), spans, strict=True):
        verdicts[place] = masked(touching(token_spans, objection.ranges), objection.score, objection.reason)
    return verdicts


def masked(tokens: NDArray[np.bool_], score: float, reason: str) -> Verdict:
    """Accept a completion, but learn nothing from its marked tokens; if none is marked, nothing from any token.

    Args:
        tokens: marks those not to learn from; EOS is included when the completion ended.
        score, reason: for reports.
    """
    hidden = tokens if tokens.any() else np.ones_like(tokens)
    return Verdict("accept", score, tuple(np.where(hidden, 0.0, 1.0).tolist()), reason)


def touching(spans: NDArray[np.int64], ranges: Sequence[Range]) -> NDArray[np.bool_]:
    """Which tokens share a character with one of the ranges; spans have the shape (tokens, 2)."""
    touched = np.zeros(len(spans), np.bool_)
    for start, end in ranges:
        touched |= (spans[:, 0] < end) & (spans[:, 1] > start)
    return touched


def cut_short(completion: PoolCompletion, limit: int) -> bool:
    """Whether a completion stops where no honest sampler would: without EOS and below the length limit."""
    return not completion.ended and len(completion.ids) < limit
