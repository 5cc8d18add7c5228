"""One swarm over a process group: every rank is a node, with its own policy, optimizer and defense.

A rank samples what its node owes, all-gathers offers, and checks, rewards, inspects and updates by itself. Honest
offers are gathered first, as an attack that queries the defense sees them. Colluders compute together: each makes all
their submissions, which is the same computation everywhere, and sends its own.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from thiefbench.engine.backends.messages import (
    MessageError,
    NodeMessage,
    items_message,
    offers_message,
    read_items,
    read_offers,
)
from thiefbench.engine.backends.process_group import ProcessGroup
from thiefbench.engine.exchange import arrived
from thiefbench.engine.spec import SpecError, SwarmSpec
from thiefbench.engine.swarm import RoundPlan, Swarm, items_of
from thiefbench.engine.topology import Duty
from thiefbench.engine.transport import Offer, Received
from thiefbench.tasks.base import Item

# Of a tensor's digest: elements that are widened to 64 bits at once.
_BLOCK = 1 << 22


class DriftError(RuntimeError):
    """A rank holds other weights than the rest."""


def check_distributable(spec: SwarmSpec, size: int) -> None:
    """See that a swarm can be played by `size` ranks.

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


class DistributedSwarm(Swarm):
    """A swarm of which this process is one node.

    Args:
        exchange: the ranks; rank i is node i, so that the last f are malicious.
        args, options: as for `Swarm`; `batches` is always "node".

    Raises:
        SpecError: as `Swarm`, and where there are not as many ranks as nodes, or the swarm is not homogeneous.
    """

    def __init__(self, exchange: ProcessGroup, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"batches": "node"})
        check_distributable(self.spec, exchange.size)
        self.exchange, self.node = exchange, exchange.rank
        self._choices: tuple[int, dict[int, list[Item] | None]] = (0, {})
        self._digest = (0, "")

    def seal(self, number: int) -> None:
        """See that all ranks hold the same weights after the last round, `number`.

        Raises:
            DriftError: a rank does not.
        """
        self._exchanged(number + 1, [], [], set(), f"after round {number}")

    def _choice(self, number: int, node: int, count: int) -> Sequence[Item] | None:
        """What a malicious node says that it picked; None, so that its items are drawn, where it says nothing sound."""
        if self._choices[0] != number:
            mine = (super()._choice(number, self.node, count) or []) if self.node in self._malicious else []
            if self.node in self._malicious and len(mine) != count:
                raise SpecError(f"a malicious node chose {len(mine)} items, and it answers {count} a round")
            message = items_message(number, [item.id for item in mine])
            told = self.exchange.gather(message, f"in round {number}")
            known = {item.id: item for item in items_of(self.task, "train")}
            self._choices = (number, {at: _picked(told[at], number, count, known) for at in self._malicious})
        return self._choices[1][node]

    def _sent_by_honest(self, asked: RoundPlan, owed: Sequence[Duty]) -> list[Offer]:
        made = self._honest_offers(asked, [duty for duty in owed if duty.node == self.node])
        sent = self._exchanged(asked.number, owed, self._attested(asked, made), set(), f"in round {asked.number}")
        return [offer for each in sent for offer in each.offers]

    def _sent_by_malicious(
        self, asked: RoundPlan, owed: Sequence[Duty], honest: Sequence[Offer]
    ) -> tuple[list[Offer], set[tuple[int, int]]]:
        if not owed:
            return [], set()
        made: list[Offer] = []
        payload: set[tuple[int, int]] = set()
        if self.node in self._malicious:
            made, payload = self._malicious_offers(asked, owed, honest)
            made = self._attested(asked, [offer for offer in made if offer.node == self.node])
        sent = self._exchanged(asked.number, owed, made, payload, f"in round {asked.number}")
        return [offer for each in sent for offer in each.offers], set().union(*(each.payload for each in sent))

    def _received(self, asked: RoundPlan, offers: Iterable[Offer]) -> list[Received]:
        return arrived(self.population, asked.in_order(offers))

    @property
    def _malicious(self) -> range:
        return range(self.honest, self.spec.nodes)

    def _exchanged(
        self, number: int, owed: Sequence[Duty], made: Sequence[Offer], payload: set[tuple[int, int]], where: str
    ) -> list[NodeMessage]:
        """What every rank's message says of what its node owes.

        Raises:
            DriftError: a rank holds other weights than the rest.
        """
        limit = self.spec.sampling.max_new_tokens
        if self._digest[0] != number:
            self._digest = (number, weights_digest(self.policy.weights()))
        message = offers_message(number, self._digest[1], made, payload, limit)
        told = self.exchange.gather(message, where)
        due: dict[int, list[Duty]] = {}
        for duty in owed:
            due.setdefault(duty.node, []).append(duty)
        sent = [read_offers(data, number, rank, due.get(rank, []), self.spec) for rank, data in enumerate(told)]
        _check_same([each.weights for each in sent], number - 1)
        return sent


def weights_digest(weights: Mapping[str, torch.Tensor]) -> str:
    """32 hex digits that differ, up to chance, where any bit of any tensor does.

    Of every tensor's bits, read as integers, the sum and the sum weighted by place are taken modulo 2^64, on the device
    where it lies: integers add up to the same in whatever order, and only two numbers leave the device.
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


def _picked(data: bytes | None, number: int, count: int, known: Mapping[str, Item]) -> list[Item] | None:
    try:
        return [known[item_id] for item_id in read_items(data, number, count)]
    except (MessageError, KeyError):
        return None
