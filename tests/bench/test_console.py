"""Text on a terminal is wrapped between words; elsewhere a line stays one line."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
import typer

from thiefbench.cli import show
from thiefbench.console import WrappingConsole, print_hanging, stoppable, typed, waiting_for

SENTENCE = "0 to 80 seconds, at the pace of another machine (--measure: at this machine's) " * 3


def console(terminal: bool) -> WrappingConsole:
    return WrappingConsole(
        file=StringIO(), force_terminal=terminal, width=80, no_color=True, highlight=False, emoji=False
    )


def shown(out: WrappingConsole) -> list[str]:
    assert isinstance(out.file, StringIO)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


def test_a_terminal_wraps_between_words() -> None:
    out = console(terminal=True)
    out.print(SENTENCE)
    lines = shown(out)
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).split() == SENTENCE.split()


def test_a_pipe_gets_one_line() -> None:
    out = console(terminal=False)
    out.print(SENTENCE)
    assert shown(out) == [SENTENCE.rstrip()]


def test_a_command_to_copy_stays_one_line() -> None:
    out = console(terminal=True)
    out.print(SENTENCE, soft_wrap=True)
    assert shown(out) == [SENTENCE.rstrip()]


@pytest.mark.parametrize(("terminal", "begin"), [(True, 8), (False, 0)])
def test_what_stands_behind_a_label_goes_on_below_itself(terminal: bool, begin: int) -> None:
    out = console(terminal)
    print_hanging(out, "FAILED  ", SENTENCE)
    first, *others = shown(out)
    assert first.startswith("FAILED  0 to 80 seconds")
    assert len(others) == (3 if terminal else 0)
    assert {len(line) - len(line.lstrip()) for line in others} <= {begin}
    assert not terminal or max(map(len, (first, *others))) <= 80


@pytest.mark.parametrize("terminal", [True, False])
def test_needs_stand_below_each_other(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    out = console(terminal)
    monkeypatch.setattr(show, "out", out)
    show._show("attack", "forged_answers", as_json=False)
    lines = shown(out)
    first = next(number for number, line in enumerate(lines) if line.startswith("needs: "))
    last = next(number for number, line in enumerate(lines) if line.startswith("source: "))
    needs = lines[first:last]
    assert all(line.startswith(" " * len("needs: ")) for line in needs[1:])
    assert len(needs) == (4 if terminal else 3)
    assert (max(map(len, needs)) <= 80) == terminal


@pytest.mark.parametrize(("found", "begins"), [(None, ".venv/bin/thiefbench"), ("/usr/bin/thiefbench", "thiefbench")])
def test_a_program_that_no_name_finds_is_named_with_its_path(
    found: str | None, begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make demo` runs one without activating its environment."""
    monkeypatch.setattr("shutil.which", lambda name: found)
    monkeypatch.setattr(sys, "argv", [".venv/bin/thiefbench", "run", "a b"])
    assert typed() == f"{begins} run 'a b'"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["kill", "the terminal was closed"])
def test_a_stop_names_the_command_to_continue(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # the tests themselves may run under nohup
    try:
        with pytest.raises(typer.Exit), stoppable():
            os.kill(os.getpid(), number)
            time.sleep(5)  # not reached, or only its beginning
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert "Stopped; all finished work is kept. To continue: thiefbench" in capsys.readouterr().err


@pytest.mark.parametrize("kept", [True, False])
def test_a_full_disk_is_not_said_to_have_kept_what_it_has_not(kept: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """`verify` without a store works in a folder that goes with the command; where it is kept, the program says so."""
    with pytest.raises(OSError if kept else SystemExit), stoppable(kept=kept):
        raise OSError(errno.ENOSPC, "No space left on device")
    said = "error: the disk is full; nothing is kept without --store DIR, so make room"
    assert (said in capsys.readouterr().err) is not kept


def test_under_nohup_the_end_of_the_terminal_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert capsys.readouterr().err == ""
    finally:
        signal.signal(signal.SIGHUP, before)


def test_waiting_for_another_process_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = waiting_for(Path("store/cells/0123"))
    waiting()
    waiting()
    assert capsys.readouterr().err.count("another process works on store/cells/0123; waiting until it is done") == 1
