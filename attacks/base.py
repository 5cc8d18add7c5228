"""The contract of an attack: its threat model, what it submits, what counts as its success.

A new attack is one class with a `name`, a `threat` and two methods, `poison` and `outcome`. It is declared under the
entry-point group ``thiefbench.attacks`` or given as ``path/to/file.py:Class``. An attack that builds on another one
derives from `thiefbench.attacks.wrapper.AttackWrapper`.

What the methods are shown (`thiefbench.attacks.views`) and what they submit (`thiefbench.attacks.submissions`) can be
imported from here too.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, Self

from thiefbench.attacks.spec import AttackSpec
from thiefbench.attacks.submissions import Claimed, Decoy, Poison, Seeded, Submission, Withheld
from thiefbench.attacks.views import (
    AttackerView,
    ChoiceView,
    DefenseAnswer,
    DefenseOracle,
    QueryBudgetError,
    Sampler,
    SeenCompletion,
    Slot,
    Tried,
)
from thiefbench.tasks.base import Ask, Completion, Item, Task, Topology

__all__ = [
    "Attack",
    "AttackSpec",
    "AttackerView",
    "ChoiceView",
    "Claimed",
    "Decoy",
    "DefenseAnswer",
    "DefenseOracle",
    "Poison",
    "QueryBudgetError",
    "Rehearsal",
    "Sampler",
    "Seeded",
    "SeenCompletion",
    "Slot",
    "Submission",
    "ThreatModel",
    "Tried",
    "Withheld",
]


@dataclass(frozen=True)
class ThreatModel:
    """What the attacker is and what it is granted.

    Attributes:
        context: "out-of-context" text has nothing to do with the question, "in-context" text belongs to the solution.
        topologies: where the attack makes sense.
        oracle: it has a correct solution of every item (otherwise `Item.solution` arrives empty).
        policy: it may sample, measure and fine-tune its own copy of the current policy.
        queries: for how many submissions per slot and round it may query the defense; 0 grants no access.
        beacon: it knows the seed of every slot's honest draw. Where it picks its items, it knows the seeds before.
        history: it keeps what arrived in earlier rounds.
        rehearsal: before round 1 it may play rounds on copies of the swarm, defense included.
    """

    context: Literal["in-context", "out-of-context"]
    topologies: frozenset[Topology] = frozenset({"vertical", "horizontal"})
    oracle: bool = True
    policy: bool = False
    queries: int = 0
    beacon: bool = False
    history: bool = False
    rehearsal: bool = False

    @property
    def defense(self) -> bool:
        """Whether it may query the defense."""
        return self.queries > 0


class Attack(ABC):
    """An attack poisons completions and judges whether the poison was learned.

    Constructor arguments are its parameters and part of a cell's identity. Everybody writes `name`, `threat`, `poison`
    and `outcome`. The rest has defaults; override what you need:

    - the payload: `draw` a member of its family (`draw_for` a task), whether it `fits` one, `describe` it, put it in
      other `forms`, divide it into `parts`;
    - what it does before round 1: `prepared` by a rehearsal, or `recalled` from what was described of one;
    - what honest nodes receive: `placebo` completions to compare with, published `libraries`, the model that a
      recovering node is given (`hand_over`), how much is offered (`copies`);
    - the items to answer, where malicious nodes pick them: `choose_items`, `choose_items_from`;
    - the measurement: `probes`, `spill`, `by_other_rules`, `harm`, `remarks` and the
      `reference` that harm is measured against.
    """

    name: ClassVar[str]
    threat: ClassVar[ThreatModel]

    @abstractmethod
    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """One submission per slot of `view`, in order.

        Text is encoded by the engine and ended with EOS. Token ids are submitted as they are (append EOS where the
        completion ended). `Seeded` ids are submitted with their seed where seeds are announced, all others with the
        slot's. None leaves the slot to an honest sample of the policy, and `Withheld` sends nothing. Everything but
        these two and a `Decoy` counts as carrying the payload.
        """

    @abstractmethod
    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float | None:
        """How far the attack succeeded on an honest model's completion, usually 0 or 1.

        None when the completion cannot tell, such as one that never computes 2 + 2.
        """

    # Optional from here on: override what you need.

    # The payload.

    def draw(self, rng: random.Random) -> Self:
        """The member of the attack's payload family that `rng` selects; parameters given by the user stay."""
        return self

    def draw_for(self, task: Task, rng: random.Random) -> Self:
        """The same where the family depends on the task; the engine calls this one."""
        return self.draw(rng)

    def fits(self, task: Task) -> bool:
        """Whether the attack makes sense on a task. The engine asks the drawn member before a run starts."""
        return True

    def describe(self) -> dict[str, str]:
        """The drawn payload in words, for records and reports."""
        return {}

    def forms(self) -> Iterator[Attack]:
        """Members with the same goal in other forms, in a fixed order; none where the attack knows no other form."""
        return iter(())

    def parts(self, count: int) -> Sequence[Attack]:
        """`count` members that together teach this one's goal; empty where it cannot be divided."""
        return ()

    # Before round 1.

    def prepared(self, rehearsal: Rehearsal) -> Attack:
        """The attack as it will play, after it has tried what it likes; called if the threat model grants a rehearsal.

        Whatever it chooses, `outcome` and `harm` stay as they are, and `describe` says what was chosen.
        """
        return self

    def recalled(self, described: Mapping[str, str]) -> Attack:
        """The same without a rehearsal, from what `describe` said of an attack that had one.

        Raises:
            ValueError: no such attack describes itself like this.
        """
        return self

    # What honest nodes receive.

    copies: int = 1
    """How many times the completions it owes a malicious node offers, where nodes draw from what is offered."""

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """The clean completions that `poison` puts its payload into: the oracle's, unless overridden."""
        return [view.task.oracle(slot.item) for slot in view.slots]

    def libraries(self) -> dict[str, str]:
        """Modules that the attacker has published, name to source; programs of honest nodes may import them too."""
        return {}

    def hand_over(self, view: AttackerView) -> Sampler | None:
        """The model that a malicious node gives to a node which recovers from a crash.

        It is a copy that `view.policy` has `taught`; the slots of `view` hold items to teach with. None, the default,
        gives the honest weights.
        """
        return None

    # The items to answer, where malicious nodes pick them.

    def choose_items(self, items: Sequence[Item], count: int, rng: random.Random) -> Sequence[Item]:
        """The `count` items that a malicious node answers where the vertical topology lets it choose."""
        return rng.sample(items, count)

    def choose_items_from(self, items: Sequence[Item], view: ChoiceView) -> Sequence[Item]:
        """The same for an attack that is granted the beacon or the history, in the order of the node's positions."""
        return self.choose_items(items, view.count, view.rng)

    # The measurement.

    reference: Literal["placebo", "control"] = "placebo"
    """What `harm` is measured against."""

    def probes(self, task: Task) -> Sequence[Item] | None:
        """Items to evaluate where success can show only on some; None evaluates the held-out items."""
        return None

    def spill(self, item: Item, completion: Completion, ask: Ask) -> float | None:
        """How far a payload shows where it should not, on held-out items beside the probes; None for no such thing."""
        return None

    def by_other_rules(
        self, task: Task, items: Sequence[Item], completions: Sequence[Completion]
    ) -> Mapping[str, Sequence[float | None]]:
        """The outcomes of one evaluation by other rules than `outcome`'s, by the rule's name, in their order.

        For comparison with others who count differently; harm rests on `outcome` alone. Empty: there is no other rule.
        """
        return {}

    def harm(self, outcomes: Sequence[float], reference: Sequence[float]) -> float:
        """What the attack wants, as one number: by default the mean outcome minus that of the reference."""
        return sum(outcomes) / len(outcomes) - sum(reference) / len(reference)

    def remarks(self, outcomes: Sequence[float], reference: Sequence[float]) -> tuple[str, ...]:
        """What the outcomes of a cell show beyond `harm`, in words for reports; neither side is empty."""
        return ()

    # Set by `thiefbench.attacks.varied.Varied` alone.

    variants: AttackSpec = AttackSpec()


class Rehearsal(Protocol):
    """A copy of the swarm as it is before round 1, defense included, that an attack may try itself in.

    What the copy draws is not what the swarm will draw.
    """

    @property
    def topology(self) -> Topology:
        """The swarm's."""

    def possible(self, attack: Attack) -> bool:
        """Whether the attack fits the swarm."""

    def play(self, attack: Attack, rounds: int, completions: int) -> Tried:
        """Let the attack play `rounds` rounds of a fresh copy and evaluate at least `completions` completions."""
