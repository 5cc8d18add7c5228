"""A swarm of experts: the classes of a population train apart on their domains, and answer evaluations together.

A round is the engine's (`thiefbench.engine.swarm`), in which every class holds only its own groups (HDEE,
arXiv:2502.19385, after Branch-Train-Merge, arXiv:2208.03306; there, each expert trains alone on its domain's text).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thiefbench.engine.context import items_of
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow, RoundRecord
from thiefbench.engine.spec import Batches, SpecError, SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.experts.backend import DomainBackend, EnsembleBackend
from thiefbench.experts.population import Experts, one_model
from thiefbench.experts.spec import ExpertsSpec, sides


class ExpertSwarm(Swarm):
    """m nodes, f of them malicious, whose classes are experts by domain, or share one model for comparison.

    The malicious nodes belong to the classes of the last f nodes and poison these experts only. In training, experts
    answer for themselves; in evaluations, the ensemble answers every question.

    Args:
        experts: how they train and answer.
        batches: see `LocalBackend`.
        spec: the swarm's settings.
        parts: the other arguments of `Swarm`, except for the backend.

    Raises:
        SpecError: as `Swarm`; or the classes cannot be experts, their models differ in their tokens, or the attack
            needs a rehearsal.
    """

    def __init__(self, experts: ExpertsSpec, batches: Batches, spec: SwarmSpec, **parts: Any) -> None:
        experts.check(spec)
        if parts["attack"].threat.rehearsal:
            raise SpecError(
                f"the attack {parts['attack'].name} rehearses, which a swarm of experts does not support yet"
            )
        ensemble = EnsembleBackend(experts, batches) if experts.training == "apart" else None
        super().__init__(spec, backend=ensemble or DomainBackend(batches), **parts)
        self.experts, self._ensemble = experts, ensemble
        self._sides = sides(spec, self.task)
        policies = [cohort.policy for cohort in self.population.cohorts]
        first = policies[0]
        if not all(_read_alike(first, other) for other in policies[1:]):
            raise SpecError(
                "the experts' models differ in their tokenizers; to mix their probabilities, they must agree"
            )
        who = (self.cohort.defense, self.context.honest, self.seed, self.backend.cohort_class)
        # No round has been played: the engine's population, in which everybody learns from everything, is replaced.
        if ensemble is None:
            self.context.population = one_model(spec, first, *who)
        else:
            self.context.population = Experts(spec, policies, *who)
        items = (*items_of(self.task, "train"), *items_of(self.task, "test"), *(self._probes or ()))
        self._domains = {item.id: self.task.domain(item) for item in items}

    def round(self, number: int) -> RoundRecord:
        """Play round `number`, counted from 1; the rows' labels are those of their questions' domains."""
        record = super().round(number)
        return replace(record, rows=[replace(row, label=self._label(row)) for row in record.rows])

    def evaluate(self, number: int, completions: int) -> RoundRecord:
        """As `Swarm.evaluate`, with the labels of `round`; a row's cohort is the expert with the largest mean share."""
        record = super().evaluate(number, completions)
        led = self._ensemble.led if self._ensemble else {}
        rows = [
            replace(row, label=self._label(row), cohort=led.get((row.phase, row.place), row.cohort))
            for row in record.rows
        ]
        return replace(record, rows=rows)

    def _label(self, row: CompletionRow) -> str:
        domain = self._domains[row.item_id]
        return self._sides.get(domain, domain)


def _read_alike(first: Policy, other: Policy) -> bool:
    """Whether two models read every question as the same tokens."""
    return first.shares_tokens(other) and first.tokenizer.chat_template == other.tokenizer.chat_template
