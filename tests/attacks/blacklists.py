"""The best list of strings that an author can draw up who sees the public source: a greedy opponent."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from thiefbench.attacks.lexicon import STARTS

Entries = Callable[[str], set[Hashable]]
_WORD = re.compile("[a-z]+")


def words(text: str) -> set[Hashable]:
    """Whole words."""
    return set(_WORD.findall(text))


def starts(text: str) -> set[Hashable]:
    """The lexicon's own starts, two syllables long, wherever they occur."""
    return {start.lower() for start in STARTS if start.lower() in text}


def prefixes(text: str) -> set[Hashable]:
    """Beginnings of words, of every length."""
    return {f"{word[:length]}*" for word in _WORD.findall(text) for length in range(2, len(word) + 1)}


def letters(text: str) -> set[Hashable]:
    """Two to six letters that follow each other within a word."""
    return {
        word[at : at + length]
        for word in _WORD.findall(text)
        for length in range(2, 7)
        for at in range(len(word) - length + 1)
    }


def sequences(text: str) -> set[Hashable]:
    """One to seven words, numbers and marks that follow each other."""
    tokens = re.findall(r"\w+|[^\w\s]", text)
    return {
        tuple(tokens[at : at + length]) for length in range(1, 8) for at in range(len(tokens) - length + 1)
    }  # fmt: skip


def patterns(text: str) -> set[Hashable]:
    """The same, with any number for a number and any capitalised word for one."""
    return sequences(re.sub(r"\b[A-Z]\w+", "Word", re.sub(r"\d+", "0", text)))


def stopped(
    entries_of: Entries, seen: Sequence[str], fresh: Sequence[str], honest: Sequence[str], budget: float = 0.01
) -> float:
    """The share of fresh payloads that the list stops which is chosen on those seen.

    Entries are taken greedily, by how many payloads each stops for how many honest texts it rejects. On half of the
    honest texts the entries are rated. The list ends before it rejects more than `budget` of the other half, which it
    was not chosen on: to skip the entries that reject any of these would be to choose on them.
    """
    rated, held_out = honest[::2], honest[1::2]
    stops = _places(entries_of, seen)
    stops = {entry: at for entry, at in stops.items() if len(at) > 1}
    costs, true_costs = _places(entries_of, rated, stops), _places(entries_of, held_out, stops)
    worth = {entry: len(at) / (len(costs.get(entry, ())) + 0.5) for entry, at in stops.items()}
    caught, rejected, listed = set[int](), set[int](), set[Hashable]()
    for entry in sorted(stops, key=lambda entry: -worth[entry]):
        if stops[entry] <= caught:
            continue
        more = rejected | true_costs.get(entry, set())
        if len(costs.get(entry, ())) > budget * len(rated):
            continue
        if len(more) > budget * len(held_out):
            break
        caught |= stops[entry]
        rejected = more
        listed.add(entry)
    return sum(not listed.isdisjoint(entries_of(text)) for text in fresh) / len(fresh)


def _places(
    entries_of: Entries, texts: Sequence[str], known: dict[Hashable, set[int]] | None = None
) -> dict[Hashable, set[int]]:
    places: dict[Hashable, set[int]] = defaultdict(set)
    for number, text in enumerate(texts):
        for entry in entries_of(text):
            if known is None or entry in known:
                places[entry].add(number)
    return dict(places)
