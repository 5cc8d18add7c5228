"""Whether an attack's probes fit its task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench import tiny
from tests.bench.plugins import Sums, Withholds
from thiefbench import registry
from thiefbench.engine.compatibility import drawn_for
from thiefbench.engine.context import items_of
from thiefbench.engine.spec import SpecError
from thiefbench.suite.fitting import check_probes
from thiefbench.tasks.base import Item, Task

COLLIDES = "has a probe with the id 'test-1-2', which asks something else too; give probes ids of their own"


class Asks(Withholds):
    """Is measured on the held-out items, with words before the question and another id, or after it."""

    def __init__(self, before: str = "", after: str = "") -> None:
        self.before, self.after = before, after

    def probes(self, task: Task) -> Sequence[Item]:
        return [
            replace(item, id=item.id + self.after, question=self.before + item.question)
            for item in items_of(task, "test")
        ]


@pytest.mark.parametrize("attack", [Asks(), Asks("Hum! ", "-hum"), Withholds()])
def test_probes_are_items_or_have_ids_of_their_own(attack: Withholds) -> None:
    check_probes(attack, Sums())


def test_an_item_that_is_asked_in_another_way_is_refused() -> None:
    """Its prompt would be the item's, and the ASR that of the item's question."""
    with pytest.raises(SpecError, match=COLLIDES):
        check_probes(Asks("Hum! "), Sums())


def test_two_probes_of_one_id_are_refused() -> None:
    class Twice(Withholds):
        def probes(self, task: Task) -> Sequence[Item]:
            return [Item("a", question, "", "") for question in ("a?", "b?")]

    with pytest.raises(SpecError, match="has a probe with the id 'a'"):
        check_probes(Twice(), Sums())


@pytest.mark.parametrize("given", ["[{'id': 'a'}]", "Item('a', 'b', 'c', '')", "7"])
def test_what_are_no_probes_is_refused(given: str) -> None:
    class Gives(Withholds):
        def probes(self, task: Task) -> Any:
            return eval(given)

    with pytest.raises(SpecError, match="the attack withholds has probes other than a list of items: "):
        check_probes(Gives(), Sums())


def test_a_probe_with_another_answer_is_refused() -> None:
    """Rewards are grouped by id, and given by the first one's answer."""

    class Answers(Withholds):
        def probes(self, task: Task) -> Sequence[Item]:
            return [replace(items_of(task, "test")[0], answer="7")]

    with pytest.raises(SpecError, match="which asks something else too"):
        check_probes(Answers(), Sums())


@pytest.mark.parametrize("spec", ["subliminal", "untargeted(attack='text')", "triggered(attack='text')"])
def test_those_of_the_package_fit(spec: str) -> None:
    task = registry.make("task", "gsm_micro(size=64)")
    check_probes(drawn_for(task, registry.make("attack", spec), 0), task)


def test_a_run_says_it_before_the_first_round(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=COLLIDES):
        tiny.run(tiny.suite(attacks=(f"{__file__}:Asks(before='Hum! ')",)), tmp_path)
