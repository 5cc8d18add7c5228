"""The parts of a swarm, for its rounds and for its backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from thiefbench.attacks.base import Attack
from thiefbench.engine.compatibility import domains_of
from thiefbench.engine.keys import generator, key
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.population import Population
from thiefbench.engine.reward_judge import RewardJudge
from thiefbench.engine.round_plan import RoundPlan
from thiefbench.engine.spec import Role, SpecError, SwarmSpec
from thiefbench.engine.topology import Assignment, assign_items, assignments, slot_seed
from thiefbench.engine.views.attacker_views import AttackerViews
from thiefbench.engine.views.defender import Judge
from thiefbench.tasks.base import Item, Split, Task


@dataclass(eq=False)
class SwarmContext:
    """The parts of a swarm, and everything that follows from them and the seed.

    Attributes:
        spec: the swarm's settings.
        role: "attack", "placebo" or "control".
        task: the task, with the libraries that the attack has published.
        attack: the attack with the payload that the seed draws.
        population: the models of all nodes.
        seed: determines all draws.
        judge: the judge that the defense may ask.
        reward_judge: the judge that rewards completions; None where the task's rule does.
        views: the views of the malicious nodes.

    Raises:
        SpecError: the population names a domain that the task does not have.
    """

    spec: SwarmSpec
    role: Role
    task: Task
    attack: Attack
    population: Population
    seed: int
    judge: Judge | None = None
    reward_judge: RewardJudge | None = None
    views: AttackerViews = field(init=False)

    def __post_init__(self) -> None:
        self.set_attack(self.attack)
        self._domains = domains_of(self.spec, self.task)
        self._prompts: dict[tuple[int, str], list[int]] = {}

    def set_attack(self, attack: Attack) -> None:
        """Replace the attack."""
        self.attack = attack
        self.views = AttackerViews(attack, self.task, self.spec, self.seed, self.reward_judge)

    @property
    def honest(self) -> int:
        """How many nodes are honest; they are the first by number."""
        return self.population.honest

    @property
    def malicious(self) -> range:
        """The malicious nodes."""
        return range(self.honest, self.spec.nodes)

    def assignments(self, number: int) -> list[Assignment]:
        """The assignments of round `number`, including those of nodes that are away."""
        copies = 1 if self.role == "control" else self.attack.copies
        return assignments(self.spec, self.seed, number, copies)

    def assign_items(
        self, number: int, owed: Sequence[Assignment], choose: Callable[[int, int], Sequence[Item] | None]
    ) -> list[Item]:
        """The item of every group of a round.

        Args:
            number: the round's.
            owed: its assignments.
            choose: (node, count) -> the items that a malicious node picks; None if they are drawn for it.

        Raises:
            SpecError: the task has too few items, or a node picked the wrong number of items.
        """

        def draw(whose: int | str, count: int) -> list[Item]:
            known = self.items_for(whose)
            if count > len(known):
                raise SpecError(f"a node needs {count} distinct items a round, and the task has {len(known)}")
            return generator(self.seed, "items", number, whose).sample(known, count)

        free = self.malicious if self.spec.items != "drawn" else ()
        return assign_items(self.spec, owed, draw, lambda node, count: choose(node, count) if node in free else None)

    def items_for(self, whose: int | str) -> Sequence[Item]:
        """The training items that a node draws from, those of its class's domain; "all" draws from all."""
        domain = self._domains[whose] if isinstance(whose, int) else ""
        items = items_of(self.task, "train")
        return [item for item in items if self.task.domain(item) == domain] if domain else items

    def prompt(self, item: Item, cohort: Cohort) -> list[int]:
        """An item's prompt in a cohort's tokens.

        Raises:
            SpecError: prompt and completion may exceed the model's context.
        """
        at = (cohort.kind, item.id)
        if at not in self._prompts:
            prompt, room = cohort.policy.prompt_ids(self.task.messages(item)), cohort.policy.context
            if room is not None and len(prompt) + self.spec.sampling.max_new_tokens > room:
                raise SpecError(
                    f"the prompt of item {item.id} has {len(prompt)} tokens, and with max_new_tokens "
                    f"{self.spec.sampling.max_new_tokens} that is beyond the {room} tokens that the model reads; set "
                    f"max_new_tokens to {room - len(prompt)} or less"
                    if len(prompt) < room
                    else f"the prompt of item {item.id} has {len(prompt)} tokens, and the model reads {room}; take a "
                    "model of a longer context"
                )
            self._prompts[at] = prompt
        return self._prompts[at]

    def forward_cache(self, cohort: Cohort, items: Sequence[Item]) -> ForwardCache:
        """An empty cache of a cohort's current model over the prompts of the distinct items, in their order."""
        distinct = {item.id: item for item in items}
        return ForwardCache(cohort.policy, [self.prompt(item, cohort) for item in distinct.values()])

    def slot_seed(self, plan: RoundPlan, assignment: Assignment) -> int:
        """The seed of the one honest draw that an assignment of a round has."""
        return slot_seed(self.seed, plan.number, assignment, plan.item(assignment).id)

    def sender(self, number: int, assignment: Assignment) -> str:
        """The sender's pseudonym of a completion; a malicious node may have several."""
        faces = self.attack.variants.identities if assignment.node in self.malicious else 1
        face = key(self.seed, "face", number, assignment.group, assignment.index) % faces
        name = key(self.seed, "sender", assignment.node, face) if face else key(self.seed, "sender", assignment.node)
        return f"{name & 0xFFFFFFFF:08x}"


@cache
def items_of(task: Task, split: Split) -> list[Item]:
    """All items of a split, in the task's order."""
    return [Item.from_row(row) for row in task.items(split)]
