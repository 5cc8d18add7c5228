"""Which characters of a stored completion a page marks as the payload: those that the attack's outcome counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from thiefbench import registry
from thiefbench.attacks import payload_rules as payload_rules  # loads the rules of this package's attacks
from thiefbench.attacks.base import Attack
from thiefbench.attacks.payload_spans import Span, payload_spans
from thiefbench.engine.compatibility import drawn_for
from thiefbench.suite.analysis.untrained_lines import task_of
from thiefbench.suite.store.records import Record
from thiefbench.tasks.text import printable

PAYLOAD, MASKED = 1, 2
"""What a piece of a text is, as bits of one number."""

Piece = tuple[str, int]

UNKNOWN = "the attack or its task is not on this machine, or draws another payload now"
NO_RULE = "the attack has no rule that says where in a text its payload is"
NO_WORDS = "what the attack counts is not in these words"


def pieces(text: str, payload: Sequence[Span], masked: Sequence[Span], longest: int) -> tuple[tuple[Piece, ...], int]:
    """Cut a text where the payload or masked tokens begin and end, and write what cannot be seen by its number.

    Returns:
        The pieces with what they are: 0, `PAYLOAD`, `MASKED` or both. How many characters behind the first `longest`
        are left out.
    """
    shown = text[:longest]
    kinds = np.zeros(len(shown), np.uint8)
    for spans, kind in ((payload, PAYLOAD), (masked, MASKED)):
        for first, last in spans:
            kinds[first:last] |= kind
    cuts = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(shown)]
    cut = tuple((printable(shown[a:b]), int(kinds[a])) for a, b in pairwise(cuts) if a < b)
    return cut, len(text) - len(shown)


@dataclass(frozen=True)
class PayloadMarks:
    """What is marked in the texts of one cell.

    Attributes:
        attack: the cell's, with the payload that its record names; None if it cannot be had.
    """

    attack: Attack | None

    def carries(self, row: Mapping[str, Any]) -> bool:
        """Whether a stored row has a payload to mark: sent by the attacker, or with an outcome above 0."""
        return bool(row["payload"] or (row["outcome"] is not None and row["outcome"] > 0))

    def spans(self, row: Mapping[str, Any]) -> tuple[list[Span], str]:
        """The payload's characters in a row's text, and why there are none although the row carries it.

        A text counts only with its item and its reward, and the stored outcome says whether it did, so nothing is
        marked in rows without one.
        """
        if not self.carries(row):
            return [], ""
        if self.attack is None:
            return [], UNKNOWN
        try:
            found = payload_spans(self.attack, row["text"])
        except Exception:  # a rule may be a user's, and a stored text a stranger's: a page is written all the same
            found = None
        return (found, "") if found else ([], NO_RULE if found is None else NO_WORDS)


def marks_of(record: Record) -> PayloadMarks:
    """The marks of a record's cell. Its attack is drawn again, and used if it describes itself as the record does."""
    try:
        attack = _drawn(str(record.cell["attack"]), str(record.cell["task"]), int(record.cell["seed"]))
        as_recorded = attack.describe().items() <= record.payload.items()
    except Exception:  # the spec may be a stranger's, and the code a user's: a page is written all the same
        return PayloadMarks(None)
    return PayloadMarks(attack if as_recorded else None)


@cache
def _drawn(attack: str, task: str, seed: int) -> Attack:
    """The attack of a spec string with the payload of a seed."""
    return drawn_for(task_of(task), registry.make("attack", attack), seed)
