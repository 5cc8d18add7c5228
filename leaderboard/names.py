"""The names that entries and authors may have, so that readers cannot mistake one for another.

Strangers choose an entry's name and authors, and the board shows them together with others'. The rule is that of
Unicode Technical Standard 39, section 5.2, "Highly Restrictive": all letters are of one of the scripts that Unicode
Standard Annex 31 recommends, or of one of three sets of them that Chinese, Japanese and Korean are written in.
"""

from __future__ import annotations

import re
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
_UNSEEN: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters, marks and a symbol that Python calls printable and that are shown as nothing."""
_MOST_MARKS: Final = 4
"""Marks on one letter, as in Unicode Technical Standard 39, section 5.4; more of them cover the lines beside."""
_CAPITALS: Final = str.maketrans(
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03dc\u03f9",
    "abezhikmnoptyxfc",
)
"""Greek capitals that readers take for Latin ones; in lower case they look otherwise."""
_SMALL_CAPITAL: Final = "LATIN LETTER SMALL CAPITAL "
"""How the Unicode names of such letters begin, most of which end with the letter that they look like."""
_UPRIGHT: Final = re.compile(r"(?<=\w)[!|](?=\w)|[\u01c0\u3163\u4e28]")
"""Signs inside a word, and letters of other scripts, that readers take for an l."""
_LOOKS_LIKE: Final = str.maketrans(
    "i10\u0127"
    "\u0131\u0251\u0261\u0269\u026a\u029f"  # Latin: dotless i, alpha, script g, iota, small capitals I and L
    "\u0430\u0432\u0435\u043a\u043c\u043d\u043e\u043f\u0440\u0441\u0442\u0443\u0445"  # Cyrillic, as in Russian
    "\u0433\u0455\u0456\u0458\u0493\u04bb\u04cf\u0501"  # Cyrillic, as in Kazakh and Macedonian
    "\u03b1\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4\u03c5",  # Greek
    "lloh" + "laglll" + "abekmhonpctyx" + "rsljfhld" + "alkvoptu",
)
"""Lower-case letters and digits that readers take for others, among them those of an all-Cyrillic or all-Greek name."""
_ON_A_SUITE: Final = re.compile(r"(?<=\w)[\s_-]+(on|for)[\s_-]+.*$|\s*\([^=()]*\)\s*$", re.IGNORECASE)
"""The end of a name such as "guard on trial" or "guard (new)", or of a folder's such as guard-on-trial."""
_VERDICTS: Final = ("reexecuted", "rescored")
"""What the board says of an entry, and no entry of itself."""
_TWO_LOOK_LIKE: Final = (("rn", "m"), ("vv", "w"))
"""Two letters that readers take for one."""


def wrong_names(name: str, slug: str, authors: Sequence[str], defense: str, baseline: bool) -> str:
    """What is wrong with the names of an entry, in one sentence; empty if nothing is.

    Args:
        name: of the entry.
        slug: its folder's.
        authors: of its defense.
        defense: its spec string.
        baseline: whether the benchmark's own name may be among the authors.
    """
    for what, each in (("name", name), *(("author", author) for author in authors)):
        if wrong := _misleading(each):
            return f"the {what} {one_line(each, 60)!r} {wrong}"
    if not baseline and (taken := next((each for each in authors if _seen(OWN) in _seen(each)), None)):
        return f"the author {one_line(taken, 60)!r} is kept for the benchmark's own entries; name who made the defense"
    if not baseline and (own := next((each for each in (name, slug) if _seen(OWN) in _seen(each)), None)):
        return f"the name {one_line(own, 60)!r} is kept for the benchmark's own entries; give the entry another name"
    called = (("name", name), ("name", slug), ("defense", defense), *(("author", author) for author in authors))
    for what, each in called:
        if any(_seen(verdict) in _seen(each) for verdict in _VERDICTS):
            return f"the {what} {one_line(each, 60)!r} gives a verdict, as only the board does; write another one"
    if (row := anchor_of(defense)) and _anchor_in(name) != row:
        return (
            f"the name {one_line(name, 60)!r} is given to {row}, a row of the benchmark itself; call its entry "
            f"{defense!r}"
        )
    if (anchor := _anchor_in(name)) and anchor_of(defense) != anchor:
        return (
            f"the name {one_line(name, 60)!r} is kept for {anchor}, a row of the benchmark itself; "
            "give the entry another name"
        )
    return ""


def _misleading(name: str) -> str:
    """Why a name could be mistaken for another, as a text to follow the name; empty if it could not."""
    if not name.isprintable() or not _UNSEEN.isdisjoint(name):
        return "has characters that cannot be seen; leave them out"
    if not _folded(name):
        return "has no letter and no digit; write one"
    marks = [unicodedata.category(letter) in ("Mn", "Me") for letter in unicodedata.normalize("NFKD", name)]
    if any(all(marks[start : start + _MOST_MARKS + 1]) for start in range(len(marks) - _MOST_MARKS)):
        return f"has more than {_MOST_MARKS} marks on one letter; leave them out"
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
    beginning = unicodedata.normalize("NFKC", name.translate(_CAPITALS)).partition("(")[0]
    words = ["".join(filter(str.isalnum, word)) for word in beginning.replace("_", " ").replace("-", " ").split()]
    if on := next((at for at, word in enumerate(words) if at and word.casefold() == "on"), 0):
        words = words[:on]
    return next((anchor for anchor in ANCHORS if _seen(anchor) == _seen("".join(words))), "")


def seen(name: str) -> str:
    """What readers take the name of an entry or of its folder for, whatever suite it says it is on.

    Two names for which this is equal can hardly be told apart; of letters that look alike it knows the most common.
    """
    return _seen(_ON_A_SUITE.sub("", name)) or _seen(name)


def _folded(name: str) -> str:
    """Only the letters and digits of a name, in lower case and without accents.

    Letters that modify others, such as the one that looks like an apostrophe, are overlooked as punctuation is.
    """
    text = unicodedata.normalize("NFKD", name.translate(_CAPITALS)).translate(_CAPITALS).casefold()
    return "".join(_plain(each) for each in text if each.isalnum() and unicodedata.category(each) != "Lm")


def _plain(letter: str) -> str:
    """A letter, or the one whose small capital it is."""
    name = unicodedata.name(letter, "")
    drawn = name.removeprefix(_SMALL_CAPITAL)
    return drawn.lower() if drawn != name and len(drawn) == 1 else letter


def _seen(name: str) -> str:
    """What readers take a name for: its letters and digits, those that look alike made the same."""
    text = _folded(_UPRIGHT.sub("l", name)).translate(_LOOKS_LIKE)
    for two, one in _TWO_LOOK_LIKE:
        text = text.replace(two, one)
    return text
