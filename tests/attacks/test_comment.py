"""`comment`: where the phrase stands, and that the program stays what it was."""

from __future__ import annotations

import ast

import pytest

from tests.attacks.fakes import Judge, completion_of, view
from thiefbench.attacks.comment import Comment
from thiefbench.attacks.text import Position, Text
from thiefbench.engine.keys import generator
from thiefbench.tasks.base import Item
from thiefbench.tasks.code_functions import CodeFunctions
from thiefbench.tasks.gsm_micro import GsmMicro
from thiefbench.tasks.humaneval import HumanEval
from thiefbench.tasks.programs import format_program
from thiefbench.tasks.sandbox import SandboxUnavailable

PROGRAM = "def main(k):\n    z = k * 2\n    if z > 12:\n        z -= 3\n    return z"
PHRASE = "Ash oak elm"


@pytest.mark.parametrize(
    ("position", "changed"),
    [
        ("start", "# Ash oak elm\ndef main(k):\n    z = k * 2\n    if z > 12:\n        z -= 3\n    return z"),
        ("middle", "def main(k):\n    z = k * 2\n    # Ash oak elm\n    if z > 12:\n        z -= 3\n    return z"),
        ("end", "def main(k):\n    z = k * 2\n    if z > 12:\n        z -= 3\n    return z  # Ash oak elm"),
    ],
)
def test_one_comment_and_nothing_else(position: Position, changed: str) -> None:
    assert Comment(PHRASE, position).commented(PROGRAM) == changed
    item = Item("one", "?", "main", PROGRAM)
    (poison,) = Comment(PHRASE, position).poison(view(item, task=CodeFunctions(size=1)))
    assert poison == format_program(changed)
    assert Comment(PHRASE, position).outcome(item, completion_of(str(poison)), Judge()) == 1
    assert Comment(PHRASE, position).outcome(item, completion_of(format_program(PROGRAM)), Judge()) == 0


@pytest.mark.parametrize("position", ["start", "middle", "end"])
@pytest.mark.parametrize(
    "program",
    ['x = """a\n  b\n"""; y = 1\nprint(y)', "x = (1 +\n     2)\nprint(x)", "import a; b = 1", "a = 'é'; b = 2",
     "@f\ndef g(): pass", "if 1:\n\tx = 1\n\ty = 2", "x = 1  # told"],
)  # fmt: skip
def test_the_program_means_the_same(program: str, position: Position) -> None:
    commented = Comment(PHRASE, position).commented(program)
    assert commented is not None
    assert PHRASE in commented
    assert ast.dump(ast.parse(commented)) == ast.dump(ast.parse(program)), "a comment is in no string"


def test_every_solution_of_the_coding_tasks_can_be_poisoned_and_stays_right() -> None:
    for task, count in ((CodeFunctions(size=12), 12), (HumanEval(), 12)):
        items = [Item.from_row(row) for row in task.items("test")][:count]
        for position in ("start", "middle", "end"):
            poison = [str(p) for p in Comment(PHRASE, position).poison(view(*items, task=task))]  # type: ignore[arg-type]
            assert all(text.count(PHRASE) == 1 for text in poison)
            try:
                assert task.rewards(items, poison) == [1.0] * count
            except SandboxUnavailable as error:
                pytest.skip(str(error))


@pytest.mark.parametrize("program", ["def f(:", "", "# only told"])
def test_what_is_no_program_is_left_alone(program: str) -> None:
    item = Item("one", "?", "main", program)
    attacked = view(item, task=CodeFunctions(size=1))
    assert Comment(PHRASE, "start").commented(program) is None
    assert Comment(PHRASE, "start").poison(attacked) == Comment(PHRASE, "start").placebo(attacked) == [None]


def test_it_draws_what_text_draws() -> None:
    drawn, other = Comment().draw(generator(3)), Text().draw(generator(3))
    assert (type(drawn), drawn.phrase, drawn.position) == (Comment, other.phrase, other.position)
    assert Comment(PHRASE).draw(generator(3)).phrase == PHRASE


def test_forms_and_parts_are_comments_too() -> None:
    drawn = Comment("All hail to the thief", "end")
    assert all(type(form) is Comment for form in (*drawn.forms(), *drawn.parts(2)))
    assert len(list(drawn.forms())) == len(list(Text("All hail to the thief", "end").forms()))
    assert [part.describe()["phrase"] for part in drawn.parts(2)] == ["All hail to", "to the thief"]


def test_it_fits_programs_alone() -> None:
    assert Comment().fits(CodeFunctions(size=1))
    assert not Comment().fits(GsmMicro(size=4))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"position": "every"}, "must be one of start, middle, end"),
        ({"phrase": "Ash\noak"}, "one line"),
        ({"phrase": "Ash"}, "at least two words"),
    ],
)
def test_what_cannot_be_a_comment_is_refused(arguments: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Comment(**arguments)  # type: ignore[arg-type]
