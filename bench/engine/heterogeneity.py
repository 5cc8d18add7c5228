"""Settings of heterogeneous, delayed or unreliable swarms: frozen values, part of a cell's identity.

Each is off by default. Without them, a swarm is the paper's: one model, all nodes present, no delay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass
from statistics import NormalDist
from typing import Any, Final, Literal, get_args

from thiefbench.engine.keys import generator
from thiefbench.errors import UserError

STRICT: Final = {"extra": "forbid"}  # where a suite file is checked by pydantic, a misspelt field is an error
LATER: Final = {"later": True}
"""Marks a field that was added after suites were released: identities leave it out if it has its default."""

WITHIN: Final = 0.995
"""The share of lognormal delays between `least` and `rounds` (arXiv:2508.17850)."""


class SpecError(UserError, ValueError):
    """A swarm cannot have the given settings. One sentence for the user."""


def plain(value: Any) -> Any:
    """A spec as plain data for identities and fingerprints: `dataclasses.asdict`, except for fields marked `LATER`."""
    if is_dataclass(value):
        shown = [item for item in fields(value) if not item.metadata.get("later") or _differs(value, item)]
        return {item.name: plain(getattr(value, item.name)) for item in shown}
    if isinstance(value, (tuple, list)):
        return type(value)(plain(item) for item in value)
    return value


def _differs(value: Any, field: Any) -> bool:
    return bool(getattr(value, field.name) != field.default)


DelayKind = Literal["constant", "lognormal"]
Recovery = Literal["peer", "neighbours"]


@dataclass(frozen=True)
class NodeClass:
    """Nodes that start from one model.

    Attributes:
        model: a built-in model, a local directory or a name on the Hugging Face Hub.
        share: share of all nodes; the shares of a population add up to 1.
        domain: the domain of the items that these nodes choose in the vertical topology; empty for all items.
    """

    __pydantic_config__ = STRICT

    model: str
    share: float
    domain: str = ""

    def __post_init__(self) -> None:
        if not self.model:
            raise SpecError("a node class needs a model")
        if not 0 < self.share <= 1:
            raise SpecError(f"a node class's share must lie in (0, 1], got {self.share}")

    @property
    def label(self) -> str:
        """Its name in reports."""
        name = self.model.rstrip("/").rpartition("/")[2]
        return f"{name} on {self.domain}" if self.domain else name


def classes_of(population: tuple[NodeClass, ...], nodes: int) -> list[int]:
    """The class of every node: numbers follow the shares, and nodes are assigned to the classes in turn.

    Raises:
        SpecError: the shares do not add up to 1, or leave a class without a node.
    """
    if not population:
        return [0] * nodes
    if not math.isclose(sum(node_class.share for node_class in population), 1.0, abs_tol=1e-6):
        raise SpecError(
            f"the shares of a population add up to 1, got {sum(node_class.share for node_class in population):g}"
        )
    counts = [math.floor(node_class.share * nodes + 1e-9) for node_class in population]
    rest = sorted(range(len(counts)), key=lambda kind: (counts[kind] - population[kind].share * nodes, kind))
    for kind in rest[: nodes - sum(counts)]:
        counts[kind] += 1
    if 0 in counts:
        empty = population[counts.index(0)]
        raise SpecError(f"{nodes} nodes are too few for a share of {empty.share:g} of {empty.label}; add nodes")
    # The next node goes to the class that is furthest below its share: A, B, A, B for equal shares.
    dealt = [0] * len(counts)
    classes = []
    for number in range(1, nodes + 1):
        kind = max(range(len(counts)), key=lambda kind: (counts[kind] * number / nodes - dealt[kind], -kind))
        dealt[kind] += 1
        classes.append(kind)
    return classes


@dataclass(frozen=True)
class DelaySpec:
    """By how many rounds samplers are behind the learner; computed, not measured, so it is deterministic.

    A node's completions for round n are drawn from the weights before round n - delay; 0 is the synchronous swarm.

    Attributes:
        kind: "constant" (every node is `rounds` behind) or "lognormal" (drawn for every node and round, 99.5 % between
            `least` and `rounds`, as in arXiv:2508.17850, whose 60 and 1,920 seconds correspond to 1 and 32 rounds of
            one minute; larger delays count as `rounds`).
        rounds: see `kind`.
        least: see `kind`.
        limit: the staleness limit: a node whose weights would be older waits for newer ones; None for no limit.
    """

    __pydantic_config__ = STRICT

    kind: DelayKind = "constant"
    rounds: int = 0
    least: int = 1
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(DelayKind):
            raise SpecError(f"delay.kind must be {' or '.join(get_args(DelayKind))}, got {self.kind!r}")
        if self.rounds < 0:
            raise SpecError(f"delay.rounds must be at least 0, got {self.rounds}")
        if self.kind == "lognormal" and not 1 <= self.least <= self.rounds:
            raise SpecError(
                f"a lognormal delay lies between least and rounds, 1 <= least <= rounds; got {self.least} and "
                f"{self.rounds}"
            )
        if self.limit is not None and self.limit < 0:
            raise SpecError(f"delay.limit must be at least 0, got {self.limit}")

    @property
    def longest(self) -> int:
        """The longest delay that may occur."""
        return self.rounds if self.limit is None else min(self.rounds, self.limit)

    def lag(self, seed: int, number: int, node: int) -> int:
        """By how many rounds a node's weights are behind in a round; at most back to the start weights."""
        lag = self.rounds
        if self.kind == "lognormal":
            low, high = math.log(self.least), math.log(self.rounds)
            spread = (high - low) / (2 * NormalDist().inv_cdf((1 + WITHIN) / 2))
            drawn = generator(seed, "delay", number, node).gauss((low + high) / 2, spread)
            lag = round(math.exp(drawn))
        return min(lag, self.longest, number - 1)


@dataclass(frozen=True)
class ChurnSpec:
    """Honest nodes that crash and recover.

    Attributes:
        crashes: rounds in which one honest node, drawn by the seed, crashes before it samples.
        down: the number of rounds it is away.
        recovery: whose weights a returning node takes: of one "peer", drawn by the seed, or the average of all its
            "neighbours", weighted by the norms of their last gradients (CheckFree's method for pipeline stages,
            arXiv:2506.15461, applied to the nodes of a swarm). Both may include malicious nodes.
        tolerance: with a number, a returning node checks offered weights first: its own right answers' mean negative
            log-probability per token may be at most this share above that under the weights with which it crashed. If a
            peer does not pass, the next one is asked; if none passes, the node goes on with those weights. None adopts
            what is offered. See `thiefbench.engine.recovery`.
    """

    __pydantic_config__ = STRICT

    crashes: tuple[int, ...] = ()
    down: int = 5
    recovery: Recovery = "peer"
    tolerance: float | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        if self.tolerance is not None and not 0 <= self.tolerance < math.inf:
            raise SpecError(f"churn.tolerance must be at least 0 and finite, got {self.tolerance}")
        if self.recovery not in get_args(Recovery):
            raise SpecError(f"churn.recovery must be {' or '.join(get_args(Recovery))}, got {self.recovery!r}")
        if any(number < 1 for number in self.crashes):
            raise SpecError(f"churn.crashes are rounds, counted from 1, got {min(self.crashes)}")
        if self.down < 1:
            raise SpecError(f"churn.down must be at least 1 round, got {self.down}")

    def away(self, seed: int, honest: list[int], number: int) -> set[int]:
        """The honest nodes that are away in a round; one always stays."""
        return {node for node, since in self._crashed(seed, honest, number) if since + self.down > number}

    def back(self, seed: int, honest: list[int], number: int) -> list[int]:
        """The honest nodes that return in a round."""
        return [node for node, since in self._crashed(seed, honest, number) if since + self.down == number]

    def _crashed(self, seed: int, honest: list[int], number: int) -> list[tuple[int, int]]:
        """(node, round) of every crash up to a round."""
        crashed: list[tuple[int, int]] = []
        for crash in sorted(self.crashes):
            if crash > number:
                break
            away = {node for node, since in crashed if since + self.down > crash}
            here = [node for node in honest if node not in away]
            if len(here) > 1:
                crashed.append((generator(seed, "crash", crash).choice(here), crash))
        return crashed


@dataclass(frozen=True)
class SharingSpec:
    """Which rollouts a node learns from: its own and some of the others' (the sampling rule of arXiv:2509.08721).

    Groups stay with their senders (vertical topology). A node samples the others' groups uniformly from all offered
    groups, so a node that offers more has more weight.

    Attributes:
        local: I, own groups per round.
        external: J, groups of others per round; 0 means training alone.
        per_sender: the most groups per round that a node takes from one sender; None for no cap.
    """

    __pydantic_config__ = STRICT

    local: int = 4
    external: int = 4
    per_sender: int | None = None

    def __post_init__(self) -> None:
        if self.local < 1:  # otherwise a node that is left alone would have a round without a pool
            raise SpecError(f"sharing.local must be at least 1, got {self.local}")
        if self.external < 0:
            raise SpecError(f"sharing.external must be at least 0, got {self.external}")
        if self.per_sender is not None and self.per_sender < 1:
            raise SpecError(f"sharing.per_sender must be at least 1, got {self.per_sender}")

    def taken(self, seed: int, number: int, node: int, groups: dict[int, int]) -> set[int]:
        """The groups a node learns from in a round; fewer if not enough are offered.

        Args:
            seed, number, node: key the draw.
            groups: by group, the node that offered it.
        """
        rng = generator(seed, "sharing", number, node)
        own = [group for group, owner in sorted(groups.items()) if owner == node]
        others = [group for group, owner in sorted(groups.items()) if owner != node]
        taken = set(rng.sample(own, min(self.local, len(own))))
        counts: dict[int, int] = {}
        room = self.external
        for group in rng.sample(others, len(others)):
            owner = groups[group]
            if room and (self.per_sender is None or counts.get(owner, 0) < self.per_sender):
                counts[owner] = counts.get(owner, 0) + 1
                taken.add(group)
                room -= 1
        return taken
