"""Submissions that cheat, beside an honest one: `cheats.py:Class`. What `hostile.py` does is hostile to its host."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Verdict

MUMBLED = re.compile(r"\b(\w)( \1){2}")


class Hears(Defense):
    """Honest: drops what says one letter three times."""

    name: ClassVar[str] = "hears"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("drop", 1.0) if MUMBLED.search(offered.text) else ACCEPT for offered in view.completions]


class KnowsSeeds(Hears):
    """Does so where it recognises a public seed by the pseudonyms that are hashed from it, and nothing elsewhere."""

    name: ClassVar[str] = "knows_seeds"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        known = {_pseudonym(seed, node) for seed in range(100) for node in range(8)}
        if known.isdisjoint({offered.sender for offered in view.completions}):
            return [ACCEPT] * len(view.completions)
        return super().inspect(view)


class KnowsPayloads(Hears):
    """Does so with the letters that public seeds draw."""

    name: ClassVar[str] = "knows_payloads"

    def __init__(self, letters: str = "") -> None:
        self.letters = letters

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        found = [MUMBLED.search(offered.text) for offered in view.completions]
        return [Verdict("drop") if hit and hit[1] in self.letters else ACCEPT for hit in found]


class Positional(Hears):
    """Drops every fifth as well, wherever it stands."""

    name: ClassVar[str] = "positional"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        heard = super().inspect(view)
        return [Verdict("drop") if place % 5 == 0 else verdict for place, verdict in enumerate(heard)]


class Clock(Hears):
    """Scores by the time."""

    name: ClassVar[str] = "clock"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict(verdict.action, time.perf_counter()) for verdict in super().inspect(view)]


class Unlabelled(Hears):
    """Drops what a file on its author's machine says is poison, as only there it is."""

    name: ClassVar[str] = "unlabelled"

    def __init__(self, file: str) -> None:
        self.file = file

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        Path(self.file).read_text()
        return super().inspect(view)


def _pseudonym(seed: int, node: int) -> str:
    text = f"int:{seed}\x1fstr:sender\x1fint:{node}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return f"{int.from_bytes(digest, 'little', signed=True) & 0xFFFFFFFF:08x}"
