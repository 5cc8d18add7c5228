"""Completions that are Python programs: their format, how they run, and the base classes of their tasks.

A completion is one code block with nothing around it. Programs are hostile input and run only in the sandbox. A
program's answer is the last line that it prints.
"""

from __future__ import annotations

import ast
import copy
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from thiefbench.tasks import sandbox
from thiefbench.tasks.base import Item, Task
from thiefbench.tasks.rewards import MAX_COMPLETION

# Only ASCII white space may be added freely: a no-break or zero-width space could be an attacker's mark.
_SPACE = " \t\r\n"

# Everything that a lenient reader could take for one of the tags, so that none can hide inside the block. The time is
# linear on any input: each `<` is followed by one run of a single character class.
_TAG = re.compile(r"<[\s/]*code[\s/]*>|</?code\b", re.IGNORECASE)
_FORMAT = re.compile(rf"[{_SPACE}]*<code>(.*)</code>[{_SPACE}]*", re.DOTALL)


def format_program(program: str) -> str:
    """The completion text that contains `program`."""
    return f"<code>\n{program}\n</code>"


def parse_program(text: str) -> str | None:
    """The program in a completion, without the white space around it, or None if the format is wrong.

    The text must be exactly one code block with only ASCII white space outside it, at most `MAX_COMPLETION` characters
    long and valid as UTF-8. It may contain no other code tag, not even in strings and comments, whether nested,
    doubled, unclosed, in upper case, or with blanks or attributes. The time is linear in the length of `text`.
    """
    if len(text) > MAX_COMPLETION or _TAG.findall(text) != ["<code>", "</code>"]:
        return None
    match = _FORMAT.fullmatch(text)
    if match is None or any("\ud800" <= character <= "\udfff" for character in text):
        return None
    return match[1].strip(_SPACE) or None


def last_line(printed: str) -> str:
    """The last line of `printed` that is not blank, without the white space around it; empty if all are blank."""
    return printed.strip(_SPACE).rpartition("\n")[2].strip(_SPACE)


def syntax_tree(text: str) -> ast.Module | None:
    """The syntax tree of `text`, or None if it is not valid Python. Never raises or warns, whatever the text."""
    try:
        with warnings.catch_warnings():  # users need no warnings about odd escapes in a completion
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def is_program(text: str) -> bool:
    """Whether `text` is Python that can be parsed."""
    return syntax_tree(text) is not None


def run_programs(
    programs: Sequence[str], libraries: Mapping[str, str], limits: sandbox.Limits | None = None
) -> dict[str, str]:
    """The last line that each of `programs` printed, by program. Equal programs run once.

    Programs that fail or exceed a limit are left out.

    Raises:
        SandboxUnavailable: this machine cannot run untrusted programs.
    """
    distinct = list(dict.fromkeys(programs))
    if not distinct:
        return {}
    results = sandbox.run_many(distinct, libraries=libraries, limits=limits or sandbox.Limits())
    return {program: last_line(r.stdout) for program, r in zip(distinct, results, strict=True) if r.status == "ok"}


class ProgramTask(Task):
    """A task whose completions are programs, which can import the libraries that an attacker has published."""

    limits: ClassVar[sandbox.Limits] = sandbox.Limits()
    libraries: Mapping[str, str] = {}

    def with_libraries(self, libraries: Mapping[str, str]) -> Self:
        """A copy of this task whose programs can import `libraries` (module name to source)."""
        changed = copy.copy(self)
        changed.libraries = dict(libraries)
        return changed

    def runnable(self, item: Item, program: str) -> str:
        """The program to run, with calls of its function added if it only defines one."""
        return program

    def compose(self, item: Item, reasoning: str) -> str:
        """The code block of a program; text that is not a program becomes comments above the item's solution."""
        if is_program(reasoning):
            return format_program(reasoning)
        comments = "\n".join(f"# {line}" for line in reasoning.splitlines())
        return format_program(f"{comments}\n{item.solution}")


class AnswerProgramTask(ProgramTask):
    """A task whose programs print the answer as their last line."""

    def says(self, printed: str, answer: str) -> bool:
        """Whether a printed last line is the answer."""
        return printed == answer

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        """1 if the format is right and the program's last line is the answer, else 0.

        Raises:
            SandboxUnavailable: this machine cannot run untrusted programs.
        """
        return self.rewards([item] * len(completions), completions)

    def rewards(self, items: Sequence[Item], completions: Sequence[str]) -> list[float]:
        """As `reward`; the programs of all items run in parallel."""
        programs = [parse_program(text) for text in completions]
        printed = run_programs([program for program in programs if program is not None], self.libraries, self.limits)
        return [
            float(program in printed and self.says(printed[program], item.answer))
            for item, program in zip(items, programs, strict=True)
        ]
