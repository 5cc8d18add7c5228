"""Strangers' text as it is shown, and as rich prints it."""

from __future__ import annotations

import sys
from io import StringIO

import pytest
from rich.console import Console

from thiefbench.console import escaped
from thiefbench.tasks.text import one_line, printable

HIDDEN = (
    "\x00\x07\x08\r\x0b\x1b\x7f\x9b\xad\u061c\u200b\u200e\u200f\u2028\u2029\u202e\u2066\u2069\ufeff\ud800\U000e0041"
)


@pytest.mark.parametrize("character", HIDDEN, ids=lambda character: f"{ord(character):04X}")
def test_a_character_that_hides_or_turns_others_is_shown_by_its_number(character: str) -> None:
    assert printable(f"a{character}b") == f"a<U+{ord(character):04X}>b"


def test_every_character_is_either_seen_or_a_space() -> None:
    for number in range(sys.maxunicode + 1):
        shown = printable(chr(number))
        assert shown.isprintable() or shown.isspace(), f"U+{number:04X}"
        assert shown not in "\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\u2028\u2029", f"U+{number:04X} moves to another line"


@pytest.mark.parametrize("text", ["", "plain", "a\n\tb", "héllo ✓ 漢字 \U0001f600", "95\u00a0%", "[red]"])
def test_what_can_be_seen_stays(text: str) -> None:
    assert printable(text) == text


def test_one_line() -> None:
    assert one_line(" a\n\tb\u00a0 c\x1b[2J ") == "a b c<U+001B>[2J"
    assert one_line("x" * 60, 60) == "x" * 60
    assert one_line("x" * 61, 60) == "x" * 57 + "..."
    assert one_line("x" * 50 + " " * 20, 60) == "x" * 50 + "...", "a text that goes on says so"
    assert len(one_line("\x1b" * 60, 60)) == 60, "numbers count too"


def test_nothing_of_a_text_is_obeyed_by_the_terminal_or_rich() -> None:
    console = Console(file=StringIO(), force_terminal=True, width=200, highlight=False, emoji=False)
    console.print(escaped(f"[bold]x[/bold] {HIDDEN}"))
    printed = console.file.getvalue().rstrip("\n")  # type: ignore[attr-defined]
    assert printed.isprintable(), printed
    assert printed.startswith("[bold]x[/bold] <U+0000>")
