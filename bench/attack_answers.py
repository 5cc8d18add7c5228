"""Whether an attack's methods return what they may: the same rules for an audit and for an attack in the sandbox."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

from thiefbench.attacks.base import Attack, Claimed, Decoy, Poison, Seeded, Withheld
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.task_answers import is_number, is_share
from thiefbench.wording import counted


def listed(returned: object) -> list[Any]:
    """What `poison` or `placebo` returned, as a list.

    Raises:
        TypeError: it is not a list or another sequence.
    """
    if isinstance(returned, Sequence) and not isinstance(returned, str | bytes):
        return list(returned)
    raise TypeError(f"poison and placebo return a list with one submission per slot, not {_called(returned)}")


def wrong_count(submissions: int, slots: int) -> str:
    """What is wrong with the number of submissions, in a clause; empty if there is one per slot."""
    if submissions == slots:
        return ""
    numbers = f"{counted(submissions, 'submission')} for {counted(slots, 'slot')}"
    return f"{numbers}; there is one per slot, in the view's order"


def content_of(submission: Poison) -> str | list[int] | None:
    """The text or the token ids of a submission; None if it has none, as an honest sample and `Withheld`.

    Raises:
        TypeError: it is not a submission.
    """
    if submission is None or isinstance(submission, Withheld):
        return None
    content: object = submission
    if isinstance(submission, Claimed | Decoy):
        content = submission.content
    elif isinstance(submission, Seeded):
        content = submission.ids
    if isinstance(content, str):
        return content
    called = _called(content)
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        try:
            return [operator.index(token) for token in content]
        except TypeError:
            called = f"{called} with something other than whole numbers"
    raise TypeError(f"a submission is text, token ids, Seeded, Claimed, Decoy, Withheld or None, not {called}")


def outcome_of(returned: object) -> float | None:
    """What `outcome` returned, as a number of any size, or None.

    Raises:
        TypeError: it is neither a number nor None.
    """
    if returned is None:
        return None
    if is_number(returned):
        return float(returned)  # type: ignore[arg-type]
    raise TypeError(f"an outcome is a number from 0 to 1, True, False or None, not {_called(returned)}")


def wrong_outcome(outcome: object, any_size: bool = False) -> str:
    """What is wrong with an outcome, in a clause; empty if it is None or a number between 0 and 1, or of any size."""
    if outcome is None or is_share(outcome) or (any_size and _is_finite(outcome)):
        return ""
    must = "be a finite number" if any_size else "lie between 0 and 1"
    return f"the outcome {reprlib.repr(outcome)}; it must {must}"


def wrong_outcomes(attack: Attack, outcomes: Iterable[object]) -> str:
    """What is wrong with an attack's outcomes in a swarm, in a clause; empty if nothing is.

    They lie between 0 and 1, unless the attack has its own `harm`, as those that count tokens have.
    """
    innermost: Attack = attack
    while isinstance(innermost, AttackWrapper) and type(innermost).harm is AttackWrapper.harm:
        innermost = innermost.attack
    own_harm = type(innermost).harm is not Attack.harm
    return next(filter(None, (wrong_outcome(outcome, own_harm) for outcome in outcomes)), "")


def _is_finite(value: object) -> bool:
    return is_number(value) and math.isfinite(value)  # type: ignore[arg-type]


def _called(value: object) -> str:
    """The name of its type, with the module of one that is not Python's own."""
    if value is None:
        return "None"
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
