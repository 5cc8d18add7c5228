"""Frozen specs of cells and suites.

A *cell* is task x swarm x attack x defense x seed: the unit of execution, identity and resume. A *suite* is a named,
versioned, content-hashed set of cells. Suite files are read by `thiefbench.suite.suite_yaml`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, partial
from itertools import chain
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

from thiefbench import registry
from thiefbench.attacks.base import ThreatModel
from thiefbench.averaging.spec import AveragingSpec
from thiefbench.engine.heterogeneity import LATER, STRICT, SpecError, plain
from thiefbench.engine.spec import Batches, Role, SwarmSpec, check_range
from thiefbench.experts.spec import ExpertsSpec
from thiefbench.limits import MOST_CELLS, MOST_COMPLETIONS, MOST_ROUNDS, MOST_THREADS
from thiefbench.pipeline.spec import PipelineSpec


@dataclass(frozen=True)
class Evaluation:
    """When and how much honest models are evaluated on held-out items.

    Attributes:
        every: rounds between evaluations; there is one before the first round and one after the last.
        completions: number of completions at each evaluation except the last.
        final: number of completions at the last evaluation.
    """

    __pydantic_config__ = STRICT

    every: int = 10
    completions: int = 512
    final: int = 2048

    def __post_init__(self) -> None:
        for name in ("every", "completions", "final"):
            check_range(f"evaluation.{name}", getattr(self, name), 1, MOST_COMPLETIONS)

    def due(self, number: int, rounds: int) -> int:
        """Number of completions in the evaluation after round `number` of `rounds`, 0 being the start; 0 if there is
        none."""
        if number == rounds:
            return self.final
        return 0 if number % self.every else self.completions


@dataclass(frozen=True)
class CellSpec:
    """Everything a user decides about one cell; all of it is part of the cell's identity.

    Attributes:
        task, attack, defense: spec strings in canonical form.
        model: a built-in model, a local directory or a name on the Hugging Face Hub.
        role: "attack", "placebo" or "control".
        seed: determines all draws of the cell.
        swarm: the swarm's settings.
        rounds: number of rounds.
        evaluation: when honest models are evaluated.
        device, dtype, threads, batches: numerical settings that change last bits; threads matters only on CPU, and
            `batches` says which completions are sampled together (see `LocalBackend`).
        averaging: how nodes exchange weights; None where they exchange completions.
        pipeline: the stages of the one node; None where nodes are whole models.
        experts: how the classes of its population train and answer as experts; None where they are not experts.
    """

    task: str
    model: str
    attack: str
    defense: str
    role: Role
    seed: int
    swarm: SwarmSpec = field(default_factory=SwarmSpec)
    rounds: int = 60
    evaluation: Evaluation = field(default_factory=Evaluation)
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: int = 2
    batches: Batches = field(default="cohort", metadata=LATER)
    averaging: AveragingSpec | None = field(default=None, metadata=LATER)
    pipeline: PipelineSpec | None = field(default=None, metadata=LATER)
    experts: ExpertsSpec | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        check_range("threads", self.threads, 1, MOST_THREADS)

    @property
    def label(self) -> str:
        """A short name for progress lines and tables."""
        who = {"attack": self.attack, "placebo": f"placebo of {self.attack}", "control": "no attack"}[self.role]
        return f"{who} x {self.defense}, seed {self.seed}"

    @property
    def start(self) -> dict[str, Any]:
        """The fields on which the evaluation before the first round depends."""
        names = ("task", "model", "attack", "seed", "device", "dtype", "threads")
        drawn = {"sampling": plain(self.swarm.sampler), "completions": self.evaluation.completions}
        if self.swarm.mixed:  # the models that answer depend on which nodes are present and honest
            drawn |= {"swarm": plain(self.swarm), "role": self.role}
        if self.averaging:
            drawn |= {"averaging": plain(self.averaging), "swarm": plain(self.swarm), "role": self.role}
        if self.experts:  # their swarms are mixed
            drawn |= {"experts": plain(self.experts)}
        return {name: getattr(self, name) for name in names} | drawn

    @property
    def models(self) -> list[str]:
        """The models that its nodes start from, class by class."""
        return [each.model for each in self.swarm.population] or [self.model]

    @property
    def asks(self) -> bool:
        """Whether its attacker queries the defense, also in the placebo."""
        return self.role != "control" and _granted(self.attack, "queries")

    @property
    def rehearses(self) -> bool:
        """Whether its attack plays on copies of the swarm before round 1, also in the placebo."""
        return self.role != "control" and _granted(self.attack, "rehearsal")

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for hashing and records."""
        fields: dict[str, Any] = plain(self)
        return fields

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CellSpec:
        """The inverse of `as_dict`, also after conversion to JSON and back.

        Raises:
            ValidationError: pydantic's; for example, an older version wrote cells with other fields.
        """
        return _CELL.validate_python(data)


def _granted(attack: str, what: Literal["queries", "rehearsal"]) -> bool:
    """Whether an attack is granted queries or a rehearsal; no if it is no longer installed, or not trusted."""
    try:
        return bool(getattr(_threat(attack), what))
    except registry.SpecStringError:
        return False


@cache  # only results are cached, because an attack may become trusted later
def _threat(attack: str) -> ThreatModel:
    threat: ThreatModel = registry.make("attack", attack).threat
    return threat


def heading(part: str, attack: str) -> str:
    """An attack's heading in a run: its spec string, after the part's name if there are several parts."""
    return f"{part}: {attack}" if part else attack


_OF_CELLS = ("model", "swarm", "rounds", "evaluation", "averaging", "pipeline", "experts")
"""Fields that the cells of a part share with it."""


@dataclass(frozen=True)
class Part:
    """Cells of a suite that share task, model and swarm.

    Attributes:
        name: its name in reports; empty in a suite of one part.
        task, model: the task and start model of every cell.
        attacks: spec strings.
        swarm, rounds, evaluation: of every cell.
        averaging: how nodes exchange weights; None where they exchange completions.
        pipeline: the stages of the one node; None where nodes are whole models.
        experts: how the classes of its population train and answer as experts; None where they are not experts.
    """

    __pydantic_config__ = STRICT

    name: str
    task: str
    model: str
    attacks: tuple[str, ...]
    swarm: SwarmSpec = field(default_factory=SwarmSpec)
    rounds: int = 60
    evaluation: Evaluation = field(default_factory=Evaluation)
    averaging: AveragingSpec | None = field(default=None, metadata=LATER)
    pipeline: PipelineSpec | None = field(default=None, metadata=LATER)
    experts: ExpertsSpec | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        if self.averaging and self.pipeline:
            raise SpecError("a swarm exchanges weights or is a pipeline; leave out averaging or pipeline")
        if self.averaging:
            self.averaging.check(self.swarm)
        if self.pipeline:
            self.pipeline.check(self.swarm)
        if self.experts and self.averaging:
            raise SpecError("experts train apart and exchange no weights; leave out averaging or experts")
        if self.experts:
            self.experts.check(self.swarm)
        for name in ("task", "model", "attacks"):
            if not getattr(self, name):
                raise SpecError(f"{name} must name at least one")
        check_range("rounds", self.rounds, 1, MOST_ROUNDS)

    @cached_property
    def _canonical(self) -> tuple[str, tuple[str, ...]]:
        """Task and attacks in canonical form."""
        attacks = tuple(registry.canonical("attack", attack) for attack in self.attacks)
        return registry.canonical("task", self.task), attacks

    def holds(self, cell: CellSpec) -> bool:
        """Whether a cell belongs to this part."""
        task, attacks = self._canonical
        same = all(getattr(self, name) == getattr(cell, name) for name in _OF_CELLS)
        return same and cell.task == task and cell.attack in attacks

    @property
    def shared(self) -> dict[str, Any]:
        """Fields that all of its cells have from it, beside the task."""
        return {name: getattr(self, name) for name in _OF_CELLS}

    def cells(
        self, seed: int, defenses: Sequence[str], placebo: bool, utility: bool, numerics: dict[str, Any]
    ) -> Iterator[CellSpec]:
        """Its cells at one seed, attack by attack; see `Suite.cells`. `defenses` are in canonical form."""
        task, attacks = self._canonical
        shared = self.shared | numerics
        for number, attack in enumerate(attacks):
            cell = partial(CellSpec, task=task, attack=attack, seed=seed, **shared)
            yield cell(role="control", defense="none")
            if placebo:
                yield cell(role="placebo", defense="none")
            yield from (cell(role="attack", defense=defense) for defense in defenses)
            if utility and number == 0:  # without an attacker, the attack only affects evaluations
                yield from (cell(role="control", defense=defense) for defense in defenses)


@dataclass(frozen=True)
class RankingRules:
    """The limits of a ranking, fixed with the suite.

    Attributes:
        margin: how much utility a defense may cost, as a share of the control's gain in clean reward: compared with 1
            without an attack, and with the oracle under every attack. The first suites allowed 0.1 too.
        least_harm: below this mean undefended harm, harm prevented is not defined. A final and two smaller evaluations
            of `standard-v1` leave a standard deviation of 0.02 in the harm at one seed and 0.01 in the mean of five;
            ten of these keep the bias of a ratio below a tenth of its standard error (Cochran, Sampling Techniques,
            section 6.8: a coefficient of variation below 0.1).
        good: a seed counts as good if at least this share of its undefended harm is prevented.
    """

    __pydantic_config__ = STRICT

    margin: float = 0.1
    least_harm: float = 0.1
    good: float = 0.5

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < 1:
                raise SpecError(f"ranking.{name} must lie between 0 and 1, got {value}")


@dataclass(frozen=True)
class Suite:
    """A named set of cells.

    Attributes:
        name, version, about: its name, its version and its purpose.
        task, model, attacks, swarm, rounds, evaluation, averaging, pipeline, experts: of its cells, see `Part`. In a
            suite of several parts they are the defaults for the parts in YAML, and only `parts` says what runs.
        parts: for different swarms and tasks; empty if there is only one part.
        defenses: spec strings; every defense meets every attack.
        placebo: also run every attack's placebo, undefended.
        utility: also run every defense without an attack, once for each part.
        replayed: defenses scored on the recorded undefended pools, without training.
        recorded: rounds whose weights the undefended attacked and placebo cells keep, so that defenses which ask the
            policy can be replayed there; not part of a cell's identity or the suite's fingerprint.
        seeds: the seeds; there is one set of cells for each.
        ranking: the limits of its ranking; part of the fingerprint if they are not the defaults.
        superseded: one sentence that names the suite to use instead, and the reason; empty for a current suite. Not
            part of the fingerprint: the cells stay what they are.
        modified: what was overridden; empty for an unmodified suite.
    """

    __pydantic_config__ = STRICT

    name: str
    version: int
    task: str = ""
    model: str = ""
    attacks: tuple[str, ...] = ()
    about: str = ""
    parts: tuple[Part, ...] = ()
    defenses: tuple[str, ...] = ("none",)
    placebo: bool = False
    utility: bool = False
    replayed: tuple[str, ...] = ()
    recorded: tuple[int, ...] = ()
    seeds: tuple[int, ...] = (0,)
    swarm: SwarmSpec = field(default_factory=SwarmSpec)
    rounds: int = 60
    evaluation: Evaluation = field(default_factory=Evaluation)
    modified: tuple[str, ...] = ()
    ranking: RankingRules = field(default=RankingRules(), metadata=LATER)
    averaging: AveragingSpec | None = field(default=None, metadata=LATER)
    pipeline: PipelineSpec | None = field(default=None, metadata=LATER)
    experts: ExpertsSpec | None = field(default=None, metadata=LATER)
    superseded: str = field(default="", metadata=LATER)

    def __post_init__(self) -> None:
        for name in ("defenses", "seeds"):
            if not getattr(self, name):
                raise SpecError(f"{name} must name at least one")
        attacks = sum(len(part.attacks) for part in self.scenes)
        # For each seed and attack: the control, the placebo, and every defense with and without the attack.
        if (cells := len(self.seeds) * attacks * (2 + 2 * len(self.defenses))) > MOST_CELLS:
            raise SpecError(
                f"{len(self.seeds):,} seeds, {attacks:,} attacks and {len(self.defenses):,} defenses make up to "
                f"{cells:,} cells, and at most {MOST_CELLS:,} are allowed"
            )
        outside = [number for number in self.recorded if not 1 <= number <= self.longest]
        if outside:
            raise SpecError(f"recorded must name rounds from 1 to {self.longest}, got {outside[0]}")
        if (self.replayed or self.recorded) and any(part.averaging for part in self.scenes):
            raise SpecError("where weights are exchanged, no pools can be replayed; leave out replayed and recorded")
        if (self.replayed or self.recorded) and any(part.pipeline for part in self.scenes):
            raise SpecError("a pipeline has no pools of strangers to replay; leave out replayed and recorded")
        if (self.replayed or self.recorded) and any(part.experts for part in self.scenes):
            raise SpecError("the pools of experts cannot be replayed yet; leave out replayed and recorded")
        names = [part.name for part in self.parts]
        if not all(names) or len(set(names)) < len(names):
            raise SpecError("every part needs a name of its own")

    @property
    def scenes(self) -> tuple[Part, ...]:
        """Its parts, or the single part given by its own fields."""
        if self.parts:
            return self.parts
        own = {each.name: getattr(self, each.name) for each in fields(Part) if each.name != "name"}
        return (Part(name="", **own),)

    @property
    def longest(self) -> int:
        """The rounds of its longest cells."""
        return max(part.rounds for part in self.scenes)

    @property
    def title(self) -> str:
        """Name, version and modifications; every output shows it."""
        changed = f", modified: {', '.join(self.modified)}" if self.modified else ""
        return f"{self.name}-v{self.version}{changed}"

    def fingerprint(self) -> str:
        """SHA-256 of the suite's content that can change a result."""
        content = {name: value for name, value in plain(self).items() if name not in _WITHOUT_EFFECT}
        if self.parts:  # their defaults do not matter
            content = {name: value for name, value in content.items() if name not in STARTED_FROM}
        else:
            del content["parts"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def recorded_in(self, cell: CellSpec) -> tuple[int, ...]:
        """The rounds whose weights a cell keeps."""
        recorded = tuple(number for number in self.recorded if number <= cell.rounds)
        return recorded if cell.defense == "none" and cell.role != "control" else ()

    def part_of(self, cell: CellSpec) -> str:
        """The name of the part that a cell belongs to; empty in a suite of one part."""
        return next((part.name for part in self.parts if part.holds(cell)), "")

    def title_of(self, cell: CellSpec) -> str:
        """The heading of a cell's comparison."""
        return heading(self.part_of(cell), cell.attack)

    def override(self, label: str, **changes: Any) -> Suite:
        """The suite with some fields changed, in every part that has them; its title names the change.

        A mapping changes fields inside a field, as in ``swarm={"topology": "vertical"}``.
        """
        inner = {name: value for name, value in changes.items() if name in STARTED_FROM}
        parts = tuple(_changed(part, inner) for part in self.parts)
        return replace(_changed(self, changes), parts=parts, modified=(*self.modified, label))

    def cells(
        self, device: str, dtype: Literal["float32", "bfloat16"], threads: int, batches: Batches = "cohort"
    ) -> list[CellSpec]:
        """All cells: per seed, part and attack the control, the placebo if asked for, then every defense.

        Raises:
            registry.SpecStringError: a spec string is malformed or names nothing.
        """
        numerics = {"device": device, "dtype": dtype, "threads": threads, "batches": batches}
        defenses = [registry.canonical("defense", defense) for defense in self.defenses]
        parts = self.scenes
        cells = (
            part.cells(seed, defenses, self.placebo, self.utility, numerics) for seed in self.seeds for part in parts
        )
        return list(dict.fromkeys(chain.from_iterable(cells)))


_WITHOUT_EFFECT = ("recorded", "about", "superseded")
"""Fields of a suite that change no result."""

_Of = TypeVar("_Of", "Part", "Suite")


def _changed(of: _Of, changes: Mapping[str, Any]) -> _Of:
    """A copy with changed fields; a mapping changes only some fields inside a field."""
    new = {name: replace(getattr(of, name), **v) if isinstance(v, Mapping) else v for name, v in changes.items()}
    return replace(of, **new)


STARTED_FROM = {each.name for each in fields(Part)} - {"name"}
"""Fields that parts in YAML take from their suite unless they set them."""

_CELL = TypeAdapter(CellSpec)
