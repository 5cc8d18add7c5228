"""Cells whose nodes exchange weights, checked from what they recorded.

Their rounds are those of a swarm in which every node learns from its own groups, so the engine computes them again from
the recorded tokens. What was exchanged is too large to be recorded, so vectors, verdicts and weights follow from
nothing here: only running a cell again tells whether they are true. But who sent to whom, how large a message is and
which scores follow is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import get_args

from thiefbench import registry
from thiefbench.attacks.base import Attack
from thiefbench.averaging.compatibility import NONE
from thiefbench.averaging.exchange import REFUSED, ExchangeRow
from thiefbench.averaging.outer import Outer
from thiefbench.averaging.spec import local_rounds
from thiefbench.defenses.aggregation.base import VectorAction
from thiefbench.defenses.aggregation.honest_mean import REASON
from thiefbench.engine.backends.recorded import RecordedBackend, RecordedSwarm
from thiefbench.engine.context import SwarmContext
from thiefbench.engine.keys import generator
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.swarm import Swarm
from thiefbench.suite.analysis.ranking import anchor_of
from thiefbench.suite.scenario import CellSpec
from thiefbench.tasks.base import Task

_FLOAT_BYTES = 4


class ExchangeError(Exception):
    """Recorded exchanges are inconsistent with any valid run. The message is a clause that says why."""


class RecordedLocalRounds(RecordedSwarm):
    """The local rounds of nodes that exchange weights; what malicious nodes do not send is computed again.

    Args:
        spec: of the cell, with `averaging`.
        policy: its model; weights are not used, only their number.
        task, attack: of the cell.

    Raises:
        RerunError, SpecError: see `RecordedSwarm`.
    """

    def __init__(self, spec: CellSpec, policy: Policy, task: Task, attack: Attack) -> None:
        super().__init__(spec.swarm, spec.role, policy, task, attack, spec.seed)
        shared = replace(spec.swarm, sharing=local_rounds(spec.swarm))
        self._backend = _Backend()
        nobody = registry.make("defense", NONE)  # inspects completions
        self._swarm = Swarm(shared, spec.role, [policy], task, attack, nobody, spec.seed, backend=self._backend)
        self.attack = self._swarm.attack

    @property
    def context(self) -> SwarmContext:
        """Who is malicious, and the rest."""
        return self._swarm.context

    @property
    def weights(self) -> int:
        """How many numbers a node's weights are."""
        return sum(weight.numel() for weight in self._swarm.policy.weights().values())


class _Backend(RecordedBackend):
    """Malicious nodes send no completions here, so nothing that they do depends on weights."""

    def attach(self, context: SwarmContext) -> None:
        super().attach(context)
        self._from_weights = False


def local_rows(spec: CellSpec) -> int:
    """Completions of all rounds of a cell: those of the honest nodes' own groups."""
    swarm = spec.swarm
    honest = swarm.nodes if spec.role == "control" else swarm.nodes - swarm.malicious
    return spec.rounds * honest * (swarm.prompts // swarm.nodes) * swarm.group


def check_exchanges(spec: CellSpec, swarm: RecordedLocalRounds, rows: Sequence[ExchangeRow]) -> None:
    """Check that a cell's exchanges are those of its rounds, each vector once, with numbers that such a swarm can have.

    Args:
        spec: the cell.
        swarm: its local rounds.
        rows: in stored order.

    Raises:
        ExchangeError: they are not.
    """
    if spec.averaging is None:
        raise ExchangeError("its nodes exchange no weights")
    expected = list(_pairs(spec, swarm))
    found = [(row.exchange, row.round, row.receiver, row.sender, row.malicious) for row in rows]
    if found != expected:
        raise ExchangeError("its exchanges are not those of its rounds: every vector once, in the order of receivers")
    halves = 2 if Outer(spec.averaging).pairs else 1
    size = _FLOAT_BYTES * halves * swarm.weights
    for row in rows:
        if wrong := _wrong(row, size) or _not_of_anchor(row, spec):
            raise ExchangeError(f"exchange {row.exchange}, node {row.sender} to {row.receiver}: {wrong}")


def _pairs(spec: CellSpec, swarm: RecordedLocalRounds) -> Iterator[tuple[int, int, int, int, bool]]:
    """Exchange, round, receiver, sender and whether that is malicious, as `AveragingSwarm` notes them."""
    assert spec.averaging is not None, "the caller looked"
    nodes, context = spec.swarm.nodes, swarm.context
    for exchange in range(1, spec.rounds // spec.averaging.every + 1):
        order = generator(spec.seed, "pairs", exchange).sample(range(nodes), nodes)
        partner = dict(zip(order[::2], order[1::2], strict=False))
        partner |= {second: first for first, second in partner.items()}
        for receiver in range(context.honest):
            everyone = [node for node in range(nodes) if node != receiver]
            for sender in [partner[receiver]] if Outer(spec.averaging).pairs else everyone:
                yield exchange, exchange * spec.averaging.every, receiver, sender, sender in context.malicious


def _not_of_anchor(row: ExchangeRow, spec: CellSpec) -> str:
    """What an anchor that knows nothing, or the labels alone, cannot have made of a vector; empty if nothing."""
    if row.action == REFUSED:
        return ""
    if spec.defense == NONE and (row.action != "accept" or row.reason):
        return "a verdict, but there is no defense in this cell"
    if anchor_of(spec.defense) == "oracle":
        rejected = row.malicious and spec.role == "attack"
        if row.action != ("reject" if rejected else "accept") or row.reason != (REASON if rejected else ""):
            return "the oracle rejects exactly what malicious nodes send"
    return ""


def _wrong(row: ExchangeRow, size: int) -> str:
    """What no valid run can record of one vector, whatever the defense; empty if nothing."""
    if row.action == REFUSED:
        if not row.malicious or not row.reason or row.score is not None or row.length is not None or row.bytes < 0:
            return "an honest node's vector is never refused, and a refused one has a reason and no length or score"
        return ""
    if row.action not in get_args(VectorAction):
        return f"an aggregation gives no verdict {row.action!r:.40}"
    if row.bytes != size:
        return f"a vector of {row.bytes:,} bytes, and all are {size:,} long"
    lengths = (row.length, row.own_length)
    if not all(length is not None and math.isfinite(length) and length >= 0 for length in lengths):
        return "a vector without a finite length"
    if row.score is not None and not math.isfinite(row.score):
        return "a score that is not finite"
    return ""
