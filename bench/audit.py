"""`thiefbench audit`: how blind a task's reward is to an attack, on all its items and without a swarm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from thiefbench.attacks.base import Attack, AttackerView, Decoy, Slot
from thiefbench.engine.noise import generator
from thiefbench.engine.spec import SpecError
from thiefbench.engine.swarm import drawn_for
from thiefbench.tasks.base import Item, Split, Task


@dataclass(frozen=True)
class Audit:
    """What an audit counted.

    Attributes:
        items: all items of the split.
        clean: those whose oracle solution earns the full reward.
        poisonable: those the attack has a poisoned completion for.
        poisoned: those of them whose poisoned completion earns the full reward.
        unrewarded: ids of items whose clean oracle solution does not earn it.
        example: one poisoned completion that earns the full reward, or an empty string.
        payload: what the attack drew, in words.
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
        task: whose reward is audited.
        attack: what is put into the oracle's solutions; its payload is drawn by `seed`.
        split: "train" or "test".
        seed: draws the payload.
        progress: called with (items done, items).

    Raises:
        SpecError: the attack samples from a policy or asks a defense, so there is nothing to audit without a swarm, or
            it does not fit the task.
        TaskError: the items cannot be had.
    """
    threat = attack.threat
    if threat.policy or threat.defense:
        needs = "samples from a policy" if threat.policy else "asks a defense"
        raise SpecError(f"the attack {attack.name} {needs}, so it cannot be audited without a swarm; use run")
    member = drawn_for(task, attack, seed)
    task = task.with_libraries(member.libraries())
    items = [Item.from_row(row) for row in task.items(split)]
    view = AttackerView(1, tuple(Slot(item, 0, group, 0) for group, item in enumerate(items)), task, generator(seed))
    made = member.poison(view)
    unrewarded, poisonable, rewarded = [], 0, []
    for number, (item, poison) in enumerate(zip(items, made, strict=True)):
        carried = isinstance(poison, str) and not isinstance(poison, Decoy)
        texts = [task.oracle(item), *([str(poison)] if carried else [])]
        clean, *dirty = task.reward(item, texts)
        if clean < 1:
            unrewarded.append(item.id)
        poisonable += len(dirty)
        rewarded += [str(poison)] if dirty and dirty[0] == 1 else []
        if number % 256 == 255 or number + 1 == len(items):
            progress(number + 1, len(items))
    return Audit(
        items=len(items), clean=len(items) - len(unrewarded), poisonable=poisonable, poisoned=len(rewarded),
        unrewarded=unrewarded, example=rewarded[0] if rewarded else "", payload=member.describe(),
    )  # fmt: skip
