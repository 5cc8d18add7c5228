"""A swarm whose nodes train alone and exchange weights: k rounds on their own prompts, then an outer step.

A round is the engine's (`thiefbench.engine.swarm`), in a swarm in which every node learns from its own groups only.
After every k-th one, each honest node reads what the others send, hands it to its aggregation and adopts the result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from thiefbench.attacks.base import Sampler
from thiefbench.attacks.exchange.base import ExchangeView, WeightAttack
from thiefbench.averaging.exchange import REFUSED, ExchangeRow, problem
from thiefbench.averaging.outer import NodeState, Outer
from thiefbench.averaging.probe import HeldOutProbe
from thiefbench.averaging.spec import AveragingSpec, local_rounds
from thiefbench.defenses.aggregation.base import Aggregate, Aggregation, AggregationView, SentVector
from thiefbench.engine.colluders import TEACHING_ITEMS
from thiefbench.engine.keys import generator, key
from thiefbench.engine.learning.cohort import Cohort, DivergedError
from thiefbench.engine.round_record import Clock, CompletionRow, RoundRecord
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.engine.views.attacker import AttackerPolicy


class AveragingSwarm(Swarm):
    """m nodes, f of them malicious, that train alone and exchange weights.

    Malicious nodes do not train. They know what the honest nodes are about to send, hold the mean of their slow
    weights, and send what the weight attack says.

    Args:
        averaging: how nodes exchange weights.
        rule: how an honest node joins what it receives; every node has a copy of its own.
        spec: the swarm's settings, without `sharing`.
        parts: the other arguments of `Swarm`. The attack is a `WeightAttack`; the defense is never asked.

    Attributes:
        exchanges: one row for every vector that an honest node received or should have received.

    Raises:
        SpecError: as `Swarm`; or the swarm cannot exchange weights, or the attack sends none.
    """

    def __init__(self, averaging: AveragingSpec, rule: Aggregation, spec: SwarmSpec, **parts: Any) -> None:
        averaging.check(spec)
        super().__init__(replace(spec, sharing=local_rounds(spec)), **parts)
        self.averaging, self.outer = averaging, Outer(averaging)
        self.exchanges: list[ExchangeRow] = []
        self._rules = [copy.deepcopy(rule) for _ in range(self.context.honest)]
        self._states = [_started(self._cohort(node)) for node in range(self.context.honest)]

    def round(self, number: int) -> RoundRecord:
        """Play round `number`, counted from 1, and the exchange after it if one is due."""
        record = super().round(number)
        if number % self.averaging.every:
            return record
        clock = Clock()
        with clock.phase("exchange"):
            self._exchange(number, record.rows)
        return replace(record, seconds=record.seconds | clock.seconds)

    def tensors(self) -> dict[str, torch.Tensor]:
        """What the outer steps keep, for a checkpoint beside the population's."""
        kept = {f"outer/{node}/slow": state.slow for node, state in enumerate(self._states)}
        return kept | {f"outer/{node}/momentum": state.momentum for node, state in enumerate(self._states)}

    def state(self) -> dict[str, Any]:
        """The rest, as JSON."""
        return {
            "rows": [row.as_data() for row in self.exchanges],
            "rules": [rule.state() for rule in self._rules],
        }

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Take back what `tensors` and `state` returned."""
        self._states = [
            NodeState(tensors[f"outer/{node}/slow"].clone(), tensors[f"outer/{node}/momentum"].clone())
            for node in range(self.context.honest)
        ]
        self.exchanges = [ExchangeRow.from_data(row) for row in state["rows"]]
        for rule, kept in zip(self._rules, state["rules"], strict=True):
            rule.restore(kept)

    @torch.no_grad()
    def _exchange(self, number: int, rows: Sequence[CompletionRow]) -> None:
        """Let every node send, and every honest node adopt an aggregate. All send before any adopts."""
        exchange, honest = number // self.averaging.every, range(self.context.honest)
        trained = [flat(self._cohort(node).masters) for node in honest]
        own = [self.outer.own(self._states[node], trained[node]) for node in honest]
        messages: list[object] = [self.outer.sent(own[node], self._states[node].slow) for node in honest]
        messages += self._malicious_messages(exchange, messages)
        partners = self._partners(exchange)
        adopted = []
        for node in honest:
            received = self._received(node, partners[node], messages, len(own[node]))
            aggregate = self._aggregated(exchange, node, own[node], received, trained[node], rows)
            adopted.append(self.outer.adopted(self._states[node], aggregate.vector))
            self._note(exchange, number, node, own[node], received, aggregate)
        for node, state in enumerate(adopted):
            if not bool(state.slow.isfinite().all()):
                raise DivergedError("the weights are not finite any more after an exchange; use a smaller outer_lr")
            self._states[node] = state
            self._adopt(node, state.slow)

    def _partners(self, exchange: int) -> list[list[int]]:
        """Whose messages every node reads, by node: all others', or one random partner's."""
        count = self.spec.nodes
        if not self.outer.pairs:
            return [[other for other in range(count) if other != node] for node in range(count)]
        order = generator(self.seed, "pairs", exchange).sample(range(count), count)
        partner = dict(zip(order[::2], order[1::2], strict=True))
        partner |= {second: first for first, second in partner.items()}
        return [[partner[node]] for node in range(count)]

    def _malicious_messages(self, exchange: int, honest: Sequence[object]) -> list[object]:
        """What the malicious nodes put on the wire, in their order; None where they send nothing."""
        context = self.context
        if not context.malicious:
            return []
        assert isinstance(context.attack, WeightAttack), "checked before the swarm is made"
        slow = torch.stack([state.slow for state in self._states]).mean(0)
        seen = torch.stack([self.outer.received(sent, slow) for sent in honest if isinstance(sent, torch.Tensor)])

        def moved(model: Sampler) -> torch.Tensor:
            assert isinstance(model, AttackerPolicy), "what `taught` returned"
            return self.outer.own(NodeState(slow, slow), flat(model.policy.weights()))

        first = context.malicious[0]
        items = context.items_for(first)
        items = generator(self.seed, "lessons", exchange).sample(items, min(TEACHING_ITEMS, len(items)))
        view = ExchangeView(
            exchange=exchange,
            senders=len(context.malicious),
            honest=seen,
            averaged=2 if self.outer.pairs else self.spec.nodes,
            rng=generator(self.seed, "exchange", exchange),
            lessons=context.views.recovery(exchange, first, items, self._cohort(0)),
            moved=moved,
        )
        send = context.attack.send if context.role == "attack" else context.attack.placebo_send
        with torch.enable_grad():  # an attack may train
            vectors = list(send(view))
        if len(vectors) != len(context.malicious):
            raise ValueError(
                f"the attack {context.attack.name} sent {len(vectors)} vectors for {len(context.malicious)} malicious "
                "nodes; send returns one for each, or None"
            )
        return [self._message(vector, slow, seen.shape[1]) for vector in vectors]

    def _message(self, vector: object, slow: torch.Tensor, size: int) -> object:
        """A malicious node's vector on the wire; what is no vector of the right shape travels as it is."""
        if not isinstance(vector, torch.Tensor) or tuple(vector.shape) != (size,):
            return vector
        return self.outer.sent(vector.detach(), slow)

    def _received(self, node: int, partners: Sequence[int], messages: Sequence[object], size: int) -> list[_Arrival]:
        """What a node receives, sender by sender: vectors, or why there is none."""
        arrivals = []
        for sender in partners:
            message = messages[sender]
            count = message.numel() * message.element_size() if isinstance(message, torch.Tensor) else 0
            wrong, vector = problem(message, size), None
            if not wrong:
                assert isinstance(message, torch.Tensor), "problem said so"
                vector = self.outer.received(message, self._states[node].slow)
                wrong = problem(vector, size)
            arrivals.append(_Arrival(sender, None if wrong else vector, wrong, count))
        return arrivals

    def _aggregated(
        self,
        exchange: int,
        node: int,
        own: torch.Tensor,
        received: Sequence[_Arrival],
        trained: torch.Tensor,
        rows: Sequence[CompletionRow],
    ) -> Aggregate:
        """A node's aggregate, with one verdict per sound vector in the order of `received`.

        Raises:
            ValueError: the aggregation did not return one.
        """
        sound = [arrival for arrival in received if arrival.vector is not None]
        order = generator(self.seed, "vectors", exchange, node).sample(range(len(sound)), len(sound))
        sent = [SentVector(self._pseudonym(sound[i].sender), _sound(sound[i])) for i in order]
        probe = HeldOutProbe(self.context, self.backend, self._cohort(node), node, exchange, rows, self.averaging)
        measured = partial(self._measured, node, trained)
        rule = self._rules[node]
        joined = rule.aggregate(
            AggregationView(
                exchange=exchange,
                own=own,
                vectors=tuple(sent),
                rng=generator(self.seed, "aggregation", exchange, node),
                reward=partial(measured, probe.reward),
                loss=partial(measured, probe.loss),
            )
        )
        if wrong := problem(joined.vector, len(own)):
            raise ValueError(f"the aggregation {rule.name} gave a vector that is {wrong}")
        if len(joined.verdicts) != len(sent):
            raise ValueError(
                f"the aggregation {rule.name} gave {len(joined.verdicts)} verdicts for {len(sent)} vectors; aggregate "
                "returns one per vector, in the view's order"
            )
        by_place = dict(zip(order, joined.verdicts, strict=True))
        return Aggregate(joined.vector, tuple(by_place[i] for i in range(len(sent))))

    def _measured(self, node: int, trained: torch.Tensor, measure: Callable[[], float], vector: torch.Tensor) -> float:
        """A measure of a node's model as it would be after adopting a vector; its weights are then put back."""
        self._adopt(node, self.outer.adopted(self._states[node], vector).slow)
        try:
            return measure()
        finally:
            self._adopt(node, trained)

    def _note(
        self,
        exchange: int,
        number: int,
        node: int,
        own: torch.Tensor,
        received: Sequence[_Arrival],
        aggregate: Aggregate,
    ) -> None:
        """Keep a row for every vector that a node received or should have received."""
        verdicts = iter(aggregate.verdicts)
        for arrival in received:
            verdict = None if arrival.vector is None else next(verdicts)
            self.exchanges.append(
                ExchangeRow(
                    exchange=exchange,
                    round=number,
                    receiver=node,
                    sender=arrival.sender,
                    malicious=arrival.sender in self.context.malicious,
                    action=REFUSED if verdict is None else verdict.action,
                    score=None if verdict is None else verdict.score,
                    reason=arrival.problem if verdict is None else verdict.reason,
                    length=None if arrival.vector is None else float(arrival.vector.double().norm()),
                    own_length=float(own.double().norm()),
                    bytes=arrival.bytes,
                )
            )

    def _adopt(self, node: int, weights: torch.Tensor) -> None:
        """Give a node other weights; its optimizer's moments stay."""
        cohort = self._cohort(node)
        cohort.take(shaped(weights, cohort.masters))

    def _cohort(self, node: int) -> Cohort:
        return self.population.of(node)

    def _pseudonym(self, node: int) -> str:
        return f"{key(self.seed, 'sender', node) & 0xFFFFFFFF:08x}"


@dataclass(frozen=True, eq=False)
class _Arrival:
    """What came from one sender: a vector, or why there is none.

    Attributes:
        sender: the node.
        vector: as the receiver reads it; None if it was refused.
        problem: why it was refused.
        bytes: what arrived.
    """

    sender: int
    vector: torch.Tensor | None
    problem: str
    bytes: int


def flat(weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """All weights in one float32 vector, in their order; a copy."""
    return torch.cat([weight.detach().reshape(-1).float() for weight in weights.values()])


def shaped(vector: torch.Tensor, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inverse of `flat`: views into the vector, by name."""
    parts = torch.split(vector, [weight.numel() for weight in like.values()])
    return {name: part.view(weight.shape) for (name, weight), part in zip(like.items(), parts, strict=True)}


def _started(cohort: Cohort) -> NodeState:
    weights = flat(cohort.masters)
    return NodeState(weights, torch.zeros_like(weights))


def _sound(arrival: _Arrival) -> torch.Tensor:
    assert arrival.vector is not None, "only sound vectors are joined"
    return arrival.vector
