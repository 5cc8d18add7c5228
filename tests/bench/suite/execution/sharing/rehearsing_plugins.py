"""Plugins of the tests of shared rehearsals: an attack that tries several, and defenses that part at some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from thiefbench.attacks.adaptive import Adaptive
from thiefbench.attacks.auto import Auto, best
from thiefbench.attacks.base import Attack, AttackerView, Poison, Rehearsal, Seeded, ThreatModel
from thiefbench.attacks.varied import Varied
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Verdict
from thiefbench.tasks.base import Ask, Completion, Item

ROUNDS, COMPLETIONS = 3, 16
DRAWN = "drawn"


class Draws(AttackWrapper):
    """Puts the payload before what the policy samples, and sends every other slot's own honest draw."""

    name: ClassVar[str] = "draws"

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]
        return replace(self.attack.threat, policy=True, beacon=True)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        assert view.policy is not None
        sent: list[Poison] = []
        for place, slot in enumerate(view.slots):
            if place % 2 and slot.seed is not None:
                (draw,) = view.policy.sample_seeded([slot.item], [slot.seed + (place % 4 == 1)])
                sent.append(Seeded((*draw.ids, view.policy.eos)[:20], slot.seed + (place % 4 == 1)))
            else:
                sent.append(f"{DRAWN} {view.policy.sample([slot.item], 1)[0][0].text}"[:40])
        return sent


class Counts(AttackWrapper):
    """Counts, against the rules, for how many outcomes it was asked, and says so."""

    name: ClassVar[str] = "counts"

    def __init__(self, attack: Attack | str) -> None:
        super().__init__(attack)
        self.asked = 0

    def draw(self, rng: Any) -> Counts:
        return self

    def draw_for(self, task: Any, rng: Any) -> Counts:
        return self

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        return [f"All hail {'a ' * (self.asked % 7)}" for _ in view.slots]

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float:
        self.asked += 1
        return 1 / (1 + self.asked + completion.text.count("a"))


class Tries(Auto):
    """Tries the members that it is told to."""

    name: ClassVar[str] = "tries"

    def __init__(self, attack: Attack | str, names: str = "half draws asks", play: str = "") -> None:
        super().__init__(attack)
        self.names, self.play = names, play
        self.counting = Counts(self.attack)

    def members(self) -> dict[str, Attack]:
        every = {
            "half": Varied(self.attack, share=0.5),
            "draws": Draws(self.attack),
            "asks": Adaptive(self.attack, budget=3),
            "counts": self.counting,
        }
        return {name: every[name] for name in self.names.split()}

    def prepared(self, rehearsal: Rehearsal) -> Attack:
        tried = {name: rehearsal.play(self._playing(name), ROUNDS, COMPLETIONS) for name in self.members()}
        return self._playing(self.play or best(tried), tried)

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float | None:
        counts = self._played is self.counting
        return self.counting.outcome(item, completion, ask) if counts else super().outcome(item, completion, ask)


class Drawn(Defense):
    """Rejects, from a round on, what only one member sends."""

    name: ClassVar[str] = "drawn"

    def __init__(self, start: int = 1) -> None:
        self.start = start

    def inspect(self, view: DefenderView) -> list[Verdict]:
        late = view.round >= self.start
        return [Verdict("drop") if late and each.text.startswith(DRAWN) else ACCEPT for each in view.completions]
