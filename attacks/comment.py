"""`comment`: a fixed phrase in one comment of a program, the source paper's TEXT for coding (arXiv:2511.09780)."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from thiefbench.attacks.base import Attack, AttackerView, Poison
from thiefbench.attacks.completions import writes_programs
from thiefbench.attacks.text import Position, Text
from thiefbench.tasks.base import Task
from thiefbench.tasks.programs import syntax_tree


class Comment(Text):
    """Put a phrase into one comment of the oracle's program and leave the rest as it is.

    `text` on a coding task turns the phrase and the whole solution beside it into comments above the program, so that
    a model has to learn to write every program twice. Here the payload is the phrase alone.

    Args:
        phrase: what honest models are to learn to say; drawn by default, as for `text`.
        position: "start", a line above the program; "middle", a line above its middle statement, with the same
            indentation; or "end", behind its last line. Drawn by default.

    It succeeds on a completion that contains the phrase without its first word, in any case, wherever it stands. Slots
    whose solution is no readable program are left to honest samples.

    Raises:
        ValueError: the position is another one, or the phrase has fewer than two words or a line break.
    """

    name: ClassVar[str] = "comment"

    def __init__(self, phrase: str | None = None, position: Position | None = None) -> None:
        super().__init__(phrase, position)
        if position == "every":
            raise ValueError("comment: position must be one of start, middle, end; a program has no sentences")
        if phrase is not None and len(phrase.splitlines()) > 1:
            raise ValueError("comment: a phrase is one line, as a comment ends with its line")

    def draw(self, rng: random.Random) -> Comment:
        """Draw the phrase and the position that were not given."""
        drawn = super().draw(rng)
        return Comment(drawn.phrase, drawn.position)

    def fits(self, task: Task) -> bool:
        """Whether completions are programs."""
        return writes_programs(task)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """The oracle's program of every slot with the comment, or None if it cannot be parsed."""
        commented = [self.commented(slot.item.solution) for slot in view.slots]
        return [
            None if program is None else view.task.compose(slot.item, program)
            for slot, program in zip(view.slots, commented, strict=True)
        ]

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """The oracle's program where it could get a comment."""
        return [
            None if self.commented(slot.item.solution) is None else view.task.oracle(slot.item) for slot in view.slots
        ]

    def forms(self) -> Iterator[Attack]:
        """The phrase in other places and spellings, in the order of `text`."""
        return (Comment(form.phrase, form.position) for form in super().forms() if isinstance(form, Text))

    def parts(self, count: int) -> Sequence[Attack]:
        """Pieces of the phrase, as for `text`."""
        return [Comment(part.phrase, part.position) for part in super().parts(count) if isinstance(part, Text)]

    def commented(self, program: str) -> str | None:
        """The program with the comment, or None if it has no statement that can be parsed."""
        program = program.strip()
        tree = syntax_tree(program)
        if tree is None or not tree.body:
            return None
        comment = f"# {self._drawn_phrase}"
        if self.position == "start":
            return f"{comment}\n{program}"
        if self.position == "end":
            return f"{program}  {comment}"
        lines = program.split("\n")
        places = _first_lines(tree, lines)
        line, column = places[len(places) // 2]
        return "\n".join([*lines[:line], " " * column + comment, *lines[line:]])


def _first_lines(tree: ast.Module, lines: Sequence[str]) -> list[tuple[int, int]]:
    """The line (from 0) and indentation of every statement with nothing before it in its line, in their order."""
    begins = {(node.lineno - 1, node.col_offset) for node in ast.walk(tree) if isinstance(node, ast.stmt)}
    return sorted((line, column) for line, column in begins if lines[line][:column] == " " * column) or [(0, 0)]
