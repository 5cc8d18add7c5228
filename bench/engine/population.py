"""The nodes present in a round and their weights: cohorts, delay, crashes and recovery."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from thiefbench.defenses.base import Defense
from thiefbench.engine.keys import generator
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import SpecError, SwarmSpec
from thiefbench.engine.topology import Assignment

HandOver = Callable[[int], Policy | None]
"""The model that a malicious node gives to a node that recovers from it; None for honest weights."""
Passes = Callable[[int, Policy, Policy], bool]
"""Whether a node (number, its model as it was when it crashed) may adopt an offered model."""


_AWAY = "away"


class Population:
    """The cohorts of a swarm.

    Honest nodes with equal weights are one cohort: all nodes of a class, or every node alone if nodes choose the groups
    that they learn from. Malicious nodes hold the weights of the first learning cohort of their class.

    Args:
        spec: the swarm.
        policies: the start weights of every class, in order; the population modifies them.
        defense: the defense; every cohort except the first gets a copy.
        honest: how many nodes are honest; they are the first by number.
        seed: determines delays, crashes and recoveries.
        cohort_class: the class of cohorts.

    Raises:
        SpecError: the numbers of policies and classes differ, or a class has no honest node.
    """

    def __init__(
        self,
        spec: SwarmSpec,
        policies: Sequence[Policy],
        defense: Defense,
        honest: int,
        seed: int,
        cohort_class: type[Cohort] = Cohort,
    ) -> None:
        classes = max(1, len(spec.population))
        if len(policies) != classes:
            raise SpecError(f"a population of {classes} classes needs {classes} models, got {len(policies)}")
        self.spec, self.honest, self.seed, self._cohort_class = spec, honest, seed, cohort_class
        self.classes = spec.classes
        self._fresh = copy.deepcopy(defense) if classes > 1 or spec.sharing or spec.churn else defense
        self.cohorts: list[Cohort] = []
        self._left: dict[int, Cohort] = {}  # which cohort a node that is away belonged to
        self._kept: dict[int, Policy] = {}  # the model of a node that is away, if it checks what it is offered
        for kind, policy in enumerate(policies):
            nodes = [node for node in range(honest) if self.classes[node] == kind]
            if not nodes:
                label = spec.population[kind].label if spec.population else "the model"
                raise SpecError(f"no honest node is left for {label}; add nodes, or make fewer of them malicious")
            for members in [[node] for node in nodes] if spec.sharing else [nodes]:
                own_policy = policy if members[0] == nodes[0] else copy.deepcopy(policy)
                self._add(own_policy, kind, members, copy.deepcopy(self._fresh) if self.cohorts else defense)
        self.done(0)

    def of(self, node: int) -> Cohort:
        """The cohort whose weights a node holds."""
        for cohort in self.cohorts:
            if node in cohort.nodes:
                return cohort
        return self.first(self.classes[node])

    def first(self, kind: int) -> Cohort:
        """The first cohort of a class that has nodes, or the very first cohort if all nodes of the class are away."""
        of_class = [cohort for cohort in self.cohorts if cohort.kind == kind]
        return next((cohort for cohort in of_class if cohort.nodes), of_class[0])

    def learning(self) -> list[Cohort]:
        """The cohorts that have nodes."""
        return [cohort for cohort in self.cohorts if cohort.nodes]

    def away(self, number: int) -> set[int]:
        """The honest nodes that are away in a round."""
        churn = self.spec.churn
        return churn.away(self.seed, list(range(self.honest)), number) if churn else set()

    def present(self, number: int, owed: Sequence[Assignment]) -> list[Assignment]:
        """The assignments of the nodes that are present in a round."""
        away = self.away(number)
        return [assignment for assignment in owed if assignment.node not in away]

    def held_by(self, cohort: Cohort, number: int, owed: Sequence[Assignment]) -> list[int]:
        """Indices of the assignments that a cohort learns from in a round: all, or some if nodes choose groups."""
        if self.spec.sharing is None:
            return list(range(len(owed)))
        (node,) = cohort.nodes
        groups = {assignment.group: assignment.node for assignment in owed}
        taken = self.spec.sharing.taken(self.seed, number, node, groups)
        return [i for i, assignment in enumerate(owed) if assignment.group in taken]

    def label(self, cohort: Cohort) -> str:
        """The label of a cohort's nodes in reports; empty if all nodes are equal and always present."""
        if self.spec.population:
            return self.spec.population[cohort.kind].label
        return "all nodes" if self.spec.mixed else ""

    def turns(self, first: int, count: int) -> list[Cohort]:
        """The cohorts that answer completions `first` to `first + count - 1` of an evaluation, in turn by node."""
        nodes = sorted((node, cohort.number) for cohort in self.cohorts for node in cohort.nodes)
        return [self.cohorts[nodes[i % len(nodes)][1]] for i in range(first, first + count)]

    def by_weights(self, number: int, owed: Iterable[Assignment]) -> dict[tuple[Cohort, int], list[Assignment]]:
        """Assignments of a round by the cohort and the version of its weights that they are sampled from."""
        assignments: dict[tuple[Cohort, int], list[Assignment]] = {}
        known: dict[int, tuple[Cohort, int]] = {}
        for assignment in owed:
            if assignment.node not in known:
                known[assignment.node] = self._weights_of(assignment.node, number)
            assignments.setdefault(known[assignment.node], []).append(assignment)
        return assignments

    def version(self, cohort: Cohort, claimed: int | None, number: int) -> int:
        """The version that a sender claims, or the current one if that version is unknown."""
        return claimed if claimed is not None and claimed in cohort.past else number - 1

    def begin(self, number: int, hand_over: HandOver, passes: Passes | None = None) -> None:
        """Apply the crashes and recoveries at the beginning of a round.

        Args:
            number: the round's.
            hand_over: asked for the models of malicious peers.
            passes: the check of offered models; needed where `ChurnSpec.tolerance` is set.
        """
        churn = self.spec.churn
        if churn is None:
            return
        away = self.away(number)
        for cohort in self.cohorts:
            if churn.tolerance is not None:
                self._kept |= {node: copy.deepcopy(cohort.policy) for node in sorted(cohort.nodes & away)}
            self._left |= dict.fromkeys(cohort.nodes & away, cohort)
            cohort.nodes -= away
        for node in churn.back(self.seed, list(range(self.honest)), number):
            if node not in away:
                self._recover(node, number, hand_over, passes)

    def done(self, number: int) -> None:
        """Keep the weights that delayed samplers will need after a round's update."""
        if self.spec.delay and self.spec.delay.longest:
            for cohort in self.cohorts:
                cohort.keep(number, number - self.spec.delay.longest)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights and optimizer moments of all cohorts, for a checkpoint."""
        tensors: dict[str, torch.Tensor] = {}
        for cohort in self.cohorts:
            tensors |= {f"{cohort.number}/{name}": tensor for name, tensor in cohort.state().items()}
            for version, weights in cohort.past.items():
                tensors |= {f"{cohort.number}/past/{version}/{name}": tensor for name, tensor in weights.items()}
        for node, policy in self._kept.items():
            tensors |= {f"{_AWAY}/{node}/{name}": weight.detach() for name, weight in policy.weights().items()}
        return tensors

    def state(self) -> list[dict[str, Any]]:
        """The other state of every cohort for a checkpoint, as JSON."""
        return [
            {
                "kind": cohort.kind,
                "nodes": sorted(cohort.nodes),
                "left": sorted(node for node, left in self._left.items() if left is cohort),
                "grad_norm": cohort.grad_norm,
                "defense": cohort.defense.state(),
            }
            for cohort in self.cohorts
        ]

    def restore(self, tensors: Mapping[str, torch.Tensor], states: Sequence[Mapping[str, Any]]) -> None:
        """Restore what `tensors` and `state` returned."""
        for number, state in enumerate(states):
            if number == len(self.cohorts):
                policy = copy.deepcopy(self.first(state["kind"]).policy)
                self._add(policy, state["kind"], (), copy.deepcopy(self._fresh))
            cohort = self.cohorts[number]
            cohort.nodes, cohort.grad_norm = set(state["nodes"]), state["grad_norm"]
            self._left |= dict.fromkeys(state["left"], cohort)
            cohort.defense.restore(state["defense"])
            own_tensors = {
                name.partition("/")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{number}/")
            }
            cohort.restore({name: tensor for name, tensor in own_tensors.items() if not name.startswith("past/")})
            cohort.past = {}
            for name, tensor in own_tensors.items():
                if name.startswith("past/"):
                    _, version, weight = name.split("/", 2)
                    cohort.past.setdefault(int(version), {})[weight] = tensor
        self._kept = {}
        for name, tensor in tensors.items():
            if name.startswith(f"{_AWAY}/"):
                _, node, weight = name.split("/", 2)
                if int(node) not in self._kept:
                    self._kept[int(node)] = copy.deepcopy(self.first(self.classes[int(node)]).policy)
                with torch.no_grad():
                    self._kept[int(node)].weights()[weight].copy_(tensor)

    def _weights_of(self, node: int, number: int) -> tuple[Cohort, int]:
        cohort, newest = self.of(node), number - 1
        if self.spec.delay is None or node >= self.honest:
            return cohort, newest
        version = newest - self.spec.delay.lag(self.seed, number, node)
        return cohort, max(version, min(cohort.past, default=newest))

    def _recover(self, node: int, number: int, hand_over: HandOver, passes: Passes | None) -> None:
        """Give a returning node the weights of a peer or of its neighbours, or its own if it is alone or none pass."""
        assert self.spec.churn is not None
        kind, before, own = self.classes[node], self._left.pop(node), self._kept.pop(node, None)
        present = {n for cohort in self.cohorts for n in cohort.nodes} | set(range(self.honest, self.spec.nodes))
        peers = [n for n in sorted(present) if self.classes[n] == kind]
        one = self.spec.churn.recovery == "peer"
        if one and peers:
            rng = generator(self.seed, "recover", number, node)
            peers = [rng.choice(peers)] if own is None else rng.sample(peers, len(peers))
        shares: dict[Cohort | int, float] = {}  # whose weights, and how much they count
        foreign: dict[int, Policy] = {}
        for peer in peers:
            cohort = self.of(peer)
            policy = hand_over(peer) if peer >= self.honest else None
            if own is not None:
                assert passes is not None, "who sets a tolerance checks"
                if not passes(node, own, policy or cohort.policy):
                    continue
            if policy is not None:
                foreign[peer] = policy
            donor: Cohort | int = cohort if policy is None else peer
            shares[donor] = shares.get(donor, 0.0) + max(cohort.grad_norm, 1e-12)
            if one:
                break
        if not shares and own is not None and peers:
            foreign[node], shares[node] = own, 1.0
        if not shares:
            before.nodes.add(node)
            return
        if not foreign and len(shares) == 1 and self.spec.sharing is None:
            (donor,) = shares
            assert isinstance(donor, Cohort), "no weights but honest ones"
            donor.nodes.add(node)
            return
        total = sum(shares.values())
        mixed: dict[str, torch.Tensor] = {}
        for donor, share in shares.items():
            policy = foreign[donor] if isinstance(donor, int) else donor.policy
            for name, weight in policy.weights().items():
                part = weight.detach().double() * (share / total)
                mixed[name] = mixed[name] + part if name in mixed else part
        recovered = self._add(copy.deepcopy(self.first(kind).policy), kind, (node,), copy.deepcopy(self._fresh))
        recovered.take(mixed)
        if self.spec.delay and self.spec.delay.longest:
            recovered.keep(number - 1, number - 1)

    def _add(self, policy: Policy, kind: int, nodes: Iterable[int], defense: Defense) -> Cohort:
        new = self._cohort_class(policy, self.spec, defense, nodes, kind, len(self.cohorts))
        if new.learns:  # what a KL term compares with is where the class started, whenever the cohort came to be
            new.start = next((cohort.start for cohort in self.cohorts if cohort.kind == kind), new.start)
        self.cohorts.append(new)
        return new
