"""The contract of an attack: what it is granted, what it submits, what counts as its success.

A new attack is one class with a `name`, a `threat` and two methods, declared under the entry-point group
``thiefbench.attacks`` or given as ``path/to/file.py:Class``. One that builds on another attack derives from
`AttackWrapper`.
"""

from __future__ import annotations

import copy
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal, Protocol, Self

from thiefbench.tasks.base import Ask, Completion, Item, Task, Topology


class Decoy(str):
    """Text that an attacker submits without payload, such as gibberish that makes poison look good beside it."""

    __slots__ = ()


@dataclass(frozen=True)
class Seeded:
    """Token ids (EOS included where the completion ended) with the seed that they are said to be drawn with."""

    ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Claimed:
    """A submission with what its sender says of it, where such claims travel; elsewhere they are left out.

    Attributes:
        made: text, or token ids with the closing EOS.
        logprob: the natural-log probability that every token is said to have had; None reports the true ones.
        version: the number of updates behind the weights that it is said to be sampled from; None says the current.
    """

    made: str | tuple[int, ...]
    logprob: float | None = None
    version: int | None = None


@dataclass(frozen=True)
class SeenCompletion:
    """A completion that arrived in an earlier round: everybody holds it.

    Attributes:
        round: when.
        ids, text: in the tokens of the attacker's model, without the closing EOS.
        reward: the task's.
    """

    round: int
    ids: tuple[int, ...]
    text: str
    reward: float


Submission = str | tuple[int, ...] | Seeded | Claimed
Poison = Submission | None


class QueryBudgetError(RuntimeError):
    """An attack asked the defense more often than its threat model grants."""


@dataclass(frozen=True)
class ThreatModel:
    """What the attacker is and what it is granted.

    Attributes:
        context: "out-of-context" text has nothing to do with the question, "in-context" text belongs to the solution.
        topologies: where the attack makes sense.
        oracle: it has a correct solution of every item (otherwise `Item.solution` arrives empty).
        policy: it may sample, measure and fine-tune its own copy of the current policy.
        queries: how many submissions per slot it may put to the defense in a round; 0 grants no access.
        beacon: it knows the seed of every slot's honest draw, and where it picks its items, it knows it before.
        history: it keeps what arrived in earlier rounds.
    """

    context: Literal["in-context", "out-of-context"]
    topologies: frozenset[Topology] = frozenset({"vertical", "horizontal"})
    oracle: bool = True
    policy: bool = False
    queries: int = 0
    beacon: bool = False
    history: bool = False

    @property
    def defense(self) -> bool:
        """Whether it may query the defense."""
        return self.queries > 0


@dataclass(frozen=True)
class AttackSpec:
    """Variants that `varied` applies around any attack.

    Attributes:
        oracle: it has correct solutions; otherwise it draws `candidates` answers per item from the policy, takes the
            majority's answer as the truth and one of the completions that gave it as the solution to poison.
        candidates: how many answers it draws, at least 1.
        gibberish: share of the malicious slots of a group that are gibberish with reward 0, so that poison has a
            positive advantage where all others are right; half of an owned group (vertical) maximises it. In [0, 1).
        share: share of the malicious slots of a group (gibberish left out) that carry poison, rounded up; the rest
            are honest samples. In (0, 1].
        start, stop: first and last round in which it poisons, from 1; None goes on to the end. Outside it is honest.
        split: colluders divide one goal; the attack must offer `parts`.
        identities: pseudonyms under which each malicious node appears, at least 1.

    Raises:
        ValueError: a value is out of its range.
    """

    oracle: bool = True
    candidates: int = 8
    gibberish: float = 0.0
    share: float = 1.0
    start: int = 1
    stop: int | None = None
    split: bool = False
    identities: int = 1

    def __post_init__(self) -> None:
        for name in ("candidates", "start", "identities"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.gibberish < 1:
            raise ValueError(f"gibberish is a share of a group and must lie in [0, 1), got {self.gibberish}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share must lie in (0, 1], got {self.share}")
        if self.stop is not None and self.stop < self.start:
            raise ValueError(f"stop is the last round that is poisoned and must not come before start, got {self.stop}")

    def around(self, attack: str) -> str:
        """The spec string of `attack` with these variants around it; `attack` itself where nothing is varied."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        given = "".join(f", {name}={value!r}" for name, value in sorted(own.items()))
        return f"varied(attack={attack!r}{given})" if given else attack

    def active(self, number: int) -> bool:
        """Whether it poisons in round `number`."""
        return self.start <= number <= (math.inf if self.stop is None else self.stop)


class Sampler(Protocol):
    """The attacker's own copy of the current policy.

    Token ids are a completion's, from its first token; whoever means a completion that ended appends `eos`.
    """

    @property
    def eos(self) -> int:
        """The token that ends a completion."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a completion's text, without EOS."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""

    def sample(self, items: Sequence[Item], count: int) -> list[list[Completion]]:
        """Draw `count` completions for each item, with the swarm's sampling settings."""

    def sample_after(
        self, items: Sequence[Item], prefixes: Sequence[Sequence[int]], count: int
    ) -> list[list[Completion]]:
        """Draw `count` completions for each item that begin with its prefix; the prefix is part of what returns."""

    def sample_seeded(self, items: Sequence[Item], seeds: Sequence[int]) -> list[Completion]:
        """The completion of each item that an honest node with this seed, a signed 64-bit integer, would draw."""

    def in_support(self, items: Sequence[Item], ids: Sequence[Sequence[int]]) -> list[list[bool]]:
        """For each row of ids, whether the sampler's settings could have let each token through."""

    def token_logprobs(self, items: Sequence[Item], ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """For each row of ids, the natural-log probability of each token at the sampler's temperature."""

    def taught(self, examples: Sequence[tuple[Item, str]], steps: int, learning_rate: float) -> Sampler:
        """A copy fine-tuned on (item, completion text) pairs; this sampler's weights stay as they are."""


@dataclass(frozen=True)
class Slot:
    """One completion that a malicious node owes; (node, group, index) tells it from all others of the round.

    Attributes:
        item: the problem.
        node: which of the colluding nodes owes it.
        group: the group it falls into, from 0 to B - 1.
        index: its place among that node's completions for this item.
        seed: of the slot's honest draw; None where the threat model does not grant the beacon.
    """

    item: Item
    node: int
    group: int
    index: int
    seed: int | None = None


@dataclass(frozen=True)
class ChoiceView:
    """What a malicious node that is granted the beacon or the history knows when it picks its items.

    Attributes:
        count: how many items it answers, each at a position from 0.
        group: G, completions of each.
        task: rewards completions.
        rng: keyed by (seed, round, node).
        policy: the current policy, or None where the threat model does not grant it.
        seed: (item, position, index) -> the seed of the honest draw that this slot would have.
        seen: what arrived in earlier rounds, by item id, oldest first; empty where the history is not granted.
    """

    count: int
    group: int
    task: Task
    rng: random.Random
    policy: Sampler | None
    seed: Callable[[Item, int, int], int]
    seen: Mapping[str, Sequence[SeenCompletion]] = field(default_factory=dict)


@dataclass(frozen=True)
class DefenseAnswer:
    """What the honest nodes' defense would do with a submission.

    Attributes:
        accepted: whether it would be kept, with its reward.
        text: what it would arrive as.
        learned: what of the text would be learned from: tokens whose weight is at least one half. All of it unless the
            defense masks tokens, and empty where it rejects.
    """

    accepted: bool
    text: str
    learned: str


class DefenseOracle(Protocol):
    """What an adaptive attacker may ask the honest nodes' defense before it submits.

    A question is about submissions that the round would hold together; honest samples fill all other slots. Every
    submission is one query of its slot. One call for many slots costs the defense a single inspection.
    """

    def accepts(self, submissions: Mapping[Slot, Submission]) -> dict[Slot, bool]:
        """Whether each submission would be accepted, be it with masked tokens.

        Raises:
            QueryBudgetError: a slot has used up its queries of this round.
        """

    def answers(self, submissions: Mapping[Slot, Submission]) -> dict[Slot, DefenseAnswer]:
        """The same question with a fuller answer.

        Raises:
            QueryBudgetError: a slot has used up its queries of this round.
        """


@dataclass(frozen=True)
class AttackerView:
    """All that the threat model grants in one round.

    Attributes:
        round: the round's number, from 1.
        slots: what all colluding nodes owe this round.
        task: composes completions in the task's format.
        rng: keyed by (seed, round).
        policy: the current policy, or None where the threat model does not grant it.
        defense: the honest nodes' defense to query, or None where the threat model does not grant it.
        seen: what arrived in earlier rounds, by item id, oldest first; empty where the history is not granted.
    """

    round: int
    slots: tuple[Slot, ...]
    task: Task
    rng: random.Random
    policy: Sampler | None = None
    defense: DefenseOracle | None = None
    seen: Mapping[str, Sequence[SeenCompletion]] = field(default_factory=dict)


class Attack(ABC):
    """A poisoner. Constructor arguments are its parameters and part of a cell's identity."""

    name: ClassVar[str]
    threat: ClassVar[ThreatModel]
    variants: AttackSpec = AttackSpec()
    reference: Literal["placebo", "control"] = "placebo"
    """What `harm` is measured against."""
    copies: int = 1
    """How many times as much as it owes a malicious node offers, where nodes draw from what is offered."""

    def draw(self, rng: random.Random) -> Self:
        """The member of the attack's payload family that `rng` selects; parameters given by the user stay."""
        return self

    def fits(self, task: Task) -> bool:
        """Whether the attack makes sense on a task; asked of the drawn member before a run starts."""
        return True

    @abstractmethod
    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """One submission per slot of `view`, in order.

        Text is encoded by the engine and ended with EOS. Token ids go as they are (append EOS where the completion
        ended); `Seeded` ones go with their seed where seeds are announced, all others with the slot's. None leaves the
        slot to an honest sample of the policy. What is neither None nor a `Decoy` carries the payload.
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

    def choose_items_from(self, items: Sequence[Item], view: ChoiceView) -> Sequence[Item]:
        """The same, asked of an attack that is granted the beacon or the history, in the order of its positions."""
        return self.choose_items(items, view.count, view.rng)

    def hand_over(self, view: AttackerView) -> Sampler | None:
        """The model that a malicious node hands to a node which recovers from it: one that `view.policy` has taught.

        The slots of `view` are items to teach with. None, the default, hands over the honest weights.
        """
        return None

    def probes(self, task: Task) -> Sequence[Item] | None:
        """Items evaluated instead of the held-out ones, where success can show only on some; None for held-out."""
        return None

    def libraries(self) -> dict[str, str]:
        """Modules the attacker has published, name to source: programs of honest nodes may import them too."""
        return {}

    def forms(self) -> Iterator[Attack]:
        """Members with the same goal in other forms, in a fixed order; none where the attack knows no other form."""
        return iter(())

    def parts(self, count: int) -> Sequence[Attack]:
        """`count` members that together teach this one's goal; empty where it cannot be divided."""
        return ()

    def harm(self, outcomes: Sequence[float], reference: Sequence[float]) -> float:
        """What the attack wants, as one number: by default the difference of the means to the reference."""
        return sum(outcomes) / len(outcomes) - sum(reference) / len(reference)

    def remarks(self, outcomes: Sequence[float], reference: Sequence[float]) -> tuple[str, ...]:
        """What the outcomes of a cell show beyond `harm`, in words for reports; neither side is empty."""
        return ()

    def describe(self) -> dict[str, str]:
        """The drawn payload in words, for records and reports."""
        return {}


class AttackWrapper(Attack):
    """An attack that builds on another: it answers for it everywhere except where a subclass says otherwise.

    Args:
        attack: the inner attack. In a spec string it is a spec string itself, which the registry makes an attack of.

    Raises:
        TypeError: `attack` is still a spec string.
        ValueError: `attack` is `varied`, which only goes outside, where the engine reads its fields.
    """

    def __init__(self, attack: Attack | str) -> None:
        if isinstance(attack, str):
            raise TypeError(f"{self.name}: attack is an Attack; thiefbench.registry.make makes one of {attack!r}")
        if attack.variants != AttackSpec():
            raise ValueError(f"{self.name}: varied goes outside, as in varied(attack=\"{self.name}(attack='text')\")")
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
        """The same around the inner attack's drawn member."""
        made = copy.copy(self)
        made.attack = self.attack.draw(rng)
        return made

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

    def libraries(self) -> dict[str, str]:
        """As the inner attack."""
        return self.attack.libraries()

    def forms(self) -> Iterator[Attack]:
        """The same around the inner attack's other forms."""
        for form in self.attack.forms():
            made = copy.copy(self)
            made.attack = form
            yield made

    def harm(self, outcomes: Sequence[float], reference: Sequence[float]) -> float:
        """As the inner attack."""
        return self.attack.harm(outcomes, reference)

    def remarks(self, outcomes: Sequence[float], reference: Sequence[float]) -> tuple[str, ...]:
        """As the inner attack."""
        return self.attack.remarks(outcomes, reference)

    def describe(self) -> dict[str, str]:
        """As the inner attack."""
        return self.attack.describe()
