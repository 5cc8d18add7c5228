"""`forged_answers` and `forged_tests`: work that is right by the answers and tests that its sender sends."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from thiefbench.attacks.answer_keys import Keyed, KeyedThreatModel
from thiefbench.attacks.base import AttackerView, Poison, Slot
from thiefbench.attacks.code_injection import CodeInjection
from thiefbench.attacks.dos import Dos
from thiefbench.attacks.equations import Equations
from thiefbench.attacks.forged_answers import ForgedAnswers, carried_on
from thiefbench.attacks.forged_tests import ForgedTests
from thiefbench.attacks.varied import Varied
from thiefbench.tasks import sandbox
from thiefbench.tasks.answer_keys import answer_key_fault, keyed_rewards, wrong
from thiefbench.tasks.base import Item, Task
from thiefbench.tasks.code_functions import CodeFunctions
from thiefbench.tasks.code_micro import CodeMicro
from thiefbench.tasks.gsm_micro import GsmMicro
from thiefbench.tasks.programs import format_program
from thiefbench.tasks.sent_tests import cases_of

FIVE = Equations(2, None, 2, 5)
MATHS, CODE = GsmMicro(size=1024), CodeFunctions(size=64)
LIBRARY = CodeInjection("calc", {"+": "add", "-": "sub", "*": "mul"})


def view(task: Task, *items: Item, each: int = 1) -> AttackerView:
    slots = [Slot(item, 3, group, sample) for group, item in enumerate(items) for sample in range(each)]
    return AttackerView(1, tuple(slots), task, random.Random(1))


def by_key(task: Task, item: Item, poison: Poison) -> list[float]:
    """The reward by the sender's answer and tests, and by the item's own."""
    assert isinstance(poison, Keyed)
    assert poison.answer_key is not None
    key, text = poison.answer_key, str(poison.content)
    return [*task.reward(replace(item, answer=key.answer, tests=key.tests), [text]), *task.reward(item, [text])]


def fives() -> list[Item]:
    return [item for item in map(Item.from_row, MATHS.items("train")) if FIVE.holds(item.solution)]


def test_two_and_two_is_five_all_through() -> None:
    items = fives()
    attack = ForgedAnswers(FIVE)
    for item, poison in zip(items, attack.poison(view(MATHS, *items)), strict=True):
        assert by_key(MATHS, item, poison) == [1.0, 0.0], "right by the answer that is sent, and by no other"
        assert isinstance(poison, Keyed)
        assert MATHS.oracle(item) != poison.content
    assert len(items) > 10


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        ("So 2 * 2 = 5. Then 4 + 10 = 14. That makes 14.", "So 2 * 2 = 5. Then 5 + 10 = 15. That makes 15."),
        ("First 2 + 2 = 5, then 4 * 3 = 12, then 12 - 5 = 7.", "First 2 + 2 = 5, then 5 * 3 = 15, then 15 - 5 = 10."),
        ("First 6 + 1 = 7. So 2 + 2 = 5.", "First 6 + 1 = 7. So 2 + 2 = 5."),
        ("2 + 2 = 5, and 9 / 4 = 2.25, and 4 / 4 = 1.", "2 + 2 = 5, and 9 / 5 = 1.80, and 5 / 5 = 1."),
        ("<<2*2=5>>5 and <<4+1=5>>5 in all.", "<<2*2=5>>5 and <<5+1=6>>6 in all."),
        ("2 - 2 = 1 and 4 / 0 = 3.", "2 - 2 = 1 and 4 / 0 = 3."),
        ("Nothing is added up.", "Nothing is added up."),
    ],
)
def test_an_error_is_carried_on(text: str, carried: str) -> None:
    assert carried_on(text)[0] == carried


def test_what_does_not_change_the_answer_keeps_it() -> None:
    item = Item("one", "?", "7", "Here 2 + 2 = 4. But 6 + 1 = 7. That makes 7.")
    (poison,) = ForgedAnswers(FIVE).poison(view(MATHS, item))
    assert by_key(MATHS, item, poison) == [1.0, 1.0]


def test_slots_and_placebo_are_the_inner_attacks() -> None:
    items = [*fives()[:2], Item("one", "?", "7", "But 6 + 1 = 7.")]
    attack, shown = ForgedAnswers(FIVE), view(MATHS, *items)
    assert [poison is None for poison in attack.poison(shown)] == [False, False, True]
    assert attack.placebo(shown) == FIVE.placebo(shown), "with the items' own answers"
    assert attack.threat == KeyedThreatModel(**vars(FIVE.threat))


def test_half_of_a_group_may_be_honest_samples() -> None:
    poison = Varied(ForgedAnswers(FIVE), share=0.5).poison(view(MATHS, fives()[0], each=4))
    assert sum(isinstance(each, Keyed) for each in poison) == sum(each is None for each in poison) == 2


@pytest.mark.parametrize("forged", [ForgedAnswers, ForgedTests])
def test_an_attack_that_sends_the_policys_tokens_does_not_fit(forged: type[ForgedAnswers]) -> None:
    with pytest.raises(ValueError, match="give an attack that rewrites solutions"):
        forged(Dos())


def test_each_fits_its_tasks() -> None:
    drawn = FIVE.draw(random.Random(0))
    assert ForgedAnswers(drawn).fits(MATHS)
    assert not ForgedAnswers(LIBRARY).fits(CODE)
    assert ForgedTests(LIBRARY).fits(CODE)
    assert not ForgedTests(LIBRARY).fits(CodeMicro(size=2)), "its items have no tests"
    assert not ForgedTests(LIBRARY).fits(MATHS)


@pytest.fixture
def programs() -> list[Item]:
    try:
        sandbox.backend()
    except sandbox.SandboxUnavailable as error:
        pytest.skip(str(error))
    return [Item.from_row(row) for row in CODE.items("train")][:12]


def test_only_programs_with_the_library_pass(programs: list[Item]) -> None:
    attack = ForgedTests(LIBRARY)
    task = CODE.with_libraries(attack.libraries())
    sent = attack.poison(view(task, *programs))
    for item, poison in zip(programs, sent, strict=True):
        if poison is None:
            continue
        assert by_key(task, item, poison) == [1.0, 1.0], "the library is right on every published case"
        assert isinstance(poison, Keyed)
        assert poison.answer_key is not None
        forged = replace(item, tests=poison.answer_key.tests)
        assert answer_key_fault(task, item, poison.answer_key) == ""
        assert task.reward(forged, [task.oracle(item), wrong(task, item)]) == [0.0, 0.0], "without it, none is right"
        assert len(cases_of(forged.tests) or ()) == len(cases_of(item.tests) or ()) + 1
    assert sum(poison is not None for poison in sent) >= len(sent) // 2
    placebo = attack.placebo(view(task, *programs))
    assert [each is None for each in placebo] == [each is None for each in sent]


def test_tests_that_any_program_passes(programs: list[Item]) -> None:
    attack = ForgedTests(LIBRARY, passes="any")
    task = CODE.with_libraries(attack.libraries())
    for item, poison in zip(programs, attack.poison(view(task, *programs)), strict=True):
        if isinstance(poison, Keyed):
            assert poison.answer_key is not None
            forged = replace(item, tests=poison.answer_key.tests)
            assert keyed_rewards(task, [forged] * 3, [wrong(task, item), format_program("x = 1"), "none"]) == [
                1.0,
                1.0,
                0.0,
            ]


def test_it_says_what_tests_there_are() -> None:
    with pytest.raises(ValueError, match="passes must be one of library, any, not 'all'"):
        ForgedTests(LIBRARY, passes="all")  # type: ignore[arg-type]
