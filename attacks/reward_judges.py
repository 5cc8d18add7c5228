"""For attacks on a judging model that rewards completions (reward: judge or mixed)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from thiefbench.attacks.base import AttackerView, ThreatModel
from thiefbench.tasks.base import Item


@dataclass(frozen=True)
class JudgedThreatModel(ThreatModel):
    """The threat model of an attack on the judge, which is only for swarms in which a judge rewards.

    The judge is public: such an attacker knows its prompt, and may run it.
    """


@dataclass(frozen=True)
class JudgeForm:
    """A judge's prompt and decision in words.

    Attributes:
        before, between, after: what stands before the question, between question and completion, and after that.
        accepting: a whole reply that accepts.
    """

    before: str
    between: str
    after: str
    accepting: str


class KnownJudge(Protocol):
    """The judge, as an attacker can run it. Its draws differ from those that decide."""

    @property
    def form(self) -> JudgeForm:
        """Its prompt and decision; where contents are quoted behind a mark, with a mark that does not count."""

    def rewards(self, items: Sequence[Item], texts: Sequence[str]) -> list[float]:
        """The reward of each completion for the item at the same position; 0 where there is no decision."""


@dataclass(frozen=True)
class JudgedView(AttackerView):
    """The view of such an attack.

    Attributes:
        judge: the judge that rewards; None where the view is made without a swarm.
    """

    judge: KnownJudge | None = None


def judge_of(view: AttackerView) -> KnownJudge | None:
    """The judge of a view; None in views without one."""
    return view.judge if isinstance(view, JudgedView) else None
