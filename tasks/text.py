"""Text from strangers, made safe to show: on a terminal, in a log or in a page.

Control characters move a terminal's cursor, recolour what follows or ring its bell, and characters that turn the
direction of writing make a reader see another text than is there. Both are shown by their number instead. Python's own
`repr` is as safe, and of use where quotes around the text help; escaping HTML or markup remains with who writes it.
"""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    r"""A text in which every character can be seen; newlines, tabs and spaces of any width stay.

    Whatever Python does not count as printable is written as its number, such as ``<U+001B>``: control and format
    characters, those that turn the direction of writing, line separators, halves of surrogate pairs and numbers without
    a character.
    """
    return text if text.isprintable() else "".join(map(_seen, text))


def one_line(text: str, limit: int | None = None) -> str:
    """A text as `printable`, on one line: any run of white space is one space.

    Args:
        text: of any length; no more of it is read than is shown.
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
