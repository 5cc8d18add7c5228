"""Whether an attack's probes fit its task, and where what a swarm does not take fits: other tasks, released suites."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import get_args

from thiefbench import registry
from thiefbench.attacks.base import Attack
from thiefbench.averaging.compatibility import check_kind
from thiefbench.engine.compatibility import check_requirements, drawn
from thiefbench.engine.context import items_of
from thiefbench.engine.spec import SpecError, SwarmSpec
from thiefbench.pipeline.compatibility import check_attack
from thiefbench.suite.execution.aggregations import check_aggregation
from thiefbench.suite.execution.stage_checks import check_stage_check
from thiefbench.suite.scenario import Part, Suite
from thiefbench.suite.suite_yaml import load_suite
from thiefbench.tasks.base import Item, Task, Topology
from thiefbench.wording import one_of
from thiefbench.zoo.models import SOLVED, solving

_MOST_SUITES = 3
"""Suites that a hint names. What fits more of them is for ordinary swarms, and the error says what is special."""


@contextmanager
def with_hint(hint: Callable[[], str]) -> Iterator[None]:
    """Add a hint to the SpecError of what does not fit: a clause behind a semicolon, or nothing."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{error}{hint()}") from error


def attack_hint(attack: str, swarm: SwarmSpec, task: str) -> str:
    """Which tasks an attack fits in a swarm; where it fits none, which released suites.

    Args:
        attack: a spec string.
        swarm: that does not take it with this task.
        task: a spec string.

    Returns:
        A clause behind a semicolon. Empty if only the topology is wrong, which the error itself names, or nothing fits.
    """
    if any(_takes(attack, replace(swarm, topology=each), task) for each in get_args(Topology)):
        return ""
    if tasks := [each for each in _solved() if _takes(attack, swarm, each)]:
        return f"; it fits {one_of([f'{each} (model {solving(each)[0]})' for each in tasks])}"
    return suite_hint(attack)


def suite_hint(attack: str) -> str:
    """Which released suites take an attack: a clause behind a semicolon; empty for none or many."""
    suites = []
    for name, suite in _released().items():
        tasks = list(dict.fromkeys(each for part in suite.scenes for each in _taken_tasks(attack, part)))
        if {part.task for part in suite.scenes} & set(tasks):
            suites.append(name)
        elif tasks:
            suites.append(f"{name} with the task {tasks[0]} (model {solving(tasks[0])[0]})")
    return _in_suites(suites)


def defense_hint(defense: str) -> str:
    """Which released suites give a defense what it requires: a clause behind a semicolon; empty for none or many."""
    return _in_suites(
        [name for name, suite in _released().items() if any(_gives(defense, part) for part in suite.scenes)]
    )


def _in_suites(suites: Sequence[str]) -> str:
    return f"; it fits the suite {one_of(suites)}" if 0 < len(suites) <= _MOST_SUITES else ""


def _released() -> dict[str, Suite]:
    """Every suite that a package declares and none supersedes, by name."""
    suites = {name: load_suite(name) for name in registry.names("suite")}
    return {name: suite for name, suite in suites.items() if not suite.superseded}


def _solved() -> list[str]:
    """The tasks that built-in models answer; the items of others may have to be downloaded."""
    return list(dict.fromkeys(SOLVED.values()))


def _taken_tasks(attack: str, part: Part) -> list[str]:
    """The part's own task or, if the attack does not fit that, others."""
    made = registry.make("attack", attack)
    try:
        check_kind(part.averaging, made, attack)
        check_attack(part.pipeline, made, attack)
    except SpecError:
        return []
    tasks = [part.task, *_solved()] if part.task in _solved() else []
    fitting = [task for task in tasks if _takes(attack, part.swarm, task)]
    return [part.task] if part.task in fitting else fitting


def _takes(attack: str, swarm: SwarmSpec, task: str) -> bool:
    try:
        drawn(registry.make("attack", attack), 0, swarm, registry.make("task", task))
    except Exception:  # a plugin may raise anything on a task that it was not written for
        return False
    return True


def _gives(defense: str, part: Part) -> bool:
    made = registry.make("defense", defense)
    try:
        if part.pipeline:
            check_stage_check(made, defense)
        elif part.averaging:
            check_aggregation(made, defense)
        else:
            check_requirements(part.swarm, made)
    except SpecError:
        return False
    return True


def check_probes(attack: Attack, task: Task) -> None:
    """See that the attack's probes are items of their own, or the task's.

    Prompts and rewards are kept by item id, so a probe that has an item's id and another question would be asked the
    item's.

    Args:
        attack: the drawn member.
        task: the task.

    Raises:
        SpecError: they are no items, or one has the id of an item or of another probe, and asks something else.
    """
    given: object = attack.probes(task)
    if given is None:
        return
    every: list[object] = list(given) if isinstance(given, Iterable) else [given]
    probes = [probe for probe in every if isinstance(probe, Item)]
    if not isinstance(given, Iterable) or len(probes) < len(every):
        raise SpecError(f"the attack {attack.name} has probes other than a list of items: {reprlib.repr(given)}")
    known = {item.id: _asked(item) for split in task.splits for item in items_of(task, split)} if probes else {}
    for probe in probes:
        if known.setdefault(probe.id, _asked(probe)) != _asked(probe):
            raise SpecError(
                f"the attack {attack.name} has a probe with the id {probe.id!r}, which asks something else too; give "
                "probes ids of their own"
            )


def _asked(item: Item) -> tuple[str, str, str]:
    """What prompts and rewards depend on."""
    return item.question, item.answer, item.tests
