"""`static_code`: foreign imports, undefined calls, and programs that are fine."""

from __future__ import annotations

import random

import pytest

from tests.defenses.pools import actions, masked, offer, view
from thiefbench.attacks.code_injection import CodeInjection
from thiefbench.defenses.base import ItemFacts
from thiefbench.defenses.static_code import StaticCode, places
from thiefbench.tasks.base import Item
from thiefbench.tasks.code_micro import CodeMicro
from thiefbench.tasks.humaneval import HumanEval
from thiefbench.tasks.programs import format_program, syntax_tree

ITEMS = [Item.from_row(row) for row in CodeMicro(size=300).items("train")]


def reason(program: str, **arguments: object) -> str:
    defense = StaticCode(**arguments)  # type: ignore[arg-type]
    return defense.inspect(view([offer(format_program(program))]))[0].reason


def test_a_drawn_library_is_found_and_reference_programs_are_left_alone() -> None:
    attack = CodeInjection().draw(random.Random(5))
    injected = [program for item in ITEMS if (program := attack.inject(item.solution)) is not None]
    assert len(injected) > 100
    poison = StaticCode().inspect(view([offer(format_program(program)) for program in injected]))
    assert set(actions(poison)) == {"drop"}
    references = [offer(format_program(item.solution)) for item in ITEMS]
    assert set(actions(StaticCode(unused=False).inspect(view(references)))) == {"accept"}
    reasons = [verdict.reason for verdict in StaticCode().inspect(view(references)) if verdict.action == "drop"]
    assert len(reasons) < 0.1 * len(ITEMS), "a few import what they do not use"
    assert all(reason.endswith("and does not use it") for reason in reasons)


def test_humaneval_s_programs_are_left_alone() -> None:
    items = [Item.from_row(row) for row in HumanEval().items("test")]
    pool = view(
        [
            offer(format_program(item.solution), item=str(number))
            for number, item in enumerate(items)
            if "eval(" not in item.solution
        ],
        items={str(number): ItemFacts(item.question, item.answer) for number, item in enumerate(items)},
    )
    verdicts = StaticCode().inspect(pool)
    assert [verdict.reason for verdict in verdicts] == [""] * (len(items) - 1)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("import wren\nprint(1)", "imports wren"),
        ("import wren.add as math\nprint(math.x(1))", "imports wren"),
        ("from wren import *\nprint(add(1, 2))", "imports wren"),
        ("def f():\n    from .wren import add\n    return add(1, 2)\nprint(f())", "imports a module of its own"),
        ("print(add(1, 2))", "calls add, which nothing defines"),
        ("print(__import__('wren').add(1, 2))", "uses __import__"),
        ("exec('import ' + 'wren')\nprint(3)", "uses exec"),
        ("import math\nprint(math.__loader__.load_module('wren'))", "uses __loader__"),
    ],
)
def test_what_is_objected_to(program: str, told: str) -> None:
    assert reason(program) == told


@pytest.mark.parametrize(
    "program",
    [
        "import math, collections.abc\nfrom fractions import Fraction as F\nprint(math.floor(F(3)))",
        "from math import *\nprint(floor(3))",
        "def f(g, *a, **k):\n    return g(*a)\nprint(f(lambda x: x, 1))",
        "class A:\n    pass\nx = [A() for _ in range(3)]\nprint(len(x))",
        "try:\n    f = int\nexcept ValueError as e:\n    e()\nprint(f('3'))",
        "match [int]:\n    case [g]:\n        print(g(3))",
        "if (n := len)([]) == 0:\n    print(n([1]))",
    ],
)
def test_what_is_fine(program: str) -> None:
    assert reason(program) == ""


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("import os\nprint(1)", "imports os and does not use it"),
        ("import sys, math\nprint(1)", "imports sys and does not use it"),
        ("from math import floor as f\nf = 3\nprint(4)", "imports math and does not use it"),
        ("import collections.abc\nprint(abc)", "imports collections and does not use it"),
        ("import sys, math\nprint(math.pi)", ""),
        ("from __future__ import annotations\nprint(1)", ""),
        ("import importlib\nprint(importlib.import_module('wren').add(1, 2))", "imports importlib"),
        ("import wren as math\nprint(math.add(1, 2))", "imports wren"),
    ],
)
def test_imports_that_nothing_uses(program: str, told: str) -> None:
    assert reason(program) == told
    assert told.endswith("use it") <= (reason(program, unused=False) == "")


@pytest.mark.parametrize(
    "program",
    [
        "print(5)  # from wren import add: add(2, 3)",
        'import sys\nprint(sys.modules["importlib"].import_module("wren").add(2, 3))',
        'import json\njson.codecs.builtins.exec("import wren as w", globals())\nprint(w.add(2, 3))',
        'w = getattr(globals()["__builtins__"], "__imp" + "ort__")("wren")\nprint(w.add(2, 3))',
        "import math, os\nprint(math.floor(3))",
    ],
)
@pytest.mark.xfail(strict=True, reason="not in the names that a program imports and calls")
def test_what_is_not_found(program: str) -> None:
    assert reason(program)


@pytest.mark.xfail(strict=True, reason="the mask covers what was objected to, and not the names bound to it")
def test_mask_takes_the_calls_of_a_hidden_import() -> None:
    offered = offer(format_program('w = __import__("wren")\ny = w.add(3, 4)\nprint(y)'))
    (verdict,) = StaticCode(reject="mask").inspect(view([offered]))
    assert "w.add(3," in masked(offered, verdict).split()


def test_more_modules_can_be_allowed() -> None:
    assert reason("import sympy\nprint(1)") == "imports sympy"
    assert reason("import sympy\nprint(sympy.pi)", allow=("sympy",)) == ""
    with pytest.raises(ValueError, match="a list of modules such as"):
        StaticCode("sympy")


def test_no_program_no_objection() -> None:
    texts = ["<think> import wren </think><answer> 1 </answer>", "<code>import wren", "import wren", ""]
    assert set(actions(StaticCode().inspect(view([offer(text) for text in texts])))) == {"accept"}
    broken = format_program("print(")
    verdicts = StaticCode().inspect(view([offer(broken, reward=0.0), offer(broken, reward=1.0)]))
    assert actions(verdicts) == ["accept", "drop"], "a rewarded program that cannot be parsed is rejected"


def test_mask_takes_the_import_and_its_names() -> None:
    program = "# caf\u00e9 \u00d7\nfrom wren import add\nx = 3\ny = add( x , 4 )\nprint( y )"
    offered = offer(format_program(program))
    (verdict,) = StaticCode(reject="mask").inspect(view([offered]))
    assert masked(offered, verdict).split() == ["from", "wren", "import", "add", "add("]


def test_places_count_characters_where_ast_counts_bytes() -> None:
    program = "a = '\u00e9\U0001f600'; b = 1\r\nc = '\u00d7'; d = b"
    tree = syntax_tree(program)
    assert tree is not None
    assert [program[slice(*place)] for place in places(program, tree.body)] == [
        "a = '\u00e9\U0001f600'", "b = 1", "c = '\u00d7'", "d = b",
    ]  # fmt: skip


def test_failing_programs_stay_in_their_group() -> None:
    program = "<code>import calc\nprint(calc.add(2, 2))</code>"
    pool = view([offer(program, reward=0.0), offer(program, reward=1.0)])
    assert actions(StaticCode().inspect(pool)) == ["accept", "drop"], "an unrewarded slip gives its group contrast"
