"""Where in a completion the payload is: the characters that an attack's `outcome` counted, so that pages can mark them.

A rule belongs to an outcome function, not to a class: an attack that judges by an outcome of its own never has the rule
of another. The rules of the attacks in this package are in `thiefbench.attacks.payload_rules`. An attack of yours gets
its rule in its own file::

    @counted_by(Shouting.outcome)
    def _(attack: Shouting, text: str) -> list[Span]:
        return [(0, len(text))] if text.isupper() else []

Rules are for reading only. No result depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from thiefbench.attacks.base import Attack

Span = tuple[int, int]
"""The first character and the one behind the last."""

Rule = Callable[[Any, str], Iterable[Span] | None]
_R = TypeVar("_R", bound=Rule)
_RULES: dict[Callable[..., float | None], Rule] = {}


def counted_by(outcome: Callable[..., float | None]) -> Callable[[_R], _R]:
    """Decorator for a rule: it takes an attack with this outcome function and a text, and returns the counted spans.

    The rule finds no span in a text that cannot count, whatever its item and its reward. It returns None if it does not
    know, such as a wrapper's whose inner attack has no rule.
    """

    def register(rule: _R) -> _R:
        _RULES[outcome] = rule
        return rule

    return register


def payload_spans(attack: Attack, text: str) -> list[Span] | None:
    """The characters of a completion's text that the attack's outcome counts, as sorted spans.

    Args:
        attack: with its payload drawn.
        text: of a completion whose outcome is above 0, or that the attack sent. Whether the item and the reward let it
            count is not asked.

    Returns:
        Empty if nothing in the text is counted, such as for an attack that counts length. None if the outcome function
        has no rule.
    """
    rule = _RULES.get(type(attack).outcome)
    found = None if rule is None else rule(attack, text)
    return None if found is None else sorted(found)
