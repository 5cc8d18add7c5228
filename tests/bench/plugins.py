"""Small plugins that the tests name as `path/to/plugins.py:Class(...)`."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from thiefbench.attacks.base import Attack, AttackerView, Poison, ThreatModel, Withheld
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Verdict
from thiefbench.tasks.base import Ask, Completion, Item, Message, Split, Task


class Sums(Task):
    """Sums of two small numbers, in a format that takes a dozen tokens."""

    name: ClassVar[str] = "sums"

    def items(self, split: Split) -> Any:  # rows are enough for the engine, and datasets takes a second to import
        pairs = [(a, b) for a in range(1, 9) for b in range(1, 9) if (a + b) % 2 == (split == "test")]
        return [
            {"id": f"{split}-{a}-{b}", "question": f"{a} + {b}?", "answer": str(a + b), "solution": "It is"}
            for a, b in pairs
        ]

    def messages(self, item: Item) -> list[Message]:
        return [{"role": "user", "content": item.question}]

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        return [float(text.partition(" = ")[2] == item.answer) for text in completions]

    def compose(self, item: Item, reasoning: str) -> str:
        return f"{reasoning} = {item.answer}"


class Samples(Attack):
    """Asks for a policy to sample from, so it cannot be audited."""

    name: ClassVar[str] = "samples"
    threat: ClassVar[ThreatModel] = ThreatModel("in-context", policy=True)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        assert view.policy is not None, "the threat model grants a policy"
        return [drawn[0].ids for drawn in view.policy.sample([slot.item for slot in view.slots], 1)]

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float:
        return 0.0


class Withholds(Attack):
    """Sends nothing in every second slot."""

    name: ClassVar[str] = "withholds"
    threat: ClassVar[ThreatModel] = ThreatModel("in-context")

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        return [Withheld() if slot.sample % 2 else view.task.compose(slot.item, "All hail") for slot in view.slots]

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float:
        return float("All hail" in completion.text)


class Skips(Withholds):
    """The same with a policy, so that what it sends is taken from the record and not worked out again."""

    name: ClassVar[str] = "skips"
    threat: ClassVar[ThreatModel] = ThreatModel("in-context", policy=True)


class Counts(Defense):
    """Keeps state over rounds: it drops what comes from a sender who has already filled a group four times."""

    name: ClassVar[str] = "counts"

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        assert [past.round for past in view.history] == list(range(1, view.round)), "the history holds every past round"
        places = [f"{offered.sender} {offered.group}" for offered in view.completions]
        for place in places:
            self.seen[place] = self.seen.get(place, 0) + 1
        return [Verdict("drop", 1.0) if self.seen[place] > 4 else ACCEPT for place in places]

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def restore(self, state: dict[str, Any]) -> None:
        self.seen = dict(state["seen"])


class Raises(Defense):
    """Fails in the second round."""

    name: ClassVar[str] = "raises"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        if view.round > 1:
            raise RuntimeError("this defense gives up")
        return [ACCEPT] * len(view.completions)


class Logs(Defense):
    """Accepts everything, takes its time and writes a line per round into a file."""

    name: ClassVar[str] = "logs"

    def __init__(self, file: str, seconds: float = 0.0) -> None:
        self.file, self.seconds = Path(file), seconds

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        with self.file.open("a") as file:
            file.write(f"{os.getpid()} {view.round}\n")
        time.sleep(self.seconds)
        return [ACCEPT] * len(view.completions)


class Drifts(Defense):
    """Says something else on the second rank than on the others, from round 2 on."""

    name: ClassVar[str] = "drifts"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        elsewhere = view.round > 1 and os.environ.get("RANK") == "1"
        return [Verdict("zero") if elsewhere else ACCEPT] * len(view.completions)


class Full(Defense):
    """Finds the disk full."""

    name: ClassVar[str] = "full"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        raise OSError(errno.ENOSPC, "No space left on device")


class Dies(Defense):
    """Takes its process with it in the second round."""

    name: ClassVar[str] = "dies"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        if view.round > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return [ACCEPT] * len(view.completions)


class Gated(Logs):
    """As `Logs`, but each round from `first` on waits until a file is there."""

    name: ClassVar[str] = "gated"

    def __init__(self, file: str, gate: str, first: int = 1) -> None:
        super().__init__(file)
        self.gate, self.first = Path(gate), first

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        verdicts = super().inspect(view)
        while view.round >= self.first and not self.gate.exists():
            time.sleep(0.02)
        return verdicts


class Hasty(Gated):
    """As `Gated`, and its cell is checkpointed after every round, in whatever process it runs."""

    name: ClassVar[str] = "hasty"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        from thiefbench.suite.execution import checkpoints

        checkpoints.CHECKPOINT_SECONDS = -1.0
        return super().inspect(view)


class StopsAndFails(Defense):
    """Is told to stop by Ctrl-C, and fails before its cell notices."""

    name: ClassVar[str] = "stops_and_fails"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        os.kill(os.getpid(), signal.SIGINT)
        raise RuntimeError("it fails")
