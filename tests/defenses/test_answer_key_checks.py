"""`public_items` and `gold_sanity`: answers and tests that arrive with the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.defenses.pools import actions, offer, view
from thiefbench.defenses.answer_keys import KeyedView
from thiefbench.defenses.base import Defense, PoolCompletion, Verdict
from thiefbench.defenses.gold_sanity import GoldSanity
from thiefbench.defenses.public_items import PublicItems
from thiefbench.engine.answer_keys import PublishedItems, with_key
from thiefbench.tasks import sandbox
from thiefbench.tasks.answer_keys import AnswerKey
from thiefbench.tasks.base import Item, Task
from thiefbench.tasks.code_functions import CodeFunctions
from thiefbench.tasks.gsm_micro import GsmMicro
from thiefbench.tasks.sent_tests import cases_of

MATHS, CODE = GsmMicro(size=4), CodeFunctions(size=4)


def item_of(task: Task) -> Item:
    return Item.from_row(task.items("train")[0])


def shown(offers: Sequence[PoolCompletion], task: Task, items: Sequence[Item]) -> KeyedView:
    return KeyedView(**vars(view(offers)), public=PublishedItems(task, items))


def judged(defense: Defense, task: Task, *keys: AnswerKey | None, **changes: Any) -> list[Verdict]:
    """Verdicts on one completion for each answer key, all of them on the task's first item; the id is a number."""
    item = item_of(task)
    offers = [with_key(offer("so", f"{place}", "1", **changes), key) for place, key in enumerate(keys)]
    known = Item("1", item.question, item.answer, item.solution, item.tests)
    return list(defense.inspect(shown(offers, task, [known])))


def test_what_differs_from_the_published_is_dropped() -> None:
    item = item_of(CODE)
    keys = AnswerKey.of(item), AnswerKey(item.answer, item.tests + "\n[[1], 2]"), AnswerKey("other", item.tests)
    verdicts = judged(PublicItems(), CODE, *keys, None)
    assert actions(verdicts) == ["accept", "drop", "drop", "accept"]
    assert [verdict.reason for verdict in verdicts[1:3]] == [
        "its tests are not the published ones", "its answer is not the published one"
    ]  # fmt: skip
    assert actions(judged(PublicItems("zero"), MATHS, AnswerKey("5000"))) == ["zero"]


def test_items_that_are_not_published_are_accepted() -> None:
    completion = with_key(offer("so", item="2"), AnswerKey("5"))
    for defense in (PublicItems(), GoldSanity()):
        assert actions(defense.inspect(shown([completion], MATHS, []))) == ["accept"]
        assert actions(defense.inspect(view([completion]))) == ["accept"], "where every node knows the answers"


def test_white_space_at_the_ends_is_no_difference() -> None:
    answer = item_of(MATHS).answer
    assert actions(judged(PublicItems(), MATHS, AnswerKey(f" {answer}\n"))) == ["accept"]


def test_an_answer_by_which_a_right_completion_fails_is_refused() -> None:
    answer = item_of(MATHS).answer
    verdicts = judged(GoldSanity(), MATHS, AnswerKey(answer), AnswerKey(f"{answer}.0"), AnswerKey(f"{answer}1"))
    assert actions(verdicts) == ["accept", "accept", "drop"], "unlike public_items, it accepts it in other words"
    assert verdicts[2].reason == "a right completion fails by its answer and tests"


def test_tests_that_pass_both_or_neither_are_refused() -> None:
    try:
        sandbox.backend()
    except sandbox.SandboxUnavailable as error:
        pytest.skip(str(error))
    item = item_of(CODE)
    cases = cases_of(item.tests) or ()
    arguments, answer = cases[0]
    tests = {
        item.tests: "accept",
        f"def check(candidate):\n    assert candidate(*{arguments!r}) == {answer!r}": "accept",
        "def check(candidate):\n    pass": "drop",
        f"{item.tests}\n[{arguments!r}, -1]".replace("'", '"'): "drop",
        "def check(candidate):\n    raise ValueError": "drop",
        "no program at all": "drop",
    }
    verdicts = judged(GoldSanity(), CODE, *(AnswerKey(item.answer, each) for each in tests))
    assert actions(verdicts) == list(tests.values())
    assert verdicts[2].reason == "a wrong completion passes by its answer and tests"
    assert actions(judged(GoldSanity("zero"), CODE, AnswerKey(item.answer, "x"))) == ["zero"]


def test_what_has_left_its_group_is_not_scored_again() -> None:
    assert actions(judged(GoldSanity(), MATHS, AnswerKey("no number"), refused=True)) == ["accept"]


@pytest.mark.parametrize("defense", [PublicItems, GoldSanity])
def test_it_rejects_by_zero_or_drop(defense: type[PublicItems]) -> None:
    with pytest.raises(ValueError, match="reject must be one of zero, drop, not 'mask'"):
        defense("mask")  # type: ignore[arg-type]
