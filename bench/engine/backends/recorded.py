"""Recorded rounds, played again: samples are taken from the record, everything else is computed again.

Items, assignments, pseudonyms, submissions, texts, rewards, advantages and outcomes follow from a cell's spec, the
sampled tokens and the verdicts. So a record is consistent if the engine, given these, computes exactly the same rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from thiefbench.attacks.base import Attack
from thiefbench.attacks.reward_judges import JudgedThreatModel, JudgeForm
from thiefbench.defenses.base import DefenderView, Defense, Verdict
from thiefbench.engine.answer_keys import scored_id
from thiefbench.engine.backends.local import LocalBackend
from thiefbench.engine.colluders import Colluders
from thiefbench.engine.context import SwarmContext, items_of
from thiefbench.engine.learning.cohort import Cohort, ObserverCohort
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.reward_judge import Scored
from thiefbench.engine.round_plan import MaliciousWork, RoundPlan
from thiefbench.engine.round_record import CompletionRow, by_rule
from thiefbench.engine.spec import Role, SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.engine.topology import Assignment, PoolPosition
from thiefbench.engine.transport import Offer, Received
from thiefbench.tasks.base import Completion, Item, Task


class RerunError(Exception):
    """Recorded rows are inconsistent with any valid run. The message is a clause that says why."""


class RecordedSwarm:
    """A swarm with the honest completions and verdicts of a record; it neither samples nor learns.

    The submissions of an attack without access to policy, queries or a judge that rewards are computed again. For other
    attacks, the recorded items, submissions and labels are used, because they depend on weights that are no longer
    available, or on replies. The rewards of a judge are those of the record too; whether it gives them is for the
    caller to ask it.

    Args:
        spec, role, policy, task, attack, seed: the cell's. Only the policy's tokenizer is used.
        judge_faults: what a judge that rewards says where it gives no reward; a record with others is inconsistent.

    Attributes:
        attack: the attack with the payload that the seed draws.

    Raises:
        RerunError: the nodes are not all equal and always present.
        SpecError: see `Swarm`.
    """

    def __init__(
        self, spec: SwarmSpec, role: Role, policy: Policy, task: Task, attack: Attack, seed: int,
        judge_faults: Collection[str] = (),
    ) -> None:  # fmt: skip
        if spec.mixed:
            raise RerunError("its swarm is heterogeneous, delayed or unsteady, and only plain ones can be run again")
        self._defense, self._backend = _RecordedVerdicts(), RecordedBackend()
        self._judge = None if spec.reward == "rule" else _RecordedRewards(task, judge_faults)
        self._swarm = Swarm(
            spec, role, policy, task, attack, self._defense, seed, backend=self._backend, reward_judge=self._judge
        )
        self.attack = self._swarm.attack

    def recall(self, described: Mapping[str, str]) -> None:
        """Set the attack that a record describes; see `Swarm.recall`.

        Raises:
            RerunError: the description is not this attack's, or lacks the choice made in a rehearsal, which cannot be
                repeated without the weights.
        """
        try:
            self._swarm.recall(described)
        except ValueError as error:
            raise RerunError(str(error)) from error
        if not self._swarm.prepared:
            raise RerunError(f"it does not say what {self.attack.name} chose before round 1")
        self.attack = self._swarm.attack

    def rerun(
        self, rows: Sequence[CompletionRow], completions: int = 0, trust_rewards: bool = False
    ) -> list[CompletionRow]:
        """The rows that the engine computes from recorded ones.

        Args:
            rows: all rows of one round's pool, or of one evaluation, in stored order.
            completions: the number that the evaluation was to draw; unused for a round.
            trust_rewards: take the task's rewards from the record too.

        Raises:
            RerunError: no swarm can produce these rows.
        """
        self._backend.take(rows, trust_rewards)
        number = rows[0].round
        try:
            if rows[0].phase != "train":
                return self._swarm.evaluate(number, completions).rows
            self._defense.rows = self._backend.pool
            if self._judge is not None:
                self._judge.take(rows)
            self._swarm.history.clear()
            return self._swarm.round(number).rows
        except KeyError as error:
            raise RerunError(f"it lacks a completion, {error} (group and place, or item)") from error
        except ValueError as error:
            raise RerunError(str(error)) from error


class RecordedBackend:
    """Takes completions from a record (a `RoundBackend`); see `RecordedSwarm`.

    Attributes:
        pool: the rows of the current round, by their places in its pool.
    """

    cohort_class = ObserverCohort
    context: SwarmContext

    def __init__(self) -> None:
        self.pool: Mapping[PoolPosition, CompletionRow] = {}
        self._evaluation: Mapping[str, Sequence[CompletionRow]] = {}
        self._trusted_rewards: Mapping[tuple[str, str], float] | None = None
        self._local = LocalBackend()

    def attach(self, context: SwarmContext) -> None:
        """Take the swarm's parts."""
        self.context = context
        self._local.attach(context)
        self._colluders = Colluders(context, self)
        threat = context.attack.threat
        asks = threat.queries > 0 or isinstance(threat, JudgedThreatModel)
        self._from_weights = threat.policy or asks  # so its work cannot be done again

    def take(self, rows: Sequence[CompletionRow], trust_rewards: bool) -> None:
        """Use the rows of one round's pool, or of one evaluation, from now on."""
        items = {item.id: item for item in items_of(self.context.task, "train")}
        pairs = {(scored_id(row.item_id, row.answer_key, items), row.text): by_rule(row) for row in rows}
        self._trusted_rewards = pairs if trust_rewards else None
        if rows[0].phase == "train":
            self.pool = {(row.group, row.place): row for row in rows}
        else:
            self._evaluation = {phase: [row for row in rows if row.phase == phase] for phase in ("eval", "probe")}

    def items(self, number: int, assignments: Sequence[Assignment]) -> list[Item]:
        """The recorded items if an attack chose them by the weights; otherwise they are drawn and chosen again."""
        spec = self.context.spec
        chosen = spec.topology == "vertical" and spec.items == "chosen" and self.context.role != "control"
        if not (self._from_weights and chosen):  # what is drawn or committed to depends on no weights
            return self._local.items(number, assignments)
        by_id = {item.id: item for item in items_of(self.context.task, "train")}
        return [by_id[self.pool[assignment.at].item_id] for assignment in assignments if assignment.index == 0]

    def honest_work(self, plan: RoundPlan, assignments: Sequence[Assignment]) -> list[Offer]:
        """The recorded completions."""
        for assignment in assignments:
            if assignment.node not in self.context.malicious:
                self._check_sampled(self.pool[assignment.at])
        return [self._offer(plan, assignment) for assignment in assignments]

    def malicious_work(
        self, plan: RoundPlan, assignments: Sequence[Assignment], honest: Sequence[Offer]
    ) -> MaliciousWork:
        """The recorded submissions if they depend on the weights; otherwise the attack submits again."""
        if not self._from_weights:
            return self._colluders.work(plan, assignments, honest)
        payload = {
            assignment.at
            for assignment in assignments
            if self.pool[assignment.at].payload and self.context.role == "attack"
        }
        return MaliciousWork([self._offer(plan, assignment) for assignment in assignments], payload)

    def receive(
        self, plan: RoundPlan, offers: Sequence[Offer], known: Mapping[int, Received] | None = None
    ) -> list[Received]:
        """As in one process."""
        return self._local.receive(plan, offers, known)

    def rewards(self, items: Sequence[Item], completions: Sequence[Completion]) -> list[float]:
        """The task's rewards, or the recorded ones if the record is trusted."""
        if self._trusted_rewards is None:
            return self._local.rewards(items, completions)
        pairs = zip(items, completions, strict=True)
        return [self._trusted_rewards.get((item.id, completion.text), 0.0) for item, completion in pairs]

    def answers(self, phase: str, items: Sequence[Item], first: int, cohorts: Sequence[Cohort]) -> list[Completion]:
        """The recorded answers.

        Raises:
            RerunError: there are too few, or the sampler does not give such answers.
        """
        rows = self._evaluation[phase][first : first + len(items)]
        if len(rows) < len(items):
            raise RerunError(f"of an evaluation's {first + len(items)} completions it has {first + len(rows)}")
        for row in rows:
            self._check_sampled(row)
        texts = self._policy.decode([row.ids for row in rows])
        return [Completion(row.ids, text, row.ended) for row, text in zip(rows, texts, strict=True)]

    @property
    def _policy(self) -> Policy:
        return self.context.population.cohorts[0].policy

    def _offer(self, plan: RoundPlan, assignment: Assignment) -> Offer:
        row = self.pool[assignment.at]
        ids = (*row.ids, self._policy.eos) if row.ended else row.ids
        seed = self.context.slot_seed(plan, assignment)
        return Offer(assignment.node, assignment.group, assignment.index, ids, seed, answer_key=row.answer_key)

    def _check_sampled(self, row: CompletionRow) -> None:
        """Check that the sampler could stop here: at EOS, or at the length limit.

        Raises:
            RerunError: it could not.
        """
        length, limit = len(row.ids) + row.ended, self.context.spec.sampling.max_new_tokens
        if row.ids and not 0 <= min(row.ids) <= max(row.ids) < self._policy.vocabulary:
            raise RerunError("a token is outside the vocabulary")
        if self._policy.eos in row.ids or length > limit or (not row.ended and length < limit):
            raise RerunError(f"a completion of {length} tokens ends where the sampler does not")


class _RecordedVerdicts(Defense):
    """Returns the recorded verdicts."""

    name = "recorded"

    def __init__(self) -> None:
        self.rows: Mapping[PoolPosition, CompletionRow] = {}

    def inspect(self, view: DefenderView) -> list[Verdict]:
        rows = [self.rows[offered.group, offered.index] for offered in view.completions]
        return [Verdict(row.action, row.score, row.token_weights, row.reason) for row in rows]  # type: ignore[arg-type]


class _RecordedRewards:
    """Returns a judge's recorded rewards (a `thiefbench.engine.reward_judge.RewardJudge`)."""

    form = JudgeForm("", "", "", "")

    def __init__(self, task: Task, faults: Collection[str]) -> None:
        self._questions = {item.id: item.question for item in items_of(task, "train")}
        self._faults = {"", *faults}
        self._scores: Mapping[tuple[str, str], Scored] = {}

    def take(self, rows: Sequence[CompletionRow]) -> None:
        """Use the rows of one round's pool from now on; KeyError for an item that the task does not have."""
        by_doubt = sorted(rows, key=lambda row: row.refused not in self._faults, reverse=True)
        self._scores = {(self._questions[row.item_id], row.text): Scored(row.reward, row.refused) for row in by_doubt}

    def score(self, answers: Sequence[tuple[str, str]], noise: int) -> list[Scored]:
        """The recorded reward of each pair of question and completion.

        Raises:
            RerunError: the record has none, or has it refused for what only comes before the judge.
        """
        scores = [self._scores.get(pair) for pair in answers]
        if None in scores:
            raise RerunError("it lacks a judge's reward")
        known = [scored for scored in scores if scored is not None]
        if strange := next((scored.fault for scored in known if scored.fault not in self._faults), ""):
            raise RerunError(f"only the judge could refuse a completion, and it never says {strange!r:.80}")
        return known
