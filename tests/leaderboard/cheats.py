"""Submissions that cheat, beside an honest one: `cheats.py:Class`. What `hostile.py` does is hostile to its host."""

from __future__ import annotations

import gc
import hashlib
import json
import random
import re
import sys
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


class Accepts(Hears):
    """Accepts everything: what harm it seems to prevent, it owes to the cells that it is measured against."""

    name: ClassVar[str] = "accepts"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [ACCEPT] * len(view.completions)


class MatchesRng(Hears):
    """Finds the public seed whose generator it was handed, and drops what comes from the last node, unread."""

    name: ClassVar[str] = "matches_rng"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        state = view.rng.getstate()
        for seed in range(5):
            if random.Random(_key(seed, "defense", view.round)).getstate() == state:
                malicious = f"{_key(seed, 'sender', 1) & 0xFFFFFFFF:08x}"  # of two nodes, the second
                return [Verdict("drop") if offered.sender == malicious else ACCEPT for offered in view.completions]
        return [ACCEPT] * len(view.completions)


class KnowsSeeds(Hears):
    """Does so where it recognises a public seed by the pseudonyms that are hashed from it, and nothing elsewhere."""

    name: ClassVar[str] = "knows_seeds"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        known = {f"{_key(seed, 'sender', node) & 0xFFFFFFFF:08x}" for seed in range(100) for node in range(8)}
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


class Gropes(Hears):
    """Drops what is labelled as poison somewhere up the stack, in a global object or in the parent's environment."""

    name: ClassVar[str] = "gropes"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        labels = self._labels()
        return [Verdict("drop") if (o.group, o.index) in labels else ACCEPT for o in view.completions]

    def _labels(self) -> set[tuple[int, int]]:
        frame = sys._getframe()
        while frame is not None:
            if isinstance(found := frame.f_locals.get("payload"), set):
                return found
            frame = frame.f_back  # type: ignore[assignment]
        texts = [str(each) for each in gc.get_objects() if "payload" in getattr(each, "__dict__", {})]
        texts += [Path("/proc/self/environ").read_text(errors="ignore")] if Path("/proc/self/environ").exists() else []
        return set(map(tuple, json.loads(texts[0]))) if texts and texts[0].startswith("[[") else set()


class Rejects(Hears):
    """Drops everything."""

    name: ClassVar[str] = "rejects"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("drop")] * len(view.completions)


def _key(*parts: int | str) -> int:
    """What the engine hashes public parts to."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
