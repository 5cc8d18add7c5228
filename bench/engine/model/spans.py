"""The position of each token in a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

# What decoders write for bytes that are not a whole character.
BROKEN = "\ufffd"

Decode = Callable[[Sequence[Sequence[int]]], list[str]]
"""Token id rows to texts."""


def token_spans(ids: Sequence[int], text: str, pieces: Sequence[str], decode: Decode) -> NDArray[np.int64]:
    """First character of every token and the one after its last, shape (tokens, 2).

    A character whose bytes are split over several tokens belongs to each of them.

    Args:
        ids: the tokens.
        text: the text to which they decode together.
        pieces: the text to which each decodes alone.
        decode: the tokenizer's decoding function.

    If the pieces do not add up to the text (some tokenizers drop a leading space), every prefix is decoded, in time
    quadratic in the length. If the prefixes do not match either, because the text is not that of the tokens, the tokens
    after the first difference have empty spans.
    """
    spans: list[tuple[int, int]] = []
    built, first = "", 0
    while first < len(ids):
        last = first + 1
        if BROKEN in pieces[first]:  # such a run decodes alone as it does in the text: whole characters surround it
            while last < len(ids) and BROKEN in pieces[last]:
                last += 1
            run = ids[first:last]
            whole = decode([run])[0]
            spans += [(len(built) + start, len(built) + end) for start, end in _by_prefixes(run, whole, decode)]
        else:
            whole = pieces[first]
            spans.append((len(built), len(built) + len(whole)))
        built += whole
        first = last
    if built != text:
        spans = _by_prefixes(ids, text, decode)
    return np.array(spans, np.int64).reshape(-1, 2)


def _by_prefixes(ids: Sequence[int], text: str, decode: Decode) -> list[tuple[int, int]]:
    """The same from what each prefix of the tokens decodes to."""
    spans, settled = [], 0
    for prefix in decode([ids[:count] for count in range(1, len(ids) + 1)]):
        common = _shared(prefix, text)
        start, end = min(settled, common), common
        if len(prefix) > common and prefix[common] == BROKEN and common < len(text):
            end = common + 1  # the bytes so far are a part of the next character
        elif start == end > 0 and text[end - 1] == BROKEN:
            start = end - 1  # a further part of bytes that never become a character
        spans.append((start, end))
        settled = common
    return spans


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    shorter, longer = sorted((one, other), key=len)
    if longer.startswith(shorter):
        return len(shorter)
    return next(place for place, letter in enumerate(shorter) if letter != longer[place])
