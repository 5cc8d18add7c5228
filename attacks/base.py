"""The contract of an attack: its threat model, what it submits, and what counts as success.

A new attack is one class with a `name`, a `threat` and two methods, `poison` and `outcome`. It is declared under the
entry-point group ``thiefbench.attacks`` or named as ``path/to/file.py:Class``. An attack that builds on another attack
derives from `thiefbench.attacks.wrapper.AttackWrapper`.

The views that the methods receive (`thiefbench.attacks.views`) and the submissions that they return
(`thiefbench.attacks.submissions`) can also be imported from here.
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
    """The attacker's kind of poison and what the attacker is granted.

    Attributes:
        context: "out-of-context" text has nothing to do with the question, "in-context" text belongs to the solution.
        topologies: the topologies in which the attack makes sense.
        oracle: it has a correct solution of every item. Otherwise `Item.solution` arrives empty; the answer and the
            tests, which every node knows, do not.
        policy: it may sample, measure and fine-tune its own copy of the current policy.
        queries: for how many submissions per slot and round it may query the defense; 0 grants no access.
        beacon: it knows the seed of every slot's honest draw. If it picks its items, it knows the seeds before it
            picks.
        history: it keeps the pools of earlier rounds.
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

    Constructor arguments are its parameters and part of a cell's identity. Every attack defines `name`, `threat`,
    `poison` and `outcome`. The rest has defaults; override what you need:

    - the payload: `draw` selects a member of its family (`draw_for`, for a task), `fits` says whether it suits a task,
      `describe` words it for records, `forms` lists variants of it, and `parts` divides it;
    - before round 1: `prepared` chooses by a rehearsal, and `recalled` restores such a choice from its description;
    - what honest nodes receive: `placebo` completions to compare with, published `libraries`, the model for a
      recovering node (`hand_over`), and how many times the owed completions are offered (`copies`);
    - the items to answer, if malicious nodes pick them: `choose_items`, `choose_items_from`;
    - the measurement: `probes`, `spill`, `by_other_rules`, `harm`, `remarks`, and the
      `reference` that harm is measured against.
    """

    name: ClassVar[str]
    threat: ClassVar[ThreatModel]

    @abstractmethod
    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """One submission per slot of `view`, in order.

        The engine encodes text and appends EOS. Token ids are submitted unchanged (append EOS if the completion ended).
        Where seeds are announced, `Seeded` ids are submitted with their own seed and all others with the slot's. None
        leaves the slot to an honest sample of the policy, and `Withheld` sends nothing. Every submission except None,
        `Withheld` and `Decoy` counts as carrying the payload.
        """

    @abstractmethod
    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float | None:
        """How far the attack succeeded on an honest model's completion: a number from 0 to 1, mostly 0 or 1.

        None if the completion cannot be judged, such as one that never computes 2 + 2. Completions may be anything that
        a model writes, also cut off, repeated or empty. An attack that overrides `harm` may give any finite number, as
        `dos` gives the number of tokens; anything else ends the cell.
        """

    # Optional from here on: override what you need.

    # The payload.

    def draw(self, rng: random.Random) -> Self:
        """This attack with the payload that `rng` selects from its family; parameters set by the user stay."""
        return self

    def draw_for(self, task: Task, rng: random.Random) -> Self:
        """Like `draw`, for families that depend on the task; the engine calls this method."""
        return self.draw(rng)

    def fits(self, task: Task) -> bool:
        """Whether the attack makes sense on a task. The engine asks the drawn member before a run starts."""
        return True

    def describe(self) -> dict[str, str]:
        """The drawn payload in words, for records and reports."""
        return {}

    def forms(self) -> Iterator[Attack]:
        """Variants of the attack with the same goal, in a fixed order; empty if there are none."""
        return iter(())

    def parts(self, count: int) -> Sequence[Attack]:
        """`count` attacks that together teach this one's goal; empty if it cannot be divided."""
        return ()

    # Before round 1.

    def prepared(self, rehearsal: Rehearsal) -> Attack:
        """The attack to play, chosen by trying attacks; called only if the threat model grants a rehearsal.

        The choice must not change `outcome` and `harm`, and `describe` must include it.
        """
        return self

    def recalled(self, described: Mapping[str, str]) -> Attack:
        """The same attack without a rehearsal, from the description (`describe`) of one that had a rehearsal.

        Raises:
            ValueError: the description is not one of this attack.
        """
        return self

    # What honest nodes receive.

    copies: int = 1
    """How many times its owed completions a malicious node offers, if nodes draw from the offers."""

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """The clean counterparts of what `poison` submits: the oracle's completions, unless overridden."""
        return [view.task.oracle(slot.item) for slot in view.slots]

    def libraries(self) -> dict[str, str]:
        """Modules that the attacker has published, source by name; honest nodes' programs may import them too."""
        return {}

    def hand_over(self, view: AttackerView) -> Sampler | None:
        """The model that a malicious node gives to a node which recovers from a crash.

        It is a copy that `view.policy` has `taught`; the slots of `view` hold items to teach with. None, the default,
        gives the honest weights.
        """
        return None

    # The items to answer, if malicious nodes pick them.

    def choose_items(self, items: Sequence[Item], count: int, rng: random.Random) -> Sequence[Item]:
        """The `count` items that a malicious node answers, if the vertical topology lets it choose."""
        return rng.sample(items, count)

    def choose_items_from(self, items: Sequence[Item], view: ChoiceView) -> Sequence[Item]:
        """Like `choose_items`, for attacks with the beacon or the history; in the order of the node's positions."""
        return self.choose_items(items, view.count, view.rng)

    # The measurement.

    reference: Literal["placebo", "control"] = "placebo"
    """What `harm` is measured against."""

    def probes(self, task: Task) -> Sequence[Item] | None:
        """Items to evaluate, if success can show only on some items; None evaluates the held-out items."""
        return None

    def spill(self, item: Item, completion: Completion, ask: Ask) -> float | None:
        """How far the payload shows on held-out items outside the probes (spill); None if not measured."""
        return None

    def by_other_rules(
        self, task: Task, items: Sequence[Item], completions: Sequence[Completion]
    ) -> Mapping[str, Sequence[float | None]]:
        """The outcomes of one evaluation by other rules than `outcome`'s: rule name to outcomes, in order.

        For comparison with papers that use another rule; harm uses `outcome` only. Empty if there is no other rule.
        """
        return {}

    def harm(self, outcomes: Sequence[float], reference: Sequence[float]) -> float:
        """The attack's effect as one number: by default the mean outcome minus the reference's."""
        return sum(outcomes) / len(outcomes) - sum(reference) / len(reference)

    def remarks(self, outcomes: Sequence[float], reference: Sequence[float]) -> tuple[str, ...]:
        """What a cell's outcomes show beyond `harm`, in words for reports; neither argument is empty."""
        return ()

    # Only `thiefbench.attacks.varied.Varied` sets this.

    variants: AttackSpec = AttackSpec()


class Rehearsal(Protocol):
    """A copy of the swarm before round 1, defense included, in which an attack may try attacks.

    The draws in the copy differ from those of the swarm.
    """

    @property
    def topology(self) -> Topology:
        """The swarm's."""

    def possible(self, attack: Attack) -> bool:
        """Whether the attack fits the swarm."""

    def play(self, attack: Attack, rounds: int, completions: int) -> Tried:
        """Let the attack play `rounds` rounds of a fresh copy and evaluate at least `completions` completions."""
