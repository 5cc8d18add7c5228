"""JSON from strangers: what Python's own reader lets through is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from thiefbench import strict_json
from thiefbench.strict_json import MOST_LEVELS, JsonError, loads

SOUND: list[Any] = [
    {}, [], 1, -(2**70), 1.5, "é\u2028\x1b", None, True,
    {"a": [{"b": None}, {"b": 1}], "b": {"a": 1e300}},
]  # fmt: skip


def nested(levels: int) -> bytes:
    """Lists and objects in turn."""
    value: Any = 0
    for level in range(levels):
        value = [value, 1] if level % 2 else {"a": value, "b": 2}
    return json.dumps(value).encode()


@pytest.mark.parametrize("value", SOUND, ids=repr)
def test_what_is_sound_is_read(value: Any) -> None:
    assert loads(json.dumps(value).encode()) == value
    assert loads(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b"1 2", "not JSON"),
        (b'"\x00"', "not JSON"),
        (b"\xff", "not UTF-8 text"),
        ('"a"'.encode("utf-16"), "not UTF-8 text"),
        (b'{"a": 1, "a": 1}', "a field that is given twice"),
        (b'[{"b": {"a": 1, "\\u0061": 2}}]', "a field that is given twice"),
        (b"NaN", "NaN or infinity"),
        (b'{"a": [-Infinity]}', "NaN or infinity"),
        (b"1e999", "NaN or infinity"),
        (b"9" * 5000, "an integer with too many digits"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
        (nested(MOST_LEVELS + 1), "nested too deeply"),
    ],
    ids=lambda value: value[:20] if isinstance(value, bytes) else value,
)
def test_what_is_not_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(JsonError) as error:
        loads(data)
    # how deep Python's own reader goes differs between its versions; where it stops, it may find the end missing
    assert error.value.reason == reason or (data.startswith(b"[[") and error.value.reason == "not JSON")
    assert len(str(error.value)) < 200
    assert str(error.value).isprintable()


def test_limits_are_exact() -> None:
    assert loads(nested(MOST_LEVELS))
    assert loads(b"[1, 2]", most_bytes=6) == [1, 2]
    with pytest.raises(JsonError, match="longer than 5 bytes"):
        loads(b"[1, 2]", most_bytes=5)
    assert loads(b'{"a": 1, "b": {"c": 1, "d": 2}}', most_fields=2)
    with pytest.raises(JsonError, match="too many fields"):
        loads(b'{"a": 1, "b": {"c": 1, "d": 2, "e": 3}}', most_fields=2)


def test_many_brackets_are_not_many_levels() -> None:
    assert len(loads(b"[" + b"[[]]," * 1000 + b'"[[["]')) == 1001


@pytest.mark.parametrize("number", ["1.5", "1e3", "NaN", "Infinity", str(2**63), str(-(2**63) - 1), "1" * 30])
def test_only_integers_of_64_bits_where_that_is_asked(number: str) -> None:
    with pytest.raises(JsonError):
        loads(b'{"a": %s}' % number.encode(), only_int64=True)


def test_integers_of_64_bits_are_read() -> None:
    assert loads(b"[%d, %d, 0, -1]" % (2**63 - 1, -(2**63)), only_int64=True) == [2**63 - 1, -(2**63), 0, -1]


def test_what_is_not_finite_is_read_where_that_is_asked() -> None:
    first, second = loads(b'{"a": [NaN, 1e999]}', only_finite=False)["a"]
    assert first != first
    assert second == float("inf")
    with pytest.raises(JsonError):
        strict_json.loads(b'{"a": 1, "a": 2}', only_finite=False)
