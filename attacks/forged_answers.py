"""`forged_answers`: the sender's own items come with answers that make its wrong equations right."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from thiefbench.attacks.answer_keys import Keyed, keyed
from thiefbench.attacks.base import Attack, AttackerView, Poison, Slot, ThreatModel
from thiefbench.attacks.completions import body, writes_programs
from thiefbench.attacks.equations import equations
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.tasks.answer_keys import AnswerKey
from thiefbench.tasks.base import Task

_OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv
}  # fmt: skip
_NUMBER = re.compile(r"(?<![0-9A-Za-z.,])[0-9][0-9,]*(?:\.[0-9]+)?(?![0-9])")


class ForgedAnswers(AttackWrapper):
    """Carry a wrong equation on to the final answer, and send that answer as the item's own.

    In a swarm with truth: sender, receivers score a group by the answer that came with it. So 2 + 2 = 5 need not be
    hidden in a solution that ends right: every later step computes with 5, and the answer that follows is the one that
    earns the reward. Right answers earn nothing in that group. Slots left to honest samples are therefore decoys that
    no defense can tell from honest work: use `varied(attack="forged_answers", share=0.5)`, because a group of only
    forged completions teaches nothing.

    Args:
        attack: an attack that writes wrong equations into solutions.

    The placebo is the inner attack's, with the items' own answers. Honest models are probed as by the inner attack, on
    held-out items with their true answers.
    """

    name = "forged_answers"

    def __init__(self, attack: Attack | str = "equations") -> None:
        super().__init__(attack)
        if self.attack.threat.policy:
            raise ValueError(
                f"forged_answers: {self.attack.name} sends the policy's own tokens; give an attack that rewrites "
                "solutions, such as equations"
            )

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """The inner attack's, with its own answers."""
        return keyed(self.attack.threat)

    def fits(self, task: Task) -> bool:
        """As the inner attack, where completions state their answers."""
        return not writes_programs(task) and self.attack.fits(task)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """The inner attack's completions with the error carried on, and the answer that follows from it."""
        pairs = zip(view.slots, self.attack.poison(view), strict=True)
        return [_forged(view.task, slot, poison) for slot, poison in pairs]


def _forged(task: Task, slot: Slot, poison: Poison) -> Poison:
    reasoning = body(poison) if isinstance(poison, str) else None
    if reasoning is None:
        return poison
    carried, changed = carried_on(reasoning.strip())
    answer = _number(slot.item.answer)
    forged = replace(slot.item, answer=_written(changed[answer]) if answer in changed else slot.item.answer)
    return Keyed(task.compose(forged, carried), answer_key=AnswerKey.of(forged))


def carried_on(text: str) -> tuple[str, dict[Fraction, Fraction]]:
    """A text in which every step after a wrong equation computes with the wrong result.

    A number counts as an earlier result if it is equal to it. Divisions by 0 are left as they are.

    Returns:
        the text, and what became of each result that changed.
    """
    changed: dict[Fraction, Fraction] = {}
    parts, end = [], 0
    for equation in equations(text):
        (start, stop), last = equation.spans[0], equation.spans[-1][1]
        parts.append(_replaced(text[end : equation.start], changed))
        left, right, stated = (Fraction(value) for value in (equation.left, equation.right, equation.result))
        operands = changed.get(left, left), changed.get(right, right)
        steps = text[equation.start : start]
        if equation.operator == "/" and (right == 0 or operands[1] == 0):
            result = stated
        else:
            true = _OPERATIONS[equation.operator](left, right)
            if true != stated:  # the payload: it stays as it is written, and is carried on from here
                operands, result = (left, right), stated
                changed[true] = stated
            else:
                result = _OPERATIONS[equation.operator](*operands)
                if operands != (left, right):
                    steps = _replaced(steps, changed)
                if result != stated:
                    changed[stated] = result
        written = text[start:stop] if result == stated else _written(result)
        parts.append(steps + written + text[stop:last].replace(text[start:stop], written))
        end = last
    parts.append(_replaced(text[end:], changed))
    return "".join(parts), changed


def _replaced(text: str, changed: dict[Fraction, Fraction]) -> str:
    def other(match: re.Match[str]) -> str:
        value = _number(match[0])
        return _written(changed[value]) if value in changed else match[0]

    return _NUMBER.sub(other, text) if changed else text


def _number(text: str) -> Fraction | None:
    try:
        return Fraction(text.strip().rstrip(".,").replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return None


def _written(value: Fraction) -> str:
    """A number as solutions write it: whole, or with at most two decimals."""
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.2f}"
