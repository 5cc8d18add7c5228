"""Messages between the benchmark and an isolated defense: JSON, and arrays as raw bytes with dtype and shape.

Nothing is pickled. Both sides read lengths first and refuse what is larger than they take.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER = struct.Struct("<QQ")
"""Bytes of the JSON text, and of the arrays behind it."""

MOST_TEXT = 16 << 20
"""Bytes of JSON in one message."""

_DTYPES = {kind: np.dtype(kind) for kind in ("<f4", "<i8", "|b1", "|u1")}

Array = NDArray[Any]


class FrameError(ValueError):
    """Bytes that are not a valid message. A clause that says what they are."""


def packed(message: dict[str, Any], arrays: Sequence[Array] = ()) -> list[bytes]:
    """A message as bytes to be sent one behind the other.

    Args:
        message: JSON data; numbers may be NaN or infinite, text may contain lone surrogates.
        arrays: float32, int64, bool or uint8.
    """
    described = [[array.dtype.str, list(array.shape)] for array in arrays]
    text = json.dumps({"message": message, "arrays": described}, default=_plain).encode("ascii")
    blobs = [np.ascontiguousarray(array).tobytes() for array in arrays]
    return [HEADER.pack(len(text), sum(map(len, blobs))), text, *blobs]


def sizes(header: bytes, most: int) -> tuple[int, int]:
    """How many bytes of text and of arrays follow a header.

    Raises:
        FrameError: together they are more than `most`, or the text is more than `MOST_TEXT`, which takes many times
            as much memory where it is read.
    """
    text, blob = HEADER.unpack(header)
    if text + blob > most:
        raise FrameError(f"a message of {text + blob:,} bytes, and at most {most:,} are allowed")
    if text > MOST_TEXT:
        raise FrameError(f"a message with {text:,} bytes of text, and at most {MOST_TEXT:,} are allowed")
    return text, blob


def unpacked(text: bytes, blob: bytes, most: int = 1) -> tuple[dict[str, Any], list[Array]]:
    """The inverse of `packed`; arrays own their memory, and are at most `most`.

    Raises:
        FrameError: the bytes are something else.
    """
    try:
        parsed = json.loads(text.decode("ascii"))
    except (ValueError, RecursionError, MemoryError) as error:
        raise FrameError("a message that is not JSON, or nested too deeply") from error
    message = parsed.get("message") if isinstance(parsed, dict) else None
    described = parsed.get("arrays") if isinstance(parsed, dict) else None
    if not isinstance(message, dict) or not isinstance(described, list):
        raise FrameError("a message without its parts")
    if len(described) > most:
        raise FrameError("arrays where none are allowed")
    arrays, start = [], 0
    for each in described:
        dtype, shape = _description(each)
        size = prod(shape) * dtype.itemsize
        if start + size > len(blob):
            raise FrameError("an array that is longer than its message")
        arrays.append(np.frombuffer(blob, dtype, prod(shape), start).reshape(shape).copy())
        start += size
    if start != len(blob):
        raise FrameError("bytes that belong to no array")
    return message, arrays


def _description(each: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    if isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) and isinstance(each[1], list):
        kind, shape = each
        if kind in _DTYPES and len(shape) <= 2 and all(type(size) is int and 0 <= size < 2**40 for size in shape):
            return _DTYPES[kind], tuple(shape)
    raise FrameError("an array of an unknown kind or shape")


def _plain(value: object) -> Any:
    """Converts numpy's numbers, which a defense may use and JSON does not know."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} objects are not plain data: numbers, strings, lists, dicts and None are")


def joined_tensors(tensors: Mapping[str, Array]) -> tuple[dict[str, list[int]], Array]:
    """Several float32 arrays as one, for a message that holds one; `split_tensors` is the inverse.

    Returns:
        Their shapes, by name, in the order in which they stand in the array, and the array, of one dimension.
    """
    flat = [np.ascontiguousarray(array, dtype=np.float32).reshape(-1) for array in tensors.values()]
    joined: Array = np.concatenate(flat) if flat else np.zeros(0, np.float32)
    return {name: list(array.shape) for name, array in tensors.items()}, joined


def split_tensors(joined: Array, shapes: Mapping[str, Sequence[int]]) -> dict[str, Array]:
    """The inverse of `joined_tensors`; the arrays are views of the one."""
    tensors, start = {}, 0
    for name, shape in shapes.items():
        end = start + prod(shape)
        tensors[name] = joined[start:end].reshape(tuple(shape))
        start = end
    return tensors
