"""The views of an attack: everything that its threat model lets the malicious nodes know."""

from __future__ import annotations

import random
from collections.abc import Sequence

from thiefbench.attacks.base import Attack, AttackerView, ChoiceView, DefenseOracle, SeenCompletion, Slot
from thiefbench.attacks.reward_judges import JudgedThreatModel, JudgedView, JudgeForm
from thiefbench.engine.keys import generator, key, slot_key
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.reward_judge import RewardJudge
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.topology import Assignment, beacon, slot_seed
from thiefbench.engine.views.attacker import AttackerPolicy, seen_in
from thiefbench.tasks.base import Item, Task


class AttackerViews:
    """Views of a swarm for its malicious nodes, limited to what the attack's threat model grants.

    Args:
        attack: the attack whose threat model applies.
        task: what is asked.
        spec: the swarm's.
        seed: the cell's seed, which determines all of an attack's draws.
        reward_judge: the judge that rewards completions; None where the task's rule does.
    """

    def __init__(
        self, attack: Attack, task: Task, spec: SwarmSpec, seed: int, reward_judge: RewardJudge | None = None
    ) -> None:
        self.threat, self._reward_judge = attack.threat, reward_judge
        self._task, self._spec, self._seed = task, spec, seed

    def item(self, item: Item) -> Item:
        """The item, without its solution unless an oracle is granted."""
        return item if self.threat.oracle else Item(item.id, item.question, item.answer, "", item.tests)

    def slot(self, number: int, item: Item, assignment: Assignment) -> Slot:
        """An assignment as an attack sees it."""
        seed = slot_seed(self._seed, number, assignment, item.id) if self.threat.beacon else None
        return Slot(self.item(item), assignment.node, assignment.group, assignment.sample, seed)

    def choice(self, number: int, node: int, count: int, cohort: Cohort, rng: random.Random) -> ChoiceView | None:
        """What a node knows when it picks its items; None if it knows only the items and `rng`.

        A node that commits to its items before the beacon cannot know their seeds.
        """
        if self._spec.items == "committed" or not (self.threat.beacon or self.threat.history):
            return None
        return ChoiceView(
            count=count,
            group=self._spec.group,
            task=self._task,
            rng=rng,
            policy=self._policy(cohort, (self._seed, number, "choice", node)),
            seed=lambda item, position, sample: slot_key(beacon(self._seed, number), node, position, item.id, sample),
            seen=self._seen(cohort),
        )

    def round(self, number: int, slots: Sequence[Slot], cohort: Cohort, defense: DefenseOracle | None) -> AttackerView:
        """What the colluding nodes know when they answer."""
        noise = (self._seed, number)
        view = AttackerView(
            number, tuple(slots), self._task, generator(*noise, "attack"), self._policy(cohort, noise), defense,
            self._seen(cohort),
        )  # fmt: skip
        if self._reward_judge is None or not isinstance(self.threat, JudgedThreatModel):
            return view
        return JudgedView(**vars(view), judge=_AttackersJudge(self._reward_judge, key(*noise, "attacker's judge")))

    def recovery(self, number: int, node: int, items: Sequence[Item], cohort: Cohort) -> AttackerView:
        """What a node knows when a recovering node asks it for weights; the slots contain items to teach with."""
        noise = (self._seed, number, "handed over", node)
        slots = tuple(Slot(self.item(item), node, group, 0) for group, item in enumerate(items))
        return AttackerView(number, slots, self._task, generator(*noise, "attack"), self._policy(cohort, noise))

    def _policy(self, cohort: Cohort, noise: tuple[int | str, ...]) -> AttackerPolicy | None:
        if not self.threat.policy:
            return None
        return AttackerPolicy(cohort.policy, self._task, self._spec.sampler, noise)

    def _seen(self, cohort: Cohort) -> dict[str, list[SeenCompletion]]:
        return seen_in(cohort.history) if self.threat.history else {}


class _AttackersJudge:
    """The judge that rewards, run by an attacker (`thiefbench.attacks.reward_judges.KnownJudge`).

    Args:
        judge: the judge.
        noise: for drawing replies; not the noise of the round's rewards.
    """

    def __init__(self, judge: RewardJudge, noise: int) -> None:
        self._judge, self._noise = judge, noise

    @property
    def form(self) -> JudgeForm:
        """The judge's."""
        return self._judge.form

    def rewards(self, items: Sequence[Item], texts: Sequence[str]) -> list[float]:
        """The judge's rewards."""
        answers = [(item.question, text) for item, text in zip(items, texts, strict=True)]
        return [scored.reward for scored in self._judge.score(answers, self._noise)]
