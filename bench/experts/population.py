"""Who learns from what among experts: every class from its own groups, or one model from all groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from thiefbench.defenses.base import Defense
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.population import Population
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.topology import Assignment


class Experts(Population):
    """Classes that train apart: the nodes of a class, malicious ones included, share groups with each other only."""

    def held_by(self, cohort: Cohort, number: int, owed: Sequence[Assignment]) -> list[int]:
        """Indices of the assignments of the cohort's own class."""
        return [i for i, assignment in enumerate(owed) if self.classes[assignment.node] == cohort.kind]


def one_model(
    spec: SwarmSpec, policy: Policy, defense: Defense, honest: int, seed: int, cohort_class: type[Cohort]
) -> Population:
    """A population in which one model stands for all classes; its nodes still ask about their own domains."""
    return Population(replace(spec, population=()), [policy], defense, honest, seed, cohort_class)
