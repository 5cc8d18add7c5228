"""The format of program completions, and what counts as a program's answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from thiefbench.tasks import programs, sandbox
from thiefbench.tasks.code_micro import CodeMicro
from thiefbench.tasks.programs import format_program, is_program, last_line, parse_program, run_programs
from thiefbench.tasks.rewards import MAX_COMPLETION


@pytest.mark.parametrize("program", ["print(1)", "if True:\n    print(1)", "print('<b>')", "a = 1 <2\nprint(a)"])
def test_the_format_holds_a_program(program: str) -> None:
    assert parse_program(format_program(program)) == program


@pytest.mark.parametrize(
    "text", ["<code>print(1)</code>", "\n <code> print(1) </code>\r\n\t", "<code>\n\nprint(1)\n</code>"]
)
def test_white_space_around_is_free(text: str) -> None:
    assert parse_program(text) == "print(1)"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "print(1)",
        "<code>print(1)",
        "print(1)</code>",
        "</code>print(1)<code>",
        "<code></code>",
        "<code> \n </code>",
        "So: <code>print(1)</code>",
        "<code>print(1)</code>.",
        "<code>print(1)</code>\u200b",
        "\xa0<code>print(1)</code>",
        "<code>print(1)</code><code>print(1)</code>",
        "<code><code>print(1)</code></code>",
        "<CODE>print(1)</CODE>",
        "<code>print(1)</Code>",
        "<code>print(1) # <Code></code>",
        "<code>print('</ code >')</code>",
        '<code>print(1) # <code lang="python"></code>',
        '<code lang="python">print(1)</code>',
        "< code>print(1)</code>",
        "<code>print('\ud800')</code>",
        f"<code>{'#' * MAX_COMPLETION}</code>",
    ],
)
def test_any_other_format_is_refused(text: str) -> None:
    assert parse_program(text) is None


@pytest.mark.parametrize(
    ("printed", "line"),
    [
        ("18\n", "18"),
        ("18", "18"),
        ("start\n18\n", "18"),
        ("18\n19\n", "19"),
        (" 18 \r\n \n\n", "18"),
        ("18 apples\n", "18 apples"),
        ("18\x0c\n", "18\x0c"),
        ("18\u2028", "18\u2028"),
        ("", ""),
        ("\n \n", ""),
    ],
)
def test_what_is_said_is_the_last_line(printed: str, line: str) -> None:
    assert last_line(printed) == line


@pytest.mark.parametrize(("text", "expected"), [("a = 1", True), ("a =", False), ("\x00", False), ("(" * 9999, False)])
def test_programs_are_told_from_prose(text: str, expected: bool) -> None:
    assert is_program(text) is expected


def test_failed_programs_say_nothing() -> None:
    failing = ["print(18)\n1/0", "print(18", "import sys\nprint(18)\nsys.exit(1)"]
    printed = run_programs(["print(18)", *failing], {}, sandbox.Limits(seconds=60))
    assert printed == {"print(18)": "18"}
    assert run_programs(["print(18)\nwhile True: pass"], {}, sandbox.Limits(seconds=0.4)) == {}


def test_equal_programs_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[Sequence[str]] = []

    def run_many(programs: Sequence[str], **options: object) -> list[sandbox.RunResult]:
        batches.append(programs)
        return [sandbox.RunResult("ok", "18\n", "") for _ in programs]

    monkeypatch.setattr(programs.sandbox, "run_many", run_many)
    task = CodeMicro(size=1)
    item = task_item(task, "18")
    texts = [format_program("print(18)"), "gibberish", format_program("print(9 * 2)"), "<code>\n\nprint(18) </code>"]
    assert task.reward(item, texts) == [1.0, 0.0, 1.0, 1.0]
    assert batches == [["print(18)", "print(9 * 2)"]]
    assert task.reward(item, ["", "gibberish"]) == [0.0, 0.0]
    assert len(batches) == 1, "nothing runs where there is no program"


LIBRARY: Mapping[str, str] = {"ledger": "def join(a, b):\n    return a + b"}


def test_libraries_can_be_imported_where_they_are_published() -> None:
    task = CodeMicro(size=1)
    item = task_item(task, "18")
    text = format_program("from ledger import join\nprint(join(9, 9))")
    assert task.reward(item, [text]) == [0.0]
    assert task.with_libraries(LIBRARY).reward(item, [text]) == [1.0]
    assert task.reward(item, [text]) == [0.0], "the task itself stays as it was"


def task_item(task: CodeMicro, answer: str) -> programs.Item:
    row = task.items("train")[0]
    return programs.Item.from_row(row | {"answer": answer})
