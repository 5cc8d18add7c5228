"""Stage attacks and stage checks for tests of pipelines, named by this file's path."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from thiefbench.attacks.base import Attack
from thiefbench.attacks.stages.base import LessonView, MessageView, StageAttack, StageAttackView
from thiefbench.defenses.stages.base import StageCheck, StageVerdict, StageView
from thiefbench.engine.keys import generator


class Sends(StageAttack):
    """Send activations that are none, or that are not what the stage computed; weights stay honest."""

    name: ClassVar[str] = "sends"

    def __init__(self, attack: Attack | str = "text(phrase='a b')", what: str = "nothing") -> None:
        super().__init__(attack)
        self.what, self.lessons = what, 4

    def learned(self, view: LessonView) -> torch.Tensor:
        return view.taught(self.examples(view.lessons, self.attack.poison), 1, 1e-3)

    def added(self, view: StageAttackView) -> None:
        return None

    def sent(self, view: MessageView) -> object:
        mine = view.computed
        sent: dict[str, Any] = {
            "nothing": None, "nan": mine * float("nan"), "infinite": mine + float("inf"), "short": mine[:, :-1],
            "flat": mine[0], "double": mine.double(), "text": "activations", "twice": mine * 2, "same": mine.clone(),
        }  # fmt: skip
        return sent[self.what]


class SendsOnce(Sends):
    """Send twice what was computed when first asked about a pass, and be honest when asked again."""

    name: ClassVar[str] = "sends_once"

    def sent(self, view: MessageView) -> object:
        asked = self.__dict__.setdefault("asked", set())
        again = (view.round, view.number) in asked
        asked.add((view.round, view.number))
        return view.computed if again else view.computed * 2


class Overwrites(Sends):
    """Change the activations that the view has, in their place."""

    name: ClassVar[str] = "overwrites"

    def sent(self, view: MessageView) -> object:
        return view.computed.mul_(2)


class Adds(StageAttack):
    """Add something to the stage's weights in every round."""

    name: ClassVar[str] = "adds"

    def __init__(
        self, attack: Attack | str = "text(phrase='a b')", what: str = "ones", learns: str = "zeros", first: int = 1
    ) -> None:
        super().__init__(attack)
        self.what, self.learns, self.lessons, self.first = what, learns, 4, first

    def learned(self, view: LessonView) -> torch.Tensor:
        zeros = 0 * view.taught(self.examples(view.lessons, self.attack.poison), 1, 1e-3)
        return zeros if self.learns == "zeros" else zeros[:-1]

    def added(self, view: StageAttackView) -> torch.Tensor | None:
        if view.round < self.first:
            return None
        ones = torch.ones_like(view.weights)
        return {"ones": 0.01 * ones, "short": ones[:-1], "nan": ones * float("nan"), "double": ones.double()}[self.what]


class Foresees(Adds):
    """Add something in every round in which, as far as the seed tells, the stage's work is not repeated."""

    name: ClassVar[str] = "foresees"

    def __init__(self, attack: Attack | str = "text(phrase='a b')", seed: int = 0, share: float = 0.5) -> None:
        super().__init__(attack)
        self.seed, self.share = seed, share

    def added(self, view: StageAttackView) -> torch.Tensor | None:
        draw = generator(self.seed, "stage check", view.round, view.stage - 1).random()
        return None if draw < self.share else super().added(view)


class Counts(StageCheck):
    """Reject one stage in one round; and count the calls, so that a lost state shows."""

    name: ClassVar[str] = "counts"

    def __init__(self, stage: int = 2, round: int = 2, every: bool = False, repeats: bool = False) -> None:
        self.stage, self.round, self.every, self.repeats, self.calls = stage, round, every, repeats, 0

    def check(self, view: StageView) -> StageVerdict:
        self.calls += 1
        if self.repeats:
            view.recompute()
        reject = view.stage == self.stage and (self.every or view.round == self.round)
        return StageVerdict("reject" if reject else "accept", float(self.calls))

    def state(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def restore(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


class Recoveries(StageCheck):
    """Accept all, and keep the views."""

    name: ClassVar[str] = "recoveries"

    def __init__(self) -> None:
        self.views: list[StageView] = []

    def check(self, view: StageView) -> StageVerdict:
        self.views.append(view)
        return StageVerdict()
