"""Command-line options that replace a suite's values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from thiefbench.errors import UsageError
from thiefbench.limits import MOST_SEEDS
from thiefbench.wording import counted

if TYPE_CHECKING:
    from thiefbench.suite.scenario import Suite


class Topologies(StrEnum):
    """How items are divided among nodes."""

    vertical = "vertical"
    horizontal = "horizontal"


@dataclass(frozen=True)
class Overrides:
    """Replacements for a suite's own values; empty ones leave the suite's value.

    Attributes:
        defenses: specs, run in addition to the suite's anchors and instead of its other defenses.
        attacks: specs, run instead of the suite's.
        task: the spec of another task.
        model: another model.
        topology: another topology.
        seeds: how many seeds, counted from 0.
        rounds: how many rounds.
    """

    defenses: list[str] | None = None
    attacks: list[str] | None = None
    task: str | None = None
    model: str | None = None
    topology: Topologies | None = None
    seeds: int | None = None
    rounds: int | None = None

    def applied_to(self, suite: Suite) -> Suite:
        """The suite with these replacements; its title names all except defenses, which do not modify a suite.

        Raises:
            UserError: a value is too large or does not fit the suite, or another task than the suite's model answers
                has no model of its own.
        """
        from thiefbench.suite.analysis.ranking import beside_anchors

        if self.seeds and self.seeds > MOST_SEEDS:
            raise UsageError(f"--seeds must be at most {MOST_SEEDS:,}, not {self.seeds:,}")
        changed = suite
        if self.attacks:
            changed = changed.override(f"attacks {' '.join(self.attacks)}", attacks=tuple(self.attacks))
        if self.task:
            changed = changed.override(f"task {self.task}", task=self.task)
        if self.task and not self.model:
            _check_models(changed, self.task)
        if self.model:
            changed = changed.override(f"model {self.model}", model=self.model)
        if self.topology:
            changed = changed.override(f"topology {self.topology}", swarm={"topology": self.topology.value})
        if self.seeds and tuple(range(self.seeds)) != suite.seeds:
            changed = changed.override(counted(self.seeds, "seed"), seeds=tuple(range(self.seeds)))
        if self.rounds and any(self.rounds != part.rounds for part in suite.scenes):
            recorded = tuple(number for number in changed.recorded if number <= self.rounds)
            changed = changed.override(counted(self.rounds, "round"), rounds=self.rounds, recorded=recorded)
        if self.defenses:
            changed = replace(changed, defenses=beside_anchors(suite.defenses, self.defenses))
        return changed


def _check_models(suite: Suite, task: str) -> None:
    """Raise UsageError if a suite's built-in models answer another of the declared tasks than the one that was chosen.

    Nothing is known of other tasks and models.
    """
    from thiefbench.zoo.models import misfit

    if wrong := misfit(task, [part.model for part in suite.scenes]):
        fitting = wrong.fitting or "with a folder or a name on the hub"
        raise UsageError(
            f"--task {wrong.task}: the suite's model {wrong.model} answers {wrong.answers} alone; add --model {fitting}"
        )
