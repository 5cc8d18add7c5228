"""The base class of attacks that build on another attack."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Self

from thiefbench.attacks.base import Attack, ThreatModel
from thiefbench.attacks.spec import AttackSpec
from thiefbench.attacks.submissions import Poison
from thiefbench.attacks.views import AttackerView, ChoiceView, Sampler
from thiefbench.tasks.base import Ask, Completion, Item, Task


class AttackWrapper(Attack):
    """An attack that builds on another.

    Every method passes the call on to that attack unless a subclass overrides it. Exceptions are `prepared` and
    `recalled`, as the inner attack never rehearses, and `parts`: a wrapped attack cannot be divided.

    Args:
        attack: the inner attack. Within a spec string it is itself a spec string, which the registry turns into an
            attack.

    Raises:
        TypeError: `attack` is still a spec string.
        ValueError: `attack` is `varied` or is granted a rehearsal. Both must be outermost, where the engine reads the
            fields of `varied` and prepares an attack that rehearses.
    """

    def __init__(self, attack: Attack | str) -> None:
        if isinstance(attack, str):
            raise TypeError(f"{self.name}: attack is an Attack; thiefbench.registry.make makes one of {attack!r}")
        if attack.variants != AttackSpec():
            raise ValueError(f"{self.name}: varied goes outside, as in varied(attack=\"{self.name}(attack='text')\")")
        if attack.threat.rehearsal:
            raise ValueError(
                f"{self.name}: {attack.name} goes outside, since it rehearses whole attacks, as in "
                f"{attack.name}(attack=\"{self.name}(attack='text')\")"
            )
        self.attack = attack

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # of plain attacks a constant, here the inner attack's
        """The inner attack's."""
        return self.attack.threat

    @property
    def copies(self) -> int:  # type: ignore[override]  # as threat
        """The inner attack's."""
        return self.attack.copies

    @property
    def reference(self) -> Literal["placebo", "control"]:  # type: ignore[override]  # as threat
        """The inner attack's."""
        return self.attack.reference

    def draw(self, rng: random.Random) -> Self:
        """The same attack around the inner attack's drawn member."""
        wrapped = copy.copy(self)
        wrapped.attack = self.attack.draw(rng)
        return wrapped

    def draw_for(self, task: Task, rng: random.Random) -> Self:
        """The same attack around the inner attack's member for a task."""
        before = rng.getstate()
        wrapped = copy.copy(self.draw(rng))
        rng.setstate(before)  # the inner attack draws first, before anything that a subclass draws
        wrapped.attack = self.attack.draw_for(task, rng)
        return wrapped

    def fits(self, task: Task) -> bool:
        """As the inner attack."""
        return self.attack.fits(task)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """As the inner attack."""
        return self.attack.poison(view)

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float | None:
        """As the inner attack."""
        return self.attack.outcome(item, completion, ask)

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """As the inner attack."""
        return self.attack.placebo(view)

    def choose_items(self, items: Sequence[Item], count: int, rng: random.Random) -> Sequence[Item]:
        """As the inner attack."""
        return self.attack.choose_items(items, count, rng)

    def choose_items_from(self, items: Sequence[Item], view: ChoiceView) -> Sequence[Item]:
        """As the inner attack."""
        return self.attack.choose_items_from(items, view)

    def hand_over(self, view: AttackerView) -> Sampler | None:
        """As the inner attack."""
        return self.attack.hand_over(view)

    def probes(self, task: Task) -> Sequence[Item] | None:
        """As the inner attack."""
        return self.attack.probes(task)

    def spill(self, item: Item, completion: Completion, ask: Ask) -> float | None:
        """As the inner attack."""
        return self.attack.spill(item, completion, ask)

    def libraries(self) -> dict[str, str]:
        """As the inner attack."""
        return self.attack.libraries()

    def forms(self) -> Iterator[Attack]:
        """The same around the inner attack's other forms."""
        for form in self.attack.forms():
            wrapped = copy.copy(self)
            wrapped.attack = form
            yield wrapped

    def by_other_rules(
        self, task: Task, items: Sequence[Item], completions: Sequence[Completion]
    ) -> Mapping[str, Sequence[float | None]]:
        """As the inner attack."""
        return self.attack.by_other_rules(task, items, completions)

    def harm(self, outcomes: Sequence[float], reference: Sequence[float]) -> float:
        """As the inner attack."""
        return self.attack.harm(outcomes, reference)

    def remarks(self, outcomes: Sequence[float], reference: Sequence[float]) -> tuple[str, ...]:
        """As the inner attack."""
        return self.attack.remarks(outcomes, reference)

    def describe(self) -> dict[str, str]:
        """As the inner attack."""
        return self.attack.describe()
