"""One swarm over a process group: every rank is a node, with its own policy, optimizer and defense.

A rank samples what its node owes, all-gathers offers, and checks, rewards, inspects and updates by itself. Honest
offers are gathered first, because an attack that queries the defense sees them. Every colluder computes the submissions
of all colluders, which are the same on every rank, and sends its own.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from thiefbench.engine.answer_keys import with_answer_keys, with_checked_keys
from thiefbench.engine.backends.local import LocalBackend
from thiefbench.engine.backends.messages import (
    MessageError,
    NodeMessage,
    items_message,
    offers_message,
    read_items,
    read_offers,
)
from thiefbench.engine.backends.process_group import ProcessGroup
from thiefbench.engine.colluders import choose_items
from thiefbench.engine.context import SwarmContext, items_of
from thiefbench.engine.exchange import arrived
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.round_plan import MaliciousWork, RoundPlan
from thiefbench.engine.spec import SpecError, SwarmSpec
from thiefbench.engine.topology import Assignment, PoolPosition
from thiefbench.engine.transport import Offer, Received
from thiefbench.tasks.base import Completion, Item

# Of a tensor's digest: elements that are widened to 64 bits at once.
_BLOCK = 1 << 22


class DriftError(RuntimeError):
    """A rank's weights differ from the others'."""


def check_distributable(spec: SwarmSpec, size: int) -> None:
    """Check that `size` ranks can play a swarm.

    Raises:
        SpecError: it cannot.
    """
    if spec.mixed:
        raise SpecError(
            "under torchrun a swarm is homogeneous and synchronous; write the suite without population, logprobs, "
            "delay, churn and sharing, or run it without torchrun"
        )
    if spec.nodes != size:
        raise SpecError(
            f"torchrun has one rank for every node: this swarm has {spec.nodes} nodes and {size} ranks were started; "
            f"write --nproc-per-node {spec.nodes}, or on several machines as many in all"
        )


class RankBackend:
    """Plays one node of a swarm in this process, and receives messages from the others (a `RoundBackend`).

    Args:
        ranks: the process group; rank i is node i, so that the last f are malicious.
    """

    cohort_class = Cohort
    context: SwarmContext

    def __init__(self, ranks: ProcessGroup) -> None:
        self.ranks, self.node = ranks, ranks.rank
        self._local = LocalBackend("node")
        self._digest = (0, "")  # of the weights before a round: its number, and the digest

    def attach(self, context: SwarmContext) -> None:
        """Take the swarm's parts.

        Raises:
            SpecError: there are not as many ranks as nodes, or the swarm is not homogeneous.
        """
        check_distributable(context.spec, self.ranks.size)
        self.context = context
        self._local.attach(context)

    def items(self, number: int, assignments: Sequence[Assignment]) -> list[Item]:
        """Items are drawn, except for those that malicious nodes say they picked."""
        choices: dict[int, list[Item] | None] = {}

        def choose(node: int, count: int) -> list[Item] | None:
            if not choices:  # all malicious nodes answer equally many, and all ranks come here at the same point
                choices.update(self._gather_choices(number, count))
            return choices[node]

        return self.context.assign_items(number, assignments, choose)

    def honest_work(self, plan: RoundPlan, assignments: Sequence[Assignment]) -> list[Offer]:
        """The offers of all honest ranks; this rank samples its own."""
        offers = self._local.honest_work(
            plan, [assignment for assignment in assignments if assignment.node == self.node]
        )
        messages = self._gather_offers(plan, assignments, MaliciousWork(offers))
        return [offer for message in messages for offer in message.offers]

    def malicious_work(
        self, plan: RoundPlan, assignments: Sequence[Assignment], honest: Sequence[Offer]
    ) -> MaliciousWork:
        """The offers of all malicious ranks; if this rank is malicious, it runs the attack."""
        if not assignments:
            return MaliciousWork()
        work = MaliciousWork()
        if self.node in self.context.malicious:
            work = self._local.malicious_work(plan, assignments, honest)
        messages = self._gather_offers(plan, assignments, work)
        return MaliciousWork(
            [offer for message in messages for offer in message.offers],
            set().union(*(message.payload for message in messages)),
        )

    def receive(
        self, plan: RoundPlan, offers: Sequence[Offer], known: Mapping[int, Received] | None = None
    ) -> list[Received]:
        """The offers after this node's checks; proofs were sent along with them."""
        sent = plan.in_order(offers)
        received = arrived(self.context.population, sent, known)
        if self.context.spec.truth == "public":
            return received
        return with_checked_keys(self.context.task, plan.items, sent, received)

    def rewards(self, items: Sequence[Item], completions: Sequence[Completion]) -> list[float]:
        """The task's rewards; every rank computes them."""
        return self._local.rewards(items, completions)

    def answers(self, phase: str, items: Sequence[Item], first: int, cohorts: Sequence[Cohort]) -> list[Completion]:
        """Only this rank's model answers."""
        return self._local.answers(phase, items, first, cohorts)

    def check_weights(self, number: int) -> None:
        """Check that all ranks have the same weights after the last round, `number`.

        Raises:
            DriftError: a rank's weights differ.
        """
        self._gather(number + 1, [], [], set(), f"after round {number}")

    def _gather_choices(self, number: int, count: int) -> dict[int, list[Item] | None]:
        """By malicious node, the items that it says it picked; None, so that they are drawn, if it says nothing sound.

        Raises:
            SpecError: this node picked another number of items than it answers.
        """
        chosen: list[Item] = []
        malicious = self.context.malicious
        if self.node in malicious:
            chosen = choose_items(self.context, number, self.node, count)
            if len(chosen) != count:
                raise SpecError(f"a malicious node chose {len(chosen)} items, and it answers {count} a round")
        messages = self.ranks.gather(items_message(number, [item.id for item in chosen]), f"in round {number}")
        by_id = {item.id: item for item in items_of(self.context.task, "train")}
        return {node: _picked(messages[node], number, count, by_id) for node in malicious}

    def _gather_offers(
        self, plan: RoundPlan, assignments: Sequence[Assignment], work: MaliciousWork
    ) -> list[NodeMessage]:
        """What every rank sends for the given assignments; of this rank's work, only its own slots."""
        own = self._local.with_proofs(plan, [offer for offer in work.offers if offer.node == self.node])
        if self.context.spec.truth == "sender":
            own = with_answer_keys(plan.items, own)
        return self._gather(plan.number, assignments, own, work.payload, f"in round {plan.number}")

    def _gather(
        self,
        number: int,
        assignments: Sequence[Assignment],
        offers: Sequence[Offer],
        payload: set[PoolPosition],
        where: str,
    ) -> list[NodeMessage]:
        """What every rank's message says of what its node owes.

        Raises:
            DriftError: a rank holds other weights than the rest.
        """
        spec = self.context.spec
        if self._digest[0] != number:
            self._digest = (number, weights_digest(self.context.population.cohorts[0].policy.weights()))
        keyed = spec.truth == "sender"
        message = offers_message(number, self._digest[1], offers, payload, spec.sampling.max_new_tokens, keyed)
        gathered = self.ranks.gather(message, where)
        owed: dict[int, list[Assignment]] = {}
        for assignment in assignments:
            owed.setdefault(assignment.node, []).append(assignment)
        messages = [read_offers(data, number, owed.get(rank, []), spec) for rank, data in enumerate(gathered)]
        _check_same([message.weights for message in messages], number - 1)
        return messages


def weights_digest(weights: Mapping[str, torch.Tensor]) -> str:
    """32 hex digits that differ, except by chance, if any bit of any tensor differs.

    For every tensor, the sum of its bits read as integers and the sum weighted by position are taken modulo 2^64, on
    its device: integer sums do not depend on the order, and only two numbers leave the device.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(weights.items()):
        flat = tensor.detach().contiguous().flatten()
        bits = flat.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.dtype.itemsize])
        totals = torch.zeros(2, dtype=torch.int64, device=flat.device)
        for start in range(0, len(bits), _BLOCK):
            block = bits[start : start + _BLOCK].long()
            places = torch.arange(start + 1, start + 1 + len(block), device=flat.device)
            totals += torch.stack([block.sum(), (block * places).sum()])
        digest.update(f"{name} {tuple(tensor.shape)} {totals.tolist()}\n".encode())
    return digest.hexdigest()


def _check_same(digests: Sequence[str], number: int) -> None:
    """Raise DriftError where readable digests after round `number` differ; most of them are right, or rank 0's."""
    counts = Counter(digest for digest in digests if digest)
    if len(counts) < 2:
        return
    right = max(counts, key=lambda digest: (counts[digest], digest == digests[0]))
    drifted = ", ".join(str(rank) for rank, digest in enumerate(digests) if digest and digest != right)
    raise DriftError(
        f"rank {drifted} holds other weights than the rest after round {number}; start all ranks with the same "
        "versions on machines of one kind"
    )


def _picked(data: bytes | None, number: int, count: int, by_id: Mapping[str, Item]) -> list[Item] | None:
    try:
        return [by_id[item_id] for item_id in read_items(data, number, count)]
    except (MessageError, KeyError):
        return None
