"""Recorded rounds, played again by the engine: what was sampled is taken from the record, all else is worked out anew.

Items, duties, pseudonyms, submissions, texts, rewards, advantages and outcomes follow from a cell's spec, the sampled
tokens and the verdicts. So a record is true in itself where the engine, given these, makes the very same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thiefbench.attacks.base import Attack
from thiefbench.defenses.base import DefenderView, Defense, Verdict
from thiefbench.engine.learning.cohort import Cohort, ObserverCohort
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import Role, SwarmSpec
from thiefbench.engine.swarm import RoundPlan, Swarm, items_of
from thiefbench.engine.topology import Duty
from thiefbench.engine.transport import Offer
from thiefbench.tasks.base import Completion, Item, Task


class RetellingError(Exception):
    """Recorded rows are none that a swarm can leave. A clause that says why."""


class Retold(Swarm):
    """A swarm whose honest completions and verdicts are those of a record; nothing is sampled and nothing learned.

    What an attack that is granted neither policy nor queries submits is worked out anew. Of one that is, items and
    submissions stay as recorded, since they depend on weights that are gone, and so do its labels.

    Args:
        spec, role, policy, task, attack, seed: as of the cell. Of the policy only the tokenizer is used.
    """

    _learner = ObserverCohort

    def __init__(self, spec: SwarmSpec, role: Role, policy: Policy, task: Task, attack: Attack, seed: int) -> None:
        self._verdicts = _Recorded()
        if spec.mixed:
            raise RetellingError("its swarm is heterogeneous, delayed or unsteady, and only plain ones are told again")
        super().__init__(spec, role, policy, task, attack, self._verdicts, seed)
        self._rows: dict[tuple[int, int], CompletionRow] = {}
        self._evaluations: dict[str, Sequence[CompletionRow]] = {}
        self._given: dict[tuple[str, str], float] | None = None
        threat = self.attack.threat
        self._guided = threat.policy or threat.queries > 0

    def retell(
        self, rows: Sequence[CompletionRow], completions: int = 0, trust_rewards: bool = False
    ) -> list[CompletionRow]:
        """The rows that the engine makes of recorded ones.

        Args:
            rows: all rows of one round's pool, or of one evaluation, in stored order.
            completions: that the evaluation was to draw; unused for a round.
            trust_rewards: take the task's rewards from the record too.

        Raises:
            RetellingError: no swarm leaves such rows.
        """
        self._given = {(row.item_id, row.text): row.reward for row in rows} if trust_rewards else None
        number = rows[0].round
        try:
            if rows[0].phase != "train":
                self._evaluations = {phase: [row for row in rows if row.phase == phase] for phase in ("eval", "probe")}
                return self.evaluate(number, completions).rows
            self._rows = {(row.group, row.place): row for row in rows}
            self._verdicts.rows = self._rows
            self.history.clear()
            return self.round(number).rows
        except KeyError as error:
            raise RetellingError(f"it lacks a completion, {error} (group and place, or item)") from error
        except ValueError as error:
            raise RetellingError(str(error)) from error

    def _items_of_round(self, number: int, owed: Sequence[Duty]) -> list[Item]:
        if not self._guided or self.role == "control" or self.spec.topology == "horizontal":
            return super()._items_of_round(number, owed)
        known = {item.id: item for item in items_of(self.task, "train")}
        return [known[self._rows[duty.group, 0].item_id] for duty in owed if duty.index == 0]

    def _honest_offers(self, asked: RoundPlan, owed: Sequence[Duty]) -> list[Offer]:
        made = []
        for duty in owed:
            told = self._rows[duty.group, duty.index]
            if duty.node < self.honest:
                self._check_sampled(told)
            ids = (*told.ids, self.policy.eos) if told.ended else told.ids
            made.append(Offer(duty.node, duty.group, duty.index, ids, self._seed_of(asked, duty)))
        return made

    def _malicious_offers(
        self, asked: RoundPlan, owed: Sequence[Duty], honest: Sequence[Offer]
    ) -> tuple[list[Offer], set[tuple[int, int]]]:
        if not self._guided:
            return super()._malicious_offers(asked, owed, honest)
        places = {(duty.group, duty.index) for duty in owed}
        payload = {place for place in places if self._rows[place].payload and self.role == "attack"}
        return self._honest_offers(asked, owed), payload

    def _answers(self, phase: str, items: Sequence[Item], first: int, answering: Sequence[Cohort]) -> list[Completion]:
        told = self._evaluations[phase][first : first + len(items)]
        if len(told) < len(items):
            raise RetellingError(f"of an evaluation's {first + len(items)} completions it has {first + len(told)}")
        for row in told:
            self._check_sampled(row)
        texts = self.policy.decode([row.ids for row in told])
        return [Completion(row.ids, text, row.ended) for row, text in zip(told, texts, strict=True)]

    def _rewards_of(self, items: Sequence[Item], done: Sequence[Completion]) -> list[float]:
        if self._given is None:
            return super()._rewards_of(items, done)
        pairs = [(item.id, made.text) for item, made in zip(items, done, strict=True)]
        self._known = {pair: self._given.get(pair, 0.0) for pair in pairs}
        return [self._known[pair] for pair in pairs]

    def _check_sampled(self, row: CompletionRow) -> None:
        """See that the sampler could stop here: at EOS, or at the length limit.

        Raises:
            RetellingError: it could not.
        """
        length, limit = len(row.ids) + row.ended, self.spec.sampling.max_new_tokens
        if row.ids and not 0 <= min(row.ids) <= max(row.ids) < self.policy.vocabulary:
            raise RetellingError("a token is outside the vocabulary")
        if self.policy.eos in row.ids or length > limit or (not row.ended and length < limit):
            raise RetellingError(f"a completion of {length} tokens ends where the sampler does not")


class _Recorded(Defense):
    """Says what was said."""

    name = "recorded"

    def __init__(self) -> None:
        self.rows: Mapping[tuple[int, int], CompletionRow] = {}

    def inspect(self, view: DefenderView) -> list[Verdict]:
        told = [self.rows[offered.group, offered.index] for offered in view.completions]
        return [Verdict(row.action, row.score, row.token_weights, row.reason) for row in told]  # type: ignore[arg-type]
