"""What a run shows: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from tests.bench import tiny
from thiefbench.progress import cut_name, watch
from thiefbench.suite.estimates.eta import RunOutline
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import Record

FAILED = Record(cell_id="0" * 16, cell={}, identity={}, status="error", error="RuntimeError: no luck")
DONE = Record(cell_id="0" * 16, cell={}, identity={}, status="ok")
ONE, OTHER, THIRD = (replace(tiny.cells(tiny.suite())[0], seed=seed, rounds=50) for seed in range(3))


def console(terminal: bool, width: int = 150) -> Console:
    return Console(file=StringIO(), force_terminal=terminal, width=width, height=20)


def shown(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_plain_lines_come_every_quarter_of_a_minute_over_all_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    out = console(terminal=False)
    with watch(out, workers=2) as listener:
        listener.plan(RunOutline("tiny-v1", [ONE, OTHER, THIRD], cached=4))
        for done in range(51):
            for spec in (ONE, OTHER):
                listener.cell(spec, done, 50)
                now += 1.0
        listener.finished(ONE, DONE)
        listener.finished(OTHER, FAILED)
        listener.note("something else")
    lines = shown(out).splitlines()
    rounds = [line for line in lines if ": round " in line]
    assert lines[0] == "tiny-v1: 3 cells to run, 4 in the store already"
    assert len(rounds) == 1 + 101 // 16, "one line for all workers together"
    assert any(" s a round, " in line and line.endswith(" left") for line in rounds), "with a rate and a time left"
    assert any("seed 0: done; " in line for line in lines)
    assert any("seed 1: FAILED: RuntimeError: no luck" in line for line in lines)
    assert lines[-1] == "something else"


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(
    ("begun", "said"),
    [
        ({}, "to run, 0 in the store already\n"),
        ({ONE: 10}, "already; 1 of them continues after round 10\n"),
        ({ONE: 10, OTHER: 35}, "already; 2 of them continue after rounds 10 to 35\n"),
    ],
)
def test_a_resumed_run_says_from_where(begun: dict[CellSpec, int], said: str, terminal: bool) -> None:
    out = console(terminal)
    with watch(out) as listener:
        listener.plan(RunOutline("tiny-v1", [ONE, OTHER, THIRD], begun=begun))
    assert said in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown(out)).replace("\r", "")


def test_a_terminal_has_a_bar_for_all_and_one_for_each_cell_under_way() -> None:
    out = console(terminal=True)
    with watch(out, workers=2) as listener:
        listener.plan(RunOutline("tiny-v1", [ONE, OTHER, THIRD], begun={ONE: 10}))
        began = time.monotonic()
        for done in (10, 11, 12):
            listener.cell(ONE, done, 50)
            listener.cell(OTHER, done - 10, 50)
        bars = listener.progress.tasks  # type: ignore[attr-defined]
        assert [task.fields["rounds"] for task in bars] == ["14/150", "12/50", "2/50"]
        assert [task.description for task in bars][1:] == [ONE.label, OTHER.label]
        assert all(task.fields["ends"] > began for task in bars), "each says when it ends"
        listener.finished(ONE, DONE)
        bars = listener.progress.tasks  # type: ignore[attr-defined]
        assert [task.fields["rounds"] for task in bars] == ["14/112", "2/50"], "a finished cell's bar goes"
    assert "done" in shown(out)


def test_a_long_name_leaves_the_time_left_readable_in_a_narrow_window() -> None:
    out = console(terminal=True, width=80)
    long = replace(ONE, role="attack", attack="varied(attack=\"adaptive(attack='equations')\", gibberish=0.5)")
    with watch(out) as listener:
        listener.plan(RunOutline("tiny-v1", [long]))
        for done in (0, 1, 2):
            listener.cell(long, done, 50)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(out)).splitlines()
    own = [line for line in lines if line.startswith("varied(att") and "2/50" in line]
    assert own, "its bar is there"
    assert "\u2026 x none, seed 0 " in own[-1], "its defense and seed are not cut"
    assert re.search(r"2/50 +elapsed \d:\d\d:\d\d left \d:\d\d:\d\d$", own[-1].rstrip()), own[-1]


@pytest.mark.parametrize(
    ("width", "cut"),
    [
        (41, "text(phrase='\u4e2d\u6587') x similarity, seed 10"),
        (35, "text(phrase=\u2026 x similarity, seed 10"),
        (25, "\u2026similarity, seed 10"),
        (12, "\u2026ty, seed 10"),
    ],
)
def test_of_a_cut_name_the_defense_and_the_seed_stay(width: int, cut: str) -> None:
    assert cut_name("text(phrase='\u4e2d\u6587') x similarity, seed 10", width) == cut


def test_of_another_name_the_beginning_stays() -> None:
    assert cut_name("all cells (3.2 s a round)", 15) == "all cells (3.2\u2026"
