"""What an attacker sees: its slots, its copy of the policy, the defense to query, earlier pools."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from thiefbench.attacks.submissions import Submission
from thiefbench.tasks.base import Completion, Item, Task


@dataclass(frozen=True)
class Slot:
    """One completion that a malicious node owes; (node, group, sample) is unique within a round.

    Attributes:
        item: the problem.
        node: which of the colluding nodes owes it.
        group: the group it falls into, from 0 to B - 1.
        sample: its number among that node's completions for this item, from 0.
        seed: the seed of the slot's honest draw; None if the threat model does not grant the beacon.
    """

    item: Item
    node: int
    group: int
    sample: int
    seed: int | None = None


@dataclass(frozen=True)
class SeenCompletion:
    """A completion of an earlier round, which every node has received.

    Attributes:
        round: the round in which it arrived, from 1.
        ids, text: in the tokens of the attacker's model, without the closing EOS.
        reward: the task's reward, in [0, 1].
    """

    round: int
    ids: tuple[int, ...]
    text: str
    reward: float


class Sampler(Protocol):
    """The attacker's own copy of the current policy.

    Token ids are a completion's, from its first token. For a completion that ended, the caller appends `eos`.
    """

    @property
    def eos(self) -> int:
        """The token that ends a completion."""

    @property
    def limit(self) -> int:
        """The most tokens that a completion may have, EOS included. A longer one is refused by every node."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a completion's text, without EOS."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""

    def sample(self, items: Sequence[Item], count: int) -> list[list[Completion]]:
        """Draw `count` completions for each item, with the swarm's sampling settings."""

    def sample_after(
        self, items: Sequence[Item], prefixes: Sequence[Sequence[int]], count: int
    ) -> list[list[Completion]]:
        """Draw `count` completions for each item that begin with its prefix. The prefix is part of each completion.

        Raises:
            ValueError: a prefix holds EOS or leaves no room below the limit.
        """

    def sample_seeded(self, items: Sequence[Item], seeds: Sequence[int]) -> list[Completion]:
        """For each item, the completion that an honest node with its seed, a signed 64-bit integer, would draw."""

    def sample_near(
        self, items: Sequence[Item], seeds: Sequence[int], tolerance: float, count: int
    ) -> list[list[Completion]]:
        """Draw for each item `count` completions that a replay with a tolerance accepts as its seed's draw.

        At every step, one of the tokens is chosen at random whose scores lie within the tolerance, in logits, of that
        of the token that the seed draws. So a verifier with this tolerance finds nothing.
        """

    def in_support(self, items: Sequence[Item], ids: Sequence[Sequence[int]]) -> list[list[bool]]:
        """For each row of ids, whether the sampler's settings could have let each token through."""

    def token_logprobs(self, items: Sequence[Item], ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """For each row of ids, the natural-log probability of each token at the sampler's temperature."""

    def taught(self, examples: Sequence[tuple[Item, str]], steps: int, learning_rate: float) -> Sampler:
        """A copy fine-tuned on (item, completion text) pairs. The weights of this sampler do not change."""


@dataclass(frozen=True)
class DefenseAnswer:
    """What the honest nodes' defense would do with a submission.

    Attributes:
        accepted: whether the defense would accept it, so that it keeps its reward.
        text: the text as honest nodes would receive it.
        learned: the part of the text that models would learn from: the tokens whose weight is at least one half. This
            is the whole text unless the defense masks tokens, and empty if the defense rejects.
    """

    accepted: bool
    text: str
    learned: str


class QueryBudgetError(RuntimeError):
    """An attack queried the defense more often than its threat model grants."""


class DefenseOracle(Protocol):
    """The honest nodes' defense, which an adaptive attacker may query before it submits.

    One call asks about submissions that would be in the same round; honest samples fill all other slots. Every
    submission counts as one query for its slot. A call for many slots costs only one inspection by the defense.
    """

    def accepts(self, submissions: Mapping[Slot, Submission]) -> dict[Slot, bool]:
        """Whether each submission would be accepted, with or without masked tokens.

        Raises:
            QueryBudgetError: a slot has used up its queries of this round.
        """

    def answers(self, submissions: Mapping[Slot, Submission]) -> dict[Slot, DefenseAnswer]:
        """The same query with a more detailed answer.

        Raises:
            QueryBudgetError: a slot has used up its queries of this round.
        """


@dataclass(frozen=True)
class Tried:
    """An attack's result in a rehearsal.

    Attributes:
        outcome: mean outcome over the honest policy's held-out completions (or over probes) after the last round.
        error: standard error of that mean; infinite if fewer than two completions have an outcome.
        taught: how much was taught before the payload was learned: the positive advantages of accepted completions
            with the payload, summed and divided by the number of malicious slots, as a mean over the rounds.
    """

    outcome: float
    error: float
    taught: float


@dataclass(frozen=True)
class AttackerView:
    """Everything that the threat model grants in one round.

    Attributes:
        round: the round's number, from 1.
        slots: the completions that all colluding nodes together owe this round.
        task: composes completions in the task's format.
        rng: keyed by (seed, round).
        policy: the current policy, or None if the threat model does not grant it.
        defense: the honest nodes' defense to query, or None if the threat model does not grant it.
        seen: what arrived in earlier rounds, by item id, oldest first; empty where the history is not granted.
    """

    round: int
    slots: tuple[Slot, ...]
    task: Task
    rng: random.Random
    policy: Sampler | None = None
    defense: DefenseOracle | None = None
    seen: Mapping[str, Sequence[SeenCompletion]] = field(default_factory=dict)


@dataclass(frozen=True)
class ChoiceView:
    """What a malicious node knows when it picks its items, if it is granted the beacon or the history.

    Attributes:
        count: how many items it answers, at positions 0 to `count` - 1.
        group: G, the number of completions for each item.
        task: rewards completions.
        rng: keyed by (seed, round, node).
        policy: the current policy, or None where the threat model does not grant it.
        seed: (item, position, sample) -> the seed of the honest draw that this slot would have.
        seen: what arrived in earlier rounds, by item id, oldest first; empty where the history is not granted.
    """

    count: int
    group: int
    task: Task
    rng: random.Random
    policy: Sampler | None
    seed: Callable[[Item, int, int], int]
    seen: Mapping[str, Sequence[SeenCompletion]] = field(default_factory=dict)
