"""Values of a line or row that strangers wrote, each checked for what it should be. Nothing is converted by guess."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from thiefbench.pools.schema import LARGEST_REWARD, LONGEST_NAME, MalformedError

MOST_NUMBER = 2**31


def text(fields: Mapping[str, Any], name: str) -> str:
    """A text.

    Raises:
        MalformedError: it is missing, something else, or holds half of a surrogate pair.
    """
    return as_text(present(fields, name), name)


def as_text(value: object, name: str) -> str:
    """The same for a value that was taken out already."""
    if not isinstance(value, str):
        raise MalformedError(f"{name}: must be a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise MalformedError(f"{name}: half of a surrogate pair is not text") from error
    return value


def label(fields: Mapping[str, Any], name: str) -> str:
    """A name for tables and terminals.

    Raises:
        MalformedError: it is not text, empty, longer than names may be, or has characters that cannot be printed.
    """
    value = text(fields, name)
    if not value or len(value) > LONGEST_NAME or not value.isprintable():
        raise MalformedError(f"{name}: must be 1 to {LONGEST_NAME} printable characters")
    return value


def integer(fields: Mapping[str, Any], name: str) -> int:
    """A whole number from 0 to 2^31 - 1.

    Raises:
        MalformedError: it is missing or something else.
    """
    value = present(fields, name)
    if type(value) is not int or not 0 <= value < MOST_NUMBER:
        raise MalformedError(f"{name}: must be a whole number from 0 to {MOST_NUMBER - 1:,}")
    return value


def reward(value: object, name: str) -> float:
    """A number that rewards may have.

    Raises:
        MalformedError: it is no number, not finite, or beyond what can be summed.
    """
    if type(value) not in (int, float):
        raise MalformedError(f"{name}: must be a number")
    if not -LARGEST_REWARD <= value <= LARGEST_REWARD:  # type: ignore[operator]  # NaN is neither
        raise MalformedError(f"{name}: must be a finite number of at most {LARGEST_REWARD:,.0f} in size")
    return float(value)  # type: ignore[arg-type]


def objects(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A list of objects, empty where it is left out.

    Raises:
        MalformedError: it is something else.
    """
    values = fields.get(name)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
        raise MalformedError(f"{name}: must be a list of objects")
    return values


def inner(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object.

    Raises:
        MalformedError: it is missing or something else.
    """
    value = present(fields, name)
    if not isinstance(value, dict):
        raise MalformedError(f"{name}: must be an object")
    return value


def token_ids(value: object, name: str) -> list[int]:
    """Token ids.

    Raises:
        MalformedError: it is no list, or a member is no whole number from 0 to 2^31 - 1.
    """
    if not isinstance(value, list):
        raise MalformedError(f"{name}: must be a list")
    if not all(type(each) is int and 0 <= each < MOST_NUMBER for each in value):
        raise MalformedError(f"{name}: must hold whole numbers from 0 to {MOST_NUMBER - 1:,}")
    return value


def log_probs(value: object, name: str) -> list[float]:
    """Log-probs.

    Raises:
        MalformedError: it is no list, or a member is not a finite number.
    """
    if not isinstance(value, list):
        raise MalformedError(f"{name}: must be a list")
    try:
        sound = all(type(each) in (int, float) and math.isfinite(each) for each in value)
    except OverflowError:  # an integer beyond floats
        sound = False
    if not sound:
        raise MalformedError(f"{name}: must hold finite numbers")
    return value


def present(fields: Mapping[str, Any], name: str) -> Any:
    """A value that is not null.

    Raises:
        MalformedError: there is none.
    """
    value = fields.get(name)
    if value is None:
        raise MalformedError(f"the field {name} is missing")
    return value


def digest(*parts: str) -> str:
    """A short name of texts, equal for equal ones."""
    whole = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        whole.update(len(encoded).to_bytes(8, "big") + encoded)
    return whole.hexdigest()[:16]
