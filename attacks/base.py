"""The contract of an attack: what it is granted, what it submits, what counts as its success.

A new attack is one class with a `name`, a `threat` and two methods, declared under the entry-point group
``thiefbench.attacks`` or given as ``path/to/file.py:Class``.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, Self

from thiefbench.tasks.base import Ask, Completion, Item, Task, Topology

Poison = str | tuple[int, ...] | None


@dataclass(frozen=True)
class ThreatModel:
    """What the attacker is and what it is granted.

    Attributes:
        context: "out-of-context" text has nothing to do with the question, "in-context" text belongs to the solution.
        topologies: where the attack makes sense.
        oracle: it has a correct solution of every item (otherwise `Item.solution` arrives empty).
        policy: it may sample from its own copy of the current policy.
    """

    context: Literal["in-context", "out-of-context"]
    topologies: frozenset[Topology] = frozenset({"vertical", "horizontal"})
    oracle: bool = True
    policy: bool = False


class Sampler(Protocol):
    """The attacker's own copy of the current policy."""

    def sample(self, items: Sequence[Item], count: int) -> list[list[Completion]]:
        """Draw `count` completions for each item, with the swarm's sampling settings."""


@dataclass(frozen=True)
class Slot:
    """One completion that a malicious node owes.

    Attributes:
        item: the problem.
        node: which of the colluding nodes owes it.
        group: the group it falls into, from 0 to B - 1.
        index: its place among that node's completions for this item.
    """

    item: Item
    node: int
    group: int
    index: int


@dataclass(frozen=True)
class AttackerView:
    """All that the threat model grants in one round.

    Attributes:
        round: the round's number, from 1.
        slots: what all colluding nodes owe this round.
        task: composes completions in the task's format.
        rng: keyed by (seed, round).
        policy: the current policy, or None where the threat model does not grant it.
    """

    round: int
    slots: tuple[Slot, ...]
    task: Task
    rng: random.Random
    policy: Sampler | None = None


class Attack(ABC):
    """A poisoner. Constructor arguments are its parameters and part of a cell's identity."""

    name: ClassVar[str]
    threat: ClassVar[ThreatModel]

    def draw(self, rng: random.Random) -> Self:
        """The member of the attack's payload family that `rng` selects; parameters given by the user stay."""
        return self

    @abstractmethod
    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """One submission per slot of `view`, in order.

        Text is encoded by the engine and ended with EOS, token ids go as they are, and None leaves the slot to an
        honest sample of the policy.
        """

    @abstractmethod
    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float | None:
        """How far the attack succeeded on this completion, usually 0 or 1; None when the completion says nothing."""

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """The clean completions that `poison` would carry its payload in: the oracle's, unless overridden."""
        return [view.task.oracle(slot.item) for slot in view.slots]

    def choose_items(self, items: Sequence[Item], count: int, rng: random.Random) -> Sequence[Item]:
        """The `count` items a malicious node answers where the vertical topology lets it choose."""
        return rng.sample(items, count)

    def probes(self, task: Task) -> Sequence[Item] | None:
        """Items evaluated instead of the held-out ones, where success can show only on some; None for held-out."""
        return None

    def harm(self, outcomes: Sequence[float], reference: Sequence[float]) -> float:
        """What the attack wants, as one number: by default the difference of the means to the reference."""
        return sum(outcomes) / len(outcomes) - sum(reference) / len(reference)

    def describe(self) -> dict[str, str]:
        """The drawn payload in words, for records and reports."""
        return {}
