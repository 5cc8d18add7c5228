"""A swarm and its rounds: generate, all-gather, inspect, reward, update (the figure of arXiv:2511.09780).

The engine knows the three contracts (task, attack, defense) but no concrete task, attack or defense. A `RoundBackend`
does the work of a round: by default, one process simulates all nodes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import get_args

from thiefbench.attacks.base import Attack
from thiefbench.defenses.base import Defense, PastRound, Verdict
from thiefbench.engine.backends.base import RoundBackend
from thiefbench.engine.backends.local import LocalBackend
from thiefbench.engine.colluders import handed_over
from thiefbench.engine.compatibility import check_requirements, drawn
from thiefbench.engine.context import SwarmContext, items_of
from thiefbench.engine.exchange import read_by
from thiefbench.engine.keys import generator, key
from thiefbench.engine.learning.cohort import Cohort, Step
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.pool import Pool, reward_pool
from thiefbench.engine.population import Population
from thiefbench.engine.recovery import RecoveryCheck
from thiefbench.engine.rehearsal import SwarmRehearsal
from thiefbench.engine.reward_judge import RewardJudge
from thiefbench.engine.round_plan import RoundPlan
from thiefbench.engine.round_record import Clock, CompletionRow, RoundRecord, remembered
from thiefbench.engine.spec import MOST_DRAWN, Role, SpecError, SwarmSpec
from thiefbench.engine.topology import Assignment, PoolPosition
from thiefbench.engine.transport import Received
from thiefbench.engine.views.defender import Judge
from thiefbench.tasks.answer_keys import AnswerKey
from thiefbench.tasks.base import Completion, Item, Task

# An evaluation continues until this many outcomes are defined, up to `MOST_DRAWN` times the requested completions.
LEAST_JUDGED = 256


class Swarm:
    """m nodes, f of them malicious, that learn together from one pool per round.

    Honest nodes that hold equal weights are one cohort (see `Population`).

    Args:
        spec: the swarm's settings: who answers what, how nodes sample and learn.
        role: "attack"; "placebo" (the same malicious slots and item choices, but clean completions); "control" (every
            node honest; the attack only defines the outcome that is measured).
        policy: the start weights, or those of every class of a population; the swarm modifies them.
        task: what is asked.
        attack: what malicious nodes do; `seed` draws its payload.
        defense: the honest nodes' filter.
        seed: determines items, noise, payload, pseudonyms and shuffles.
        judge: the model that the defense may ask.
        backend: what does the work of a round; by default a `LocalBackend`.
        reward_judge: the judge that rewards completions, if the spec asks for one.

    Attributes:
        context: the arguments above, with the drawn attack and the population.

    Raises:
        SpecError: there is no such role, the attack does not fit the topology or the task, the swarm lacks what the
            defense requires or a judge, the population is invalid, or the backend cannot play such a swarm.
    """

    def __init__(
        self,
        spec: SwarmSpec,
        role: Role,
        policy: Policy | Sequence[Policy],
        task: Task,
        attack: Attack,
        defense: Defense,
        seed: int,
        judge: Judge | None = None,
        backend: RoundBackend | None = None,
        reward_judge: RewardJudge | None = None,
    ) -> None:
        if role not in get_args(Role):
            raise SpecError(f"the role {role!r} is none of {', '.join(get_args(Role))}")
        if "judge" in defense.requires and judge is None:
            raise SpecError(f"the defense {defense.name} requires a judge; hand one to the swarm")
        if spec.reward != "rule" and reward_judge is None:
            raise SpecError(f"with reward: {spec.reward}, a judge rewards completions; hand one to the swarm")
        attack = drawn(attack, seed, spec, task)
        # Libraries that an attacker has published are available to everyone, in the control too.
        task = task.with_libraries(attack.libraries())
        check_requirements(spec, defense)
        self.backend: RoundBackend = backend or LocalBackend()
        honest = spec.nodes if role == "control" else spec.nodes - spec.malicious
        policies = [policy] if isinstance(policy, Policy) else policy
        population = Population(spec, policies, defense, honest, seed, self.backend.cohort_class)
        self.context = SwarmContext(spec, role, task, attack, population, seed, judge, reward_judge)
        self.backend.attach(self.context)
        checks = spec.churn is not None and spec.churn.tolerance is not None
        self._recovery = RecoveryCheck(self.context) if checks else None
        self._prepared = role == "control" or not attack.threat.rehearsal
        self._probes = list(attack.probes(task) or ())
        # The last rewards, by item id and text, because outcomes ask for them again.
        self._last_rewards: dict[tuple[str, str], float] = {}

    @property
    def spec(self) -> SwarmSpec:
        """Who answers what, how they sample and learn."""
        return self.context.spec

    @property
    def seed(self) -> int:
        """The seed of all draws."""
        return self.context.seed

    @property
    def task(self) -> Task:
        """The task."""
        return self.context.task

    @property
    def attack(self) -> Attack:
        """The attack, with the payload that the seed draws."""
        return self.context.attack

    @property
    def population(self) -> Population:
        """All models."""
        return self.context.population

    @property
    def cohort(self) -> Cohort:
        """The first cohort: in a homogeneous swarm, all honest nodes."""
        return self.population.cohorts[0]

    @property
    def policy(self) -> Policy:
        """The first cohort's current model."""
        return self.cohort.policy

    @property
    def history(self) -> list[PastRound]:
        """The first cohort's history of finished rounds."""
        return self.cohort.history

    def round(self, number: int) -> RoundRecord:
        """Play round `number`, counted from 1."""
        context, backend, clock = self.context, self.backend, Clock()
        if not self._prepared:
            with clock.phase("rehearse"):
                self._play_as(context.attack.prepared(SwarmRehearsal(self.spec, self.task, self._copy)))

        # Generate: honest nodes sample, malicious ones submit the attack's completions.
        with clock.phase("sample"):
            plan = self._plan(number)
            honest = backend.honest_work(
                plan, [assignment for assignment in plan.assignments if assignment.node not in context.malicious]
            )
        with clock.phase("attack"):
            assignments = [assignment for assignment in plan.assignments if assignment.node in context.malicious]
            assignments.sort(key=lambda assignment: (assignment.group, assignment.node, assignment.sample))
            malicious = backend.malicious_work(plan, assignments, honest)

        # All-gather: every node receives all offers and computes their rewards.
        with clock.phase("gather"):
            received = backend.receive(plan, [*honest, *malicious.offers])
        with clock.phase("reward"):
            rewarded = reward_pool(context, plan, received, self._task_rewards)

        # Inspect, apply the verdicts to the rewards, and update: once for each cohort, on the groups that it holds.
        rows, norms = [], []
        for cohort in self.population.learning():
            held = self.population.held_by(cohort, number, plan.assignments)
            assignments, part = [plan.assignments[i] for i in held], rewarded.of(held)
            with clock.phase("inspect"):
                arrivals = read_by(cohort, self.population, assignments, part.received)
                pool = Pool.collected(
                    context, plan, assignments, arrivals, part.rewards, plan.caches[cohort], part.by_rule
                )
                verdicts = self._inspect(cohort, pool, malicious.payload)
            with clock.phase("update"):
                step = cohort.update(pool.cache.prompts, pool.training_rows(verdicts), pool.cache)
            norms.append(step.grad_norm)
            rows += self._rows(cohort, plan, assignments, arrivals, pool, verdicts, step, malicious.payload)
        self.population.done(number)
        return RoundRecord(rows, clock.seconds, sum(norms) / len(norms))

    def evaluate(self, number: int, completions: int) -> RoundRecord:
        """Sample held-out items with the honest policy and measure reward and outcome.

        If the attack has probes, outcomes are measured on these, in rows with the phase "probe". If most outcomes are
        None, up to `MOST_DRAWN` times as many completions are drawn until `LEAST_JUDGED` (or `completions`, if fewer)
        have an outcome.

        Args:
            number: rounds finished so far.
            completions: how many to draw, spread evenly over the items; all cells with the same seed have the same
                items and keys.
        """
        clock = Clock()
        held_out, probes = items_of(self.task, "test"), self._probes
        with clock.phase("evaluate"):
            rows = self._evaluated("eval", number, held_out, 0, completions, judged=not probes)
            judged = [] if probes else rows
            while len(judged) < completions * MOST_DRAWN:
                if sum(row.outcome is not None for row in judged) >= min(LEAST_JUDGED, completions):
                    break
                phase, items = ("probe", probes) if probes else ("eval", held_out)
                judged = [*judged, *self._evaluated(phase, number, items, len(judged), completions, judged=True)]
        return RoundRecord([*rows, *judged] if probes else judged, clock.seconds)

    def by_other_rules(self, rows: Sequence[CompletionRow]) -> dict[str, list[float | None]]:
        """An evaluation's outcomes by other rules than the attack's own: rule name to outcomes."""
        items = {item.id: item for item in (*items_of(self.task, "test"), *(self._probes or ()))}
        completions = [Completion(row.ids, row.text, row.ended) for row in rows]
        outcomes = self.attack.by_other_rules(self.task, [items[row.item_id] for row in rows], completions)
        return {name: list(values) for name, values in outcomes.items()}

    def recall(self, described: Mapping[str, str]) -> None:
        """Set the attack to play as a record describes it, without another rehearsal.

        Raises:
            ValueError: the attack does not describe itself like this.
        """
        if not self._prepared and described != self.attack.describe():
            self._play_as(self.attack.recalled(described))

    @property
    def prepared(self) -> bool:
        """Whether the attack is ready to play, so that no rehearsal is needed any more."""
        return self._prepared

    def remember(self, rows: Iterable[CompletionRow]) -> None:
        """Rebuild the history that defenses see from the rows of finished rounds, as after a restart."""
        pools: dict[tuple[int, int], list[CompletionRow]] = {}
        for row in rows:
            if row.phase == "train":
                pools.setdefault((row.round, row.cohort), []).append(row)
        for cohort in self.population.cohorts:
            cohort.history = [
                remembered(pool, self.seed, self.spec)
                for (_, owner), pool in sorted(pools.items())
                if owner == cohort.number
            ]

    def reward(self, item: Item, text: str) -> float:
        """The task's reward of one text (for attacks that need it to compute an outcome)."""
        known = self._last_rewards.get((item.id, text))
        return self.task.reward(item, [text])[0] if known is None else known

    def _play_as(self, attack: Attack) -> None:
        self.context.set_attack(attack)
        self._prepared = True

    def _copy(self, attack: Attack) -> Swarm:
        """A copy of the swarm in its current state, with a different seed, in which an attack is tried."""
        context = self.context
        kinds = range(len(self.spec.population) or 1)
        copied = Swarm(
            self.spec, "attack", [copy.deepcopy(self.population.first(kind).policy) for kind in kinds], self.task,
            attack, copy.deepcopy(self.cohort.defense), key(self.seed, "rehearsal"), context.judge,
            reward_judge=context.reward_judge,
        )  # fmt: skip
        copied._prepared = True  # no rehearsals within a rehearsal
        return copied

    def _plan(self, number: int) -> RoundPlan:
        """The nodes' tasks in round `number`, after this round's crashes and recoveries."""
        passes = partial(self._recovery.passes, number) if self._recovery else None
        self.population.begin(number, lambda node: handed_over(self.context, number, node), passes)
        everyone = self.context.assignments(number)
        items = self.backend.items(number, everyone)
        present = self.population.present(number, everyone)
        caches = {cohort: self.context.forward_cache(cohort, items) for cohort in self.population.cohorts}
        return RoundPlan(number, items, present, caches)

    def _task_rewards(self, items: Sequence[Item], completions: Sequence[Completion]) -> list[float]:
        rewards = self.backend.rewards(items, completions)
        pairs = ((item.id, completion.text) for item, completion in zip(items, completions, strict=True))
        self._last_rewards = dict(zip(pairs, rewards, strict=True))
        return rewards

    def _inspect(self, cohort: Cohort, pool: Pool, payload: set[PoolPosition]) -> list[Verdict]:
        """A cohort's verdicts on its pool, in order; the cohort remembers them."""
        if cohort.learns:  # the defense's forward passes keep what the update will need
            pool.cache.expect(pool.with_gradient())
        verdicts, past = pool.inspected(
            cohort.defense, payload, self.spec.sampler, cohort.history, self.seed, self.context.judge
        )
        cohort.history.append(past)
        return verdicts

    def _rows(
        self,
        cohort: Cohort,
        plan: RoundPlan,
        assignments: Sequence[Assignment],
        arrivals: Sequence[Received],
        pool: Pool,
        verdicts: Sequence[Verdict],
        step: Step,
        payload: set[PoolPosition],
    ) -> list[CompletionRow]:
        """The rows that a round records for a cohort's pool."""
        by_rule: Sequence[float | None] = pool.by_rule or [None] * len(assignments)
        columns = zip(assignments, arrivals, pool.offered, verdicts, step.advantages, by_rule, strict=True)
        return [
            CompletionRow(
                phase="train", round=plan.number, node=assignment.node, sender=offered.sender, item_id=offered.item_id,
                group=assignment.group, place=assignment.index, ids=offered.ids, text=offered.text, ended=offered.ended,
                malicious=assignment.node in self.context.malicious, payload=assignment.at in payload,
                reward=offered.reward, refused=arrival.refused, action=verdict.action, score=verdict.score,
                reason=verdict.reason, token_weights=verdict.token_weights, advantage=advantage,
                outcome=self.attack.outcome(plan.item(assignment), arrival.completion, self),
                cohort=cohort.number, label=self.population.label(cohort), version=offered.version,
                answer_key=arrival.answer_key, rule_reward=rule_reward,
            )
            for assignment, arrival, offered, verdict, advantage, rule_reward in columns
        ]  # fmt: skip

    def _evaluated(
        self, phase: str, number: int, pool: Sequence[Item], first: int, count: int, judged: bool
    ) -> list[CompletionRow]:
        """Evaluate `count` completions, from number `first` on, going through `pool` cyclically."""
        order = generator(self.seed, "evaluation").sample(range(len(pool)), len(pool))
        items = [pool[order[i % len(pool)]] for i in range(first, first + count)]
        cohorts = self.population.turns(first, count)
        completions = self.backend.answers(phase, items, first, cohorts)
        rewards = self._task_rewards(items, completions)
        columns = zip(items, completions, rewards, cohorts, strict=True)
        # Evaluations are always rewarded by the task's rule, and by its own answers and tests.
        keyed, by_judge = self.spec.truth == "sender", self.spec.reward != "rule"
        rewards = [
            reward if cohort.policy.special.isdisjoint(completion.ids) else 0.0
            for completion, reward, cohort in zip(completions, rewards, cohorts, strict=True)
        ]
        return [
            CompletionRow(
                phase=phase, round=number, node=-1, sender="", item_id=item.id, group=-1, place=i, ids=completion.ids,
                text=completion.text, ended=completion.ended, malicious=False, payload=False,
                reward=reward,
                refused="", action="accept", score=None, reason="", token_weights=None, advantage=0.0,
                outcome=(self.attack.outcome if judged else self.attack.spill)(item, completion, self),
                cohort=cohort.number, label=self.population.label(cohort),
                answer_key=AnswerKey.of(item) if keyed else None, rule_reward=reward if by_judge else None,
            )
            for i, (item, completion, reward, cohort) in enumerate(columns, first)
        ]  # fmt: skip
