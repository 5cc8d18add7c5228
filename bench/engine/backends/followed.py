"""One process that replays recorded rounds as long as it is given some, and otherwise samples.

`Swarm.round` does everything as usual: items, offers, checks, rewards and the defense's inspection. Only what depends
on the weights is taken from the record: the completions of honest nodes and, if the attack is granted the policy but no
queries, the malicious nodes' submissions. Updates may be deferred; see `thiefbench.engine.learning.deferred`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thiefbench.defenses.skipping import SKIP
from thiefbench.engine.answer_keys import scored_id
from thiefbench.engine.backends.local import LocalBackend
from thiefbench.engine.context import SwarmContext, items_of
from thiefbench.engine.learning.cohort import Cohort, TrainingRow
from thiefbench.engine.learning.deferred import DeferringCohort, OwedUpdate
from thiefbench.engine.round_plan import MaliciousWork, RoundPlan, distinct_indices
from thiefbench.engine.round_record import CompletionRow, by_rule
from thiefbench.engine.topology import Assignment, PoolPosition
from thiefbench.engine.transport import Offer
from thiefbench.tasks.base import Completion, Item


class FollowingBackend(LocalBackend):
    """Simulates all nodes of a plain swarm, and follows recorded rounds (a `RoundBackend`)."""

    cohort_class: type[Cohort] = DeferringCohort

    def attach(self, context: SwarmContext) -> None:
        """Take the swarm's parts."""
        super().attach(context)
        threat = context.attack.threat
        self._recorded: Mapping[PoolPosition, CompletionRow] = {}
        self._rewards: dict[tuple[str, str], float] = {}
        self._asks = context.role != "control" and threat.queries > 0
        self.takes_submissions = context.role != "control" and threat.policy and not self._asks

    @property
    def cohort(self) -> DeferringCohort:
        """The one cohort."""
        (cohort,) = self.context.population.cohorts
        assert isinstance(cohort, DeferringCohort)
        return cohort

    def follow(self, pool: Sequence[CompletionRow]) -> None:
        """Play the next round with the completions of a recorded pool; with None, sample from now on."""
        self._recorded = {(row.group, row.place): row for row in pool}
        # A refused completion has no reward, even if another completion with the same text has one.
        items = {item.id: item for item in items_of(self.context.task, "train")}
        self._rewards = {
            (scored_id(row.item_id, row.answer_key, items), row.text): by_rule(row) for row in pool if not row.refused
        }

    def items(self, number: int, assignments: Sequence[Assignment]) -> list[Item]:
        """Recorded items, if they were chosen by an attack whose submissions are recorded."""
        spec = self.context.spec
        chosen = spec.topology == "vertical" and spec.items == "chosen"
        if not (self._recorded and self.takes_submissions and chosen):
            return super().items(number, assignments)
        by_id = {item.id: item for item in items_of(self.context.task, "train")}
        return [by_id[self._recorded[assignment.at].item_id] for assignment in assignments if assignment.index == 0]

    def honest_work(self, plan: RoundPlan, assignments: Sequence[Assignment]) -> list[Offer]:
        """The recorded completions. Honest samples in the slots of an attacker who queries are not recorded."""
        asked = self._asks and any(assignment.node in self.context.malicious for assignment in assignments)
        if asked or not self._recorded:
            return super().honest_work(plan, assignments)
        return [self._offer(plan, assignment) for assignment in assignments]

    def malicious_work(
        self, plan: RoundPlan, assignments: Sequence[Assignment], honest: Sequence[Offer]
    ) -> MaliciousWork:
        """The attack's submissions, or the recorded ones."""
        if not (self._recorded and self.takes_submissions):
            return super().malicious_work(plan, assignments, honest)
        payload = {assignment.at for assignment in assignments if self._recorded[assignment.at].payload}
        return MaliciousWork([self._offer(plan, assignment) for assignment in assignments], payload)

    def rewards(self, items: Sequence[Item], completions: Sequence[Completion]) -> list[float]:
        """The recorded rewards; those of other completions are computed."""
        known = [self._rewards.get((item.id, done.text)) for item, done in zip(items, completions, strict=True)]
        new = [i for i, reward in enumerate(known) if reward is None]
        worked_out = super().rewards([items[i] for i in new], [completions[i] for i in new]) if new else []
        by_index = dict(zip(new, worked_out, strict=True))
        return [by_index[i] if reward is None else reward for i, reward in enumerate(known)]

    def owed_update(
        self, pool: Sequence[CompletionRow], schedule: Sequence[Sequence[int]], grad_norm: float
    ) -> OwedUpdate:
        """The deferred update of a recorded round.

        Args:
            pool: the round's rows, ordered by group and index.
            schedule: as `schedule_places` gives it.
            grad_norm: the update's gradient norm.
        """
        item_ids = {row.group: row.item_id for row in pool}
        by_id = {item.id: item for item in items_of(self.context.task, "train")}
        items = [by_id[item_ids[group]] for group in sorted(item_ids)]
        place, eos = distinct_indices(items), (self.cohort.policy.eos,)
        rows = [
            TrainingRow(
                prompt=place[row.item_id],
                targets=(*row.ids, *eos) if row.ended else row.ids,
                reward=row.reward if row.action in ("accept", SKIP) else 0.0,
                kept=row.action != "drop" and not row.refused,
                learned=row.action != SKIP,
                token_weights=row.token_weights,
                group=row.group,
            )
            for row in pool
        ]
        answers = [[(rows[i].prompt, rows[i].targets) for i in chunk] for chunk in schedule]
        prompts = self.context.forward_cache(self.cohort, items).prompts
        return OwedUpdate(pool[0].round, prompts, rows, answers, grad_norm)

    def _offer(self, plan: RoundPlan, assignment: Assignment) -> Offer:
        """A recorded completion on the wire."""
        row, seed = self._recorded[assignment.at], self.context.slot_seed(plan, assignment)
        ids = (*row.ids, self.cohort.policy.eos) if row.ended else row.ids
        # Unreadable completions were recorded without ids.
        missing = "" if ids else row.refused
        return Offer(
            assignment.node, assignment.group, assignment.index, ids, seed, missing=missing, answer_key=row.answer_key
        )


def schedule_places(update: OwedUpdate) -> list[list[int]]:
    """For every chunk of an update, the places of its answers in the pool; equal answers once."""
    place: dict[tuple[int, tuple[int, ...]], int] = {}
    for i, row in enumerate(update.rows):
        place.setdefault((row.prompt, row.targets), i)
    return [[place[answer] for answer in chunk] for chunk in update.schedule]
