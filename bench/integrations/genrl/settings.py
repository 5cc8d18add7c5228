"""The settings of a live swarm on one machine, as plain data that crosses to its processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from thiefbench import registry
from thiefbench.engine.heterogeneity import SharingSpec
from thiefbench.engine.spec import LearnerSpec, Role, SpecError, SwarmSpec
from thiefbench.suite.scenario import CellSpec, Evaluation, Suite
from thiefbench.tasks.base import Sampling


@dataclass(frozen=True)
class LiveSwarm:
    """Processes on this machine, one per peer, that play one GenRL game over a DHT on the loopback interface.

    Attributes:
        attack: a spec string.
        defense: a spec string; every honest peer runs a copy of its own.
        task: a spec string.
        model: a built-in model or a local directory.
        role: "attack"; "placebo" (malicious peers send clean completions); "control" (every peer is honest).
        nodes: m, peers.
        malicious: f, the last f of them.
        local: I, own items per peer and round.
        external: J, groups of others that a peer learns from per round.
        group: G, completions per item.
        rounds: number of rounds.
        learning_rate: of GenRL's Adam.
        minibatch: completions per step of Adam; 0 makes one step per round.
        padding: where peers pad completions when they learn: "left", as GenRL does, between prompt and completion, or
            "right".
        epsilon, epsilon_high: GenRL's clipping range of the ratio.
        sampling: how peers sample.
        evaluation: when and how much every honest peer answers held-out items.
        seed: draws the payload, the items and all noise.
        timeout: seconds that a peer waits for the others' messages, and that messages stay in the DHT. Peers that have
            ended are not waited for.
        threads: of every process.
    """

    attack: str = "varied(attack='text', gibberish=0.5)"
    defense: str = "none"
    task: str = "gsm_micro"
    model: str = "micro-math"
    role: Role = "attack"
    nodes: int = 4
    malicious: int = 1
    local: int = 4
    external: int = 4
    group: int = 8
    rounds: int = 20
    learning_rate: float = 3e-4
    minibatch: int = 0
    padding: Literal["left", "right"] = "left"
    epsilon: float = 0.2
    epsilon_high: float = 0.28
    sampling: Sampling = field(default_factory=lambda: Sampling(max_new_tokens=96))
    evaluation: Evaluation = field(default_factory=lambda: Evaluation(every=5, completions=128, final=256))
    seed: int = 0
    timeout: float = 600.0
    threads: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.malicious < self.nodes:
            raise SpecError(f"malicious must lie between 0 and nodes - 1 = {self.nodes - 1}, got {self.malicious}")
        if self.role not in get_args(Role):
            raise SpecError(f"there is no role {self.role!r}; it is {', '.join(get_args(Role))}")
        if self.group < 2:
            raise SpecError("group must be at least 2: an advantage is relative to the group")
        for name in ("local", "rounds", "threads"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.padding not in ("left", "right"):
            raise SpecError(f"padding must be left or right, got {self.padding!r}")
        if self.external < 0:
            raise SpecError(f"external must be at least 0, got {self.external}")

    @property
    def honest(self) -> int:
        """How many peers are honest; they are the first by number."""
        return self.nodes if self.role == "control" else self.nodes - self.malicious

    def as_json(self) -> str:
        """For `from_json` in another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LiveSwarm:
        """The inverse of `as_json`."""
        data: dict[str, Any] = json.loads(text)
        return cls(**data | {"sampling": Sampling(**data["sampling"]), "evaluation": Evaluation(**data["evaluation"])})

    def cell(self) -> CellSpec:
        """The cell of `thiefbench run` that is closest: the same task, model, items, group, sharing and seed.

        Raises:
            SpecError, SpecStringError: the settings contradict each other, or a spec string names nothing.
        """
        swarm = SwarmSpec(
            topology="vertical",
            nodes=self.nodes,
            malicious=self.malicious,
            prompts=self.nodes * self.local,
            group=self.group,
            sampling=self.sampling,
            learner=replace(
                LearnerSpec(), loss="dapo", learning_rate=self.learning_rate, beta2=0.999, epsilon=self.epsilon,
                epsilon_high=self.epsilon_high,
            ),
            seeds="announced",
            sharing=SharingSpec(self.local, self.external),
        )  # fmt: skip
        return CellSpec(
            task=registry.canonical("task", self.task),
            model=self.model,
            attack=registry.canonical("attack", self.attack),
            defense=registry.canonical("defense", self.defense),
            role=self.role,
            seed=self.seed,
            swarm=swarm,
            rounds=self.rounds,
            evaluation=self.evaluation,
            threads=self.threads,
        )

    def suite(self) -> Suite:
        """A suite of its cell alone, by which a report shows it; swarms of equal settings are shown together.

        Raises:
            SpecError, SpecStringError: as `cell`.
        """
        cell = self.cell()
        steps = f"-minibatch-{self.minibatch}" if self.minibatch else ""
        padding = "-padding-right" if self.padding == "right" else ""
        return Suite(
            name=f"genrl{steps}{padding}",
            version=1,
            about="Live GenRL swarms: a process per peer, over a DHT on one machine.",
            task=cell.task,
            model=cell.model,
            attacks=(cell.attack,),
            defenses=(cell.defense,),
            placebo=True,
            utility=True,
            seeds=(cell.seed,),
            swarm=cell.swarm,
            rounds=cell.rounds,
            evaluation=cell.evaluation,
        )
