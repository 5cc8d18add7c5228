"""`thiefbench audit`: how much poison earns a task's full reward, on all its items and without a swarm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thiefbench.attacks.base import Attack, AttackerView, Poison, Slot
from thiefbench.engine.compatibility import drawn_for
from thiefbench.engine.keys import generator
from thiefbench.engine.spec import SpecError
from thiefbench.tasks.base import Item, Split, Task

CHUNK = 256
"""Items rewarded together: programs run in parallel, and progress is reported in between."""


@dataclass(frozen=True)
class Audit:
    """The counts of an audit.

    Attributes:
        items: number of items of the split.
        clean: items whose oracle solution earns the full reward.
        poisonable: items for which the attack has a poisoned completion.
        poisoned: items whose poisoned completion earns the full reward.
        unrewarded: ids of items whose clean oracle solution does not earn it.
        example: one poisoned completion that earns the full reward, or an empty string.
        payload: the attack's payload, in words.
    """

    items: int
    clean: int
    poisonable: int
    poisoned: int
    unrewarded: list[str]
    example: str
    payload: dict[str, str]


def audit(
    task: Task,
    attack: Attack,
    split: Split = "train",
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Audit:
    """Reward the clean and the poisoned oracle solution of every item of a split.

    Args:
        task: the task whose reward is audited.
        attack: the attack whose payload, drawn by `seed`, is put into the oracle's solutions.
        split: "train" or "test".
        seed: draws the payload.
        progress: called with (items done, items).

    Raises:
        SpecError: the attack samples from a policy or asks a defense, so there is nothing to audit without a swarm, or
            it does not fit the task.
        TaskError: the items cannot be loaded.
    """
    _check_auditable(attack)
    member = drawn_for(task, attack, seed)
    task = task.with_libraries(member.libraries())
    items = [Item.from_row(row) for row in task.items(split)]
    poisoned_solutions = _poisoned(task, member, items, seed)
    unrewarded, poisonable, rewarded = [], 0, []
    for start in range(0, len(items), CHUNK):
        part = items[start : start + CHUNK]
        clean = task.rewards(part, [task.oracle(item) for item in part])
        unrewarded += [item.id for item, reward in zip(part, clean, strict=True) if reward < 1]
        carried = [
            (item, poison)
            for item, poison in zip(part, poisoned_solutions[start : start + CHUNK], strict=True)
            if isinstance(poison, str)
        ]
        dirty = task.rewards([item for item, _ in carried], [text for _, text in carried])
        poisonable += len(carried)
        rewarded += [text for (_, text), reward in zip(carried, dirty, strict=True) if reward == 1]
        progress(start + len(part), len(items))
    return Audit(
        items=len(items), clean=len(items) - len(unrewarded), poisonable=poisonable, poisoned=len(rewarded),
        unrewarded=unrewarded, example=rewarded[0] if rewarded else "", payload=member.describe(),
    )  # fmt: skip


@dataclass(frozen=True)
class FormAudit:
    """The counts of an audit for one form of an attack, and its payload in words."""

    payload: dict[str, str]
    poisonable: int
    poisoned: int


def audit_forms(
    task: Task,
    attack: Attack,
    split: Split = "train",
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[FormAudit]:
    """Reward the poisoned oracle solutions of every form of an attack, the drawn one first. Arguments as for `audit`.

    Raises:
        SpecError, TaskError: as `audit`.
    """
    _check_auditable(attack)
    drawn = drawn_for(task, attack, seed)
    forms = [drawn, *drawn.forms()]
    items = [Item.from_row(row) for row in task.items(split)]
    counts = []
    for number, form in enumerate(forms):
        with_library = task.with_libraries(form.libraries())
        poisons = zip(items, _poisoned(with_library, form, items, seed), strict=True)
        carried = [(item, poison) for item, poison in poisons if isinstance(poison, str)]
        rewards = with_library.rewards([item for item, _ in carried], [text for _, text in carried])
        counts.append(FormAudit(form.describe(), len(carried), sum(reward == 1 for reward in rewards)))
        progress(number + 1, len(forms))
    return counts


def _check_auditable(attack: Attack) -> None:
    threat = attack.threat
    if threat.policy or threat.defense:
        needs = "samples from a policy" if threat.policy else "asks a defense"
        raise SpecError(
            f"the attack {attack.name} {needs}, so it cannot be audited without a swarm; use `thiefbench run`"
        )


def _poisoned(task: Task, member: Attack, items: Sequence[Item], seed: int) -> Sequence[Poison]:
    """The attack's submission instead of the oracle's solution, for every item."""
    slots = tuple(Slot(item, 0, group, 0) for group, item in enumerate(items))
    return member.poison(AttackerView(1, slots, task, generator(seed)))
