"""JSON from strangers, read strictly, so that other readers of the same bytes get the same value.

Python's own reader accepts more than JSON: NaN and infinities, numbers too large for a float, which become infinities,
and duplicate keys in an object, of which the last counts. It also accepts any depth that its stack allows.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, NoReturn

from thiefbench.tasks.text import one_line

MOST_LEVELS = 200
"""The maximum nesting of lists and objects: few enough levels for any recursive code."""


class JsonError(ValueError):
    """The bytes are not JSON, or not strict JSON.

    Args:
        reason: in words that do not depend on what strangers wrote, so that equal mistakes can be counted together.
        detail: what exactly, printable and short.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason, self.detail = reason, detail


def loads(
    data: bytes,
    *,
    most_bytes: int | None = None,
    most_fields: int | None = None,
    only_int64: bool = False,
    only_finite: bool = True,
) -> Any:
    """The value of the bytes.

    Args:
        data: JSON in UTF-8.
        most_bytes: the maximum length; None if the caller has checked it.
        most_fields: the maximum number of keys of an object; None for any number.
        only_int64: whether every number must be an integer of at most 64 bits, sign included.
        only_finite: whether NaN and infinities are errors, as in the standard.

    Raises:
        JsonError: there are more bytes or fields; they are not UTF-8 or not JSON; an object has a key twice; a number
            is NaN, infinite, an integer of some thousand digits, or not of the kind asked for; or lists and objects are
            nested more than `MOST_LEVELS` deep.
    """
    if most_bytes is not None and len(data) > most_bytes:
        raise JsonError(f"longer than {most_bytes:,} bytes")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if most_fields is not None and len(pairs) > most_fields:
            raise JsonError("an object of too many fields", f"{len(pairs)}")
        fields = dict(pairs)
        if len(fields) < len(pairs):
            twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise JsonError("a field that is given twice", one_line(twice, 60))
        return fields

    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=unique,
            parse_constant=_no_number if only_finite or only_int64 else None,
            parse_float=_no_fraction if only_int64 else _finite if only_finite else None,
            parse_int=_int64 if only_int64 else None,
        )
    except UnicodeDecodeError as error:
        raise JsonError("not UTF-8 text", f"byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise JsonError("not JSON", f"{error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise JsonError("nested too deeply") from error
    except JsonError:
        raise
    except ValueError as error:  # Python reads integers of up to some thousand digits
        raise JsonError("an integer with too many digits") from error
    # Without so many brackets in all, nothing can lie that deep, and no value is looked at.
    if data.count(b"[") + data.count(b"{") > MOST_LEVELS:
        _check_levels(value)
    return value


def _check_levels(value: Any) -> None:
    level: list[Any] = [value]
    for _ in range(MOST_LEVELS):
        inside = (each.values() if type(each) is dict else each for each in level if type(each) in (dict, list))
        level = [each for values in inside for each in values if type(each) in (dict, list)]
        if not level:
            return
    raise JsonError("nested too deeply")


def _int64(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (value := int(digits)) < 2**63:
        raise JsonError("an integer of more than 64 bits", one_line(digits, 60))
    return value


def _no_fraction(digits: str) -> NoReturn:
    raise JsonError("a number that is not an integer", one_line(digits, 60))


def _no_number(constant: str) -> NoReturn:
    raise JsonError("NaN or infinity", constant)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise JsonError("NaN or infinity", one_line(digits, 60))
    return number
