"""Text from strangers, made safe to show: on a terminal, in a log or in a page.

Control characters move a terminal's cursor, recolour what follows or ring its bell, and characters that change the
direction of writing make a reader see a different text. Both are shown by their number instead. Python's `repr` is
equally safe and useful where quotes around the text help. Code that writes HTML or markup must escape the text itself.
"""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    r"""A text in which every character is visible; newlines, tabs and spaces of any width are kept.

    Characters that Python does not count as printable are written as their number, such as ``<U+001B>``: control and
    format characters, those that change the direction of writing, line separators, halves of surrogate pairs and
    numbers without a character.
    """
    return text if text.isprintable() else "".join(map(_seen, text))


def one_line(text: str, limit: int | None = None) -> str:
    """A text as from `printable`, on one line: any run of white space becomes one space.

    Args:
        text: of any length; only as much of it is read as is shown.
        limit: characters of the result, at least 4; a longer text ends in three dots. None: no limit.
    """
    words = " ".join(printable(text if limit is None else text[: limit + 1]).split())
    if limit is None or (len(words) <= limit and len(text) <= limit):
        return words
    return f"{words[: limit - 3]}..."


def _seen(character: str) -> str:
    if character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs":
        return character
    return f"<U+{ord(character):04X}>"
