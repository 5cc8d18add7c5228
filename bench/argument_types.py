"""Whether an argument of a spec string is of the type that its parameter is annotated with.

Only what a literal can be is looked at: numbers, text, True, False, None, and lists and dictionaries of these. Whatever
else an annotation says is left to the constructor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

_WORDS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text in quotes", "texts in quotes"),
    bool: ("True or False", "True or False"),
    NoneType: ("None", "None"),
}
"""By type: what a message calls one value, and several."""


def wrong_type(annotation: Any, value: Any) -> str:
    """What a value should be instead, as in "a whole number or None"; empty if it fits or nothing is known.

    A whole number is a number too, but True and False are none. A set is no list, as its order differs from one process
    to the next.

    Args:
        annotation: of the parameter, resolved.
        value: of the argument.
    """
    called = _called(annotation)
    return "" if called is None or _fits(annotation, value) else called[0]


def _called(annotation: Any) -> tuple[str, str] | None:
    """What a message calls one value of a type, and several; None if the type is none of those above."""
    if annotation in _WORDS:
        return _WORDS[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        one = f"one of {', '.join(map(repr, inner))}"
        return one, one
    called = [_called(each) for each in inner if each is not Ellipsis]
    known = [each for each in called if each is not None]
    if not known or len(known) < len(called):
        return None
    if origin in (Union, UnionType):
        return " or ".join(one for one, _ in known), " or ".join(several for _, several in known)
    if _is_list(origin, inner):
        return f"a list of {known[0][1]}", f"lists of {known[0][1]}"
    if origin in (dict, Mapping):
        return f"a dictionary from {known[0][1]} to {known[1][1]}", "dictionaries"
    return None


def _is_list(origin: Any, inner: tuple[Any, ...]) -> bool:
    return origin in (list, Sequence) or (origin is tuple and inner[1:] == (Ellipsis,))


def _fits(annotation: Any, value: Any) -> bool:
    """Whether a value is of a type that `_called` knows."""
    if annotation is float:
        return type(value) in (int, float)
    if annotation in _WORDS:
        return type(value) is annotation
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return type(value) in {type(each) for each in inner}  # which of them there are, the constructor says
    if origin in (Union, UnionType):
        return any(_fits(each, value) for each in inner)
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(
            _fits(inner[0], key) and _fits(inner[1], content) for key, content in value.items()
        )
    return isinstance(value, list | tuple) and all(_fits(inner[0], each) for each in value)
