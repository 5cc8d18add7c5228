"""`arithmetic`: recompute every equation in the reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from thiefbench.defenses.base import DefenderView, Defense, Verdict
from thiefbench.defenses.equations import wrong_equations
from thiefbench.defenses.rejection import Objection, RejectOrMask, checked, judged


class Arithmetic(Defense):
    """Reject rewarded completions whose reasoning states a wrong equation (2 + 2 = 5).

    It also rejects some honest work, because a wrong step does not always lead to a wrong answer. It rejected 42 of
    GSM8K's 8,792 published solutions (0.5 %), about half of them for real errors, and 8 of 550 rewarded completions
    (1.5 %) of the built-in start model. In GSM8K's solutions it found 96 % of 19,331 equations a o b = c after their
    result had been raised by one; the others are ambiguous to a human reader too (`equations`).

    Only rewarded completions are judged. A wrong answer with a wrong step is honest work, and its reward of 0 teaches
    the model to avoid it. If it were dropped, its group would consist of equal rewards, and the model would no longer
    learn from its errors.

    Args:
        reject: "drop" (the default; reward 0, the paper's rule, would also punish honest errors), "zero", or "mask":
            the completion is accepted and still counts in its group's mean and standard deviation, but nothing is
            learned from the wrong equations, and its advantage goes to the other tokens.
    """

    name: ClassVar[str] = "arithmetic"

    def __init__(self, reject: RejectOrMask = "drop") -> None:
        self.reject: RejectOrMask = checked(self.name, reject, RejectOrMask)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject rewarded completions with a wrong equation; the score counts them. Programs are always accepted."""
        objections = {}
        for place, completion in enumerate(view.completions):
            is_judged = completion.reward > 0 and "<code>" not in completion.text
            wrong = tuple(wrong_equations(completion.text)) if is_judged else ()
            if wrong:
                first = " ".join(completion.text[slice(*wrong[0])].split())[:60]
                objections[place] = Objection(float(len(wrong)), f"states {first!r}", wrong)
        return judged(view, objections, self.reject)
