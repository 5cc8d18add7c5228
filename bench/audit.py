"""`thiefbench audit`: how much poison earns a task's full reward, on all its items and without a swarm.

The attack's outcome is tried on a few of the completions, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from thiefbench.attack_answers import content_of, listed, outcome_of, wrong_count, wrong_outcomes
from thiefbench.attacks.base import Attack, AttackerView, Poison, Slot
from thiefbench.attacks.completions import TaskRewards
from thiefbench.engine.compatibility import drawn_for
from thiefbench.engine.keys import generator
from thiefbench.engine.spec import SpecError
from thiefbench.errors import UserError
from thiefbench.task_answers import LAST_BITS, wrong_rewards
from thiefbench.tasks.base import Completion, Item, Split, Task, TaskError
from thiefbench.user_frames import described, where

CHUNK = 256
"""Items rewarded together: programs run in parallel, and progress is reported in between."""
JUDGED = 16
"""Poisoned completions on which the outcome is tried, and clean ones: few, because an outcome may run programs."""


class AttackFailedError(UserError):
    """A method of the attack failed, or returned what it may not. One sentence for the user."""


@dataclass(frozen=True)
class TriedOutcome:
    """An attack's outcome, tried on some completions.

    Attributes:
        judged: number of completions whose outcome is not None.
        mean: of these outcomes; None if there are none.
    """

    judged: int
    mean: float | None


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
        poisoned_outcome: the attack's outcome on the first `JUDGED` poisoned completions.
        clean_outcome: its outcome on the clean oracle solutions of the same items.
        probes: whether the attack is measured on items of its own, so that its poison need not satisfy its outcome.
    """

    items: int
    clean: int
    poisonable: int
    poisoned: int
    unrewarded: list[str]
    example: str
    payload: dict[str, str]
    poisoned_outcome: TriedOutcome
    clean_outcome: TriedOutcome
    probes: bool


def audit(
    task: Task,
    attack: Attack,
    split: Split = "train",
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Audit:
    """Reward the clean oracle solution and the attack's completion of every item of a split.

    The attack sees an item's solution only if its threat model grants an oracle.

    Args:
        task: the task whose reward is audited.
        attack: the attack that submits a completion for every item.
        split: "train" or "test".
        seed: draws the payload.
        progress: called with (items done, items).

    Raises:
        SpecError: the attack samples from a policy or asks a defense, so there is nothing to audit without a swarm, or
            it does not fit the task.
        AttackFailedError: a method of the attack failed, or returned what it may not.
        TaskError: the items cannot be loaded.
    """
    _check_auditable(attack)
    drawn = _drawn(task, attack, seed)
    member, task = drawn.member, task.with_libraries(drawn.libraries)
    items = [Item.from_row(row) for row in task.items(split)]
    submissions = _poisoned(task, member, items, seed)
    unrewarded: list[str] = []
    carrying: list[tuple[Item, str]] = []
    rewarded: list[str] = []
    for start in range(0, len(items), CHUNK):
        part = items[start : start + CHUNK]
        clean = _rewards(task, part, [task.oracle(item) for item in part])
        unrewarded += [item.id for item, reward in zip(part, clean, strict=True) if not _full(reward)]
        carried = [
            (item, poison)
            for item, poison in zip(part, submissions[start : start + CHUNK], strict=True)
            if isinstance(poison, str)
        ]
        dirty = _rewards(task, [item for item, _ in carried], [text for _, text in carried])
        carrying += carried
        rewarded += [text for (_, text), reward in zip(carried, dirty, strict=True) if _full(reward)]
        progress(start + len(part), len(items))
    tried = carrying[:JUDGED]
    return Audit(
        items=len(items), clean=len(items) - len(unrewarded), poisonable=len(carrying), poisoned=len(rewarded),
        unrewarded=unrewarded, example=rewarded[0] if rewarded else "", payload=drawn.payload,
        poisoned_outcome=_outcome(task, member, tried),
        clean_outcome=_outcome(task, member, [(item, task.oracle(item)) for item, _ in tried]), probes=drawn.probes,
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
    """Reward the poisoned completions of every form of an attack, the drawn one first. Arguments as for `audit`.

    Raises:
        SpecError, AttackFailedError, TaskError: as `audit`.
    """
    _check_auditable(attack)
    member = _drawn(task, attack, seed).member
    forms = [member, *member.forms()]
    items = [Item.from_row(row) for row in task.items(split)]
    counts = []
    for number, form in enumerate(forms):
        with_library = task.with_libraries(form.libraries())
        poisons = zip(items, _poisoned(with_library, form, items, seed), strict=True)
        carried = [(item, poison) for item, poison in poisons if isinstance(poison, str)]
        rewards = _rewards(with_library, [item for item, _ in carried], [text for _, text in carried])
        counts.append(FormAudit(form.describe(), len(carried), sum(map(_full, rewards))))
        progress(number + 1, len(forms))
    return counts


def _rewards(task: Task, items: Sequence[Item], texts: Sequence[str]) -> list[float]:
    """The task's, each of which is a share.

    Raises:
        TaskError: one is not.
    """
    try:
        made = list(task.rewards(items, texts))
    except (TypeError, ValueError):  # of what is no list of rewards for an item
        for item, text in zip(items, texts, strict=True):
            if wrong := wrong_rewards(task.reward(item, [text]), 1, f" of the item {item.id}"):
                raise TaskError(f"the task {task.name} gave {wrong}") from None
        raise
    if wrong := wrong_rewards(made, len(texts)):
        raise TaskError(f"the task {task.name} gave {wrong}")
    return made


def _full(reward: float) -> bool:
    """Whether it is the full reward of 1, except for rounding."""
    return reward > 1 - LAST_BITS


def _check_auditable(attack: Attack) -> None:
    threat = attack.threat
    if threat.policy or threat.defense:
        needs = "samples from a policy" if threat.policy else "asks a defense"
        raise SpecError(
            f"the attack {attack.name} {needs}, so it cannot be audited without a swarm; `thiefbench leaderboard "
            "check-attack` plays one, in about a minute"
        )


@dataclass(frozen=True)
class _Drawn:
    """The member that a seed draws: its published libraries, its payload in words, whether it has probes."""

    member: Attack
    libraries: Mapping[str, str]
    payload: dict[str, str]
    probes: bool


def _drawn(task: Task, attack: Attack, seed: int) -> _Drawn:
    with _one_sentence(attack, "draw"):
        member = drawn_for(task, attack, seed)
        return _Drawn(member, member.libraries(), member.describe(), member.probes(task) is not None)


def _poisoned(task: Task, member: Attack, items: Sequence[Item], seed: int) -> Sequence[Poison]:
    """The attack's submission instead of the oracle's solution, for every item."""
    granted = items if member.threat.oracle else [replace(item, solution="") for item in items]
    slots = tuple(Slot(item, 0, group, 0) for group, item in enumerate(granted))
    with _one_sentence(member, "poison"):
        returned = member.poison(AttackerView(1, slots, task, generator(seed)))
    try:
        submissions = listed(returned)
        for submission in submissions:
            content_of(submission)
    except TypeError as error:
        raise _failed(member, "poison", error) from error
    if wrong := wrong_count(len(submissions), len(items)):
        raise AttackFailedError(f"the attack {member.name} gave {wrong}")
    return submissions


def _outcome(task: Task, member: Attack, completions: Sequence[tuple[Item, str]]) -> TriedOutcome:
    """The attack's outcome on texts that answer items."""
    ask, outcomes = TaskRewards(task), list[float]()
    for item, text in completions:
        with _one_sentence(member, "outcome"):
            returned = member.outcome(item, Completion((), text, True), ask)
        try:
            outcome = outcome_of(returned)
        except TypeError as error:
            raise _failed(member, "outcome", error) from error
        if wrong := wrong_outcomes(member, [outcome]):
            raise AttackFailedError(f"the attack {member.name} gave {wrong}")
        if outcome is not None:
            outcomes.append(outcome)
    return TriedOutcome(len(outcomes), sum(outcomes) / len(outcomes) if outcomes else None)


@contextmanager
def _one_sentence(attack: Attack, method: str) -> Iterator[None]:
    """Say in one sentence which error the user's own code raised in a method of an attack."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not where(error):
            raise
        raise _failed(attack, method, error) from error


def _failed(attack: Attack, method: str, error: Exception) -> AttackFailedError:
    return AttackFailedError(f"the attack {attack.name} failed in {method}: {described(error)}")
