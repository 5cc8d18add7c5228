"""The names that entries and authors may have, so that readers cannot mistake one for another.

Strangers choose an entry's name and authors, and the board shows them together with others'. The rule is that of
Unicode Technical Standard 39, section 5.2, "Highly Restrictive": all letters are of one of the scripts that Unicode
Standard Annex 31 recommends, or of one of three sets of them that Chinese, Japanese and Korean are written in.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

from thiefbench.suite.analysis.ranking import ANCHORS, anchor_of
from thiefbench.tasks.text import one_line

OWN: Final = "ThiefBench"
"""Author of the baseline entries."""

_RECOMMENDED: Final = frozenset(
    [
        "ARABIC",
        "ARMENIAN",
        "BENGALI",
        "BOPOMOFO",
        "CJK",
        "CYRILLIC",
        "DEVANAGARI",
        "ETHIOPIC",
        "GEORGIAN",
        "GREEK",
        "GUJARATI",
        "GURMUKHI",
        "HANGUL",
        "HEBREW",
        "HIRAGANA",
        "KANNADA",
        "KATAKANA",
        "KHMER",
        "LAO",
        "LATIN",
        "MALAYALAM",
        "MYANMAR",
        "ORIYA",
        "SINHALA",
        "TAMIL",
        "TELUGU",
        "THAANA",
        "THAI",
        "TIBETAN",
    ]
)
"""Scripts in common use, each given by the first word of its letters' Unicode names."""
_TOGETHER: Final = (
    frozenset({"LATIN", "CJK", "HIRAGANA", "KATAKANA"}),
    frozenset({"LATIN", "CJK", "BOPOMOFO"}),
    frozenset({"LATIN", "CJK", "HANGUL"}),
)
_OF_ANY_SCRIPT: Final = frozenset({"COMBINING", "MODIFIER", "KATAKANA-HIRAGANA", "IDEOGRAPHIC"})
"""The first words of the Unicode names of letters and marks that are used in several scripts."""


def wrong_names(name: str, authors: Sequence[str], defense: str, baseline: bool) -> str:
    """What is wrong with the names of an entry, in one sentence; empty if nothing is.

    Args:
        name: of the entry.
        authors: of its defense.
        defense: its spec string.
        baseline: whether the benchmark's own name may be among the authors.
    """
    for what, each in (("name", name), *(("author", author) for author in authors)):
        if wrong := _misleading(each):
            return f"the {what} {one_line(each, 60)!r} {wrong}"
    if not baseline and (taken := next((each for each in authors if _folded(OWN) in _folded(each)), None)):
        return f"the author {one_line(taken, 60)!r} is kept for the benchmark's own entries; name who made the defense"
    if (anchor := _anchor_in(name)) and anchor_of(defense) != anchor:
        return (
            f"the name {one_line(name, 60)!r} is kept for {anchor}, a row of the benchmark itself; "
            "give the entry another name"
        )
    return ""


def _misleading(name: str) -> str:
    """Why a name could be mistaken for another, as a text to follow the name; empty if it could not."""
    if not name.isprintable():
        return "has characters that cannot be seen; leave them out"
    if not _folded(name):
        return "has no letter and no digit; write one"
    scripts = _scripts(name)
    if rare := sorted(scripts - _RECOMMENDED):
        return f"has {rare[0].capitalize()} letters, which few readers can tell from others; write it in another script"
    if len(scripts) > 1 and not any(scripts <= together for together in _TOGETHER):
        which = " and ".join(script.capitalize() for script in sorted(scripts))
        return f"mixes {which} letters, some of which look the same; write it in the letters of one script"
    return ""


def _scripts(text: str) -> set[str]:
    """The scripts of the letters and marks in a text, by the first word of their Unicode names."""
    letters = (c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c)[0] in "LM")
    return {unicodedata.name(letter, "unnamed").partition(" ")[0] for letter in letters} - _OF_ANY_SCRIPT


def _anchor_in(name: str) -> str:
    """The anchor that a name could be mistaken for: its name alone or before a bracket or ``on SUITE``."""
    beginning = unicodedata.normalize("NFKC", name).casefold().partition("(")[0]
    words = ["".join(filter(str.isalnum, word)) for word in beginning.replace("_", " ").replace("-", " ").split()]
    if "on" in words[1:]:
        words = words[: words.index("on", 1)]
    return next((anchor for anchor in ANCHORS if _folded(anchor) == _folded("".join(words))), "")


def _folded(name: str) -> str:
    """Only the letters and digits of a name, in lower case and without accents."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKD", name).casefold()))
