"""What identifies a cell: everything that can change its outcome, and the record of one that could not finish."""

from __future__ import annotations

from typing import Any, Protocol

from thiefbench import provenance, registry, user_frames
from thiefbench.defenses.base import Defense
from thiefbench.engine_revision import engine_revision
from thiefbench.judges import judge_identity
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import ROWS_VERSION, Record, identify
from thiefbench.zoo.models import weights_fingerprint


class DefenseFactory(Protocol):
    """Who makes a cell's defense and names its source."""

    def make(self, spec: str) -> Defense:
        """The defense of a spec string, fresh."""

    def source_hash(self, spec: str) -> str:
        """SHA-256 over what defines it, as `registry.source_hash` has it."""


class RegistryFactory:
    """The registry, which loads the defense's class in this process."""

    def make(self, spec: str) -> Defense:
        """As `registry.make`."""
        defense: Defense = registry.make("defense", spec)
        return defense

    def source_hash(self, spec: str) -> str:
        """As `registry.source_hash`."""
        return registry.source_hash("defense", spec)


def identity(spec: CellSpec, maker: DefenseFactory = RegistryFactory()) -> dict[str, Any]:  # noqa: B008  (it holds nothing)
    """Everything that can change a cell's outcome, as plain data."""
    sources = {kind: registry.source_hash(kind, getattr(spec, kind)) for kind in ("task", "attack")}
    content = {
        "cell": spec.as_dict(),
        "task_data": registry.make("task", spec.task).fingerprint(),
        "weights": _weights_of(spec),
        "sources": sources | {"defense": maker.source_hash(spec.defense)},
        "engine_revision": engine_revision(),
        "schema_version": ROWS_VERSION,
    }
    if (judge := maker.make(spec.defense).judge) is not None:
        content["judge"] = judge_identity(judge)
    return content


def _weights_of(spec: CellSpec) -> str | dict[str, str]:
    """The fingerprint of the start weights; of a population's, by model."""
    if not spec.swarm.population:
        return weights_fingerprint(spec.model)
    return {model: weights_fingerprint(model) for model in spec.models}


def failed_record(spec: CellSpec, what: dict[str, Any], error: Exception) -> Record:
    """The record of a cell that could not finish: its error, and no score. `what` is the cell's `identity`."""
    return Record(
        **identified(what),
        status="error",
        error=f"{type(error).__name__}: {error}{user_frames.where(error)}",
        provenance=provenance.provenance(spec.device, spec.threads)
        | {"finished": provenance.now()}
        | user_frames.kept(error),
    )


def identified(what: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record that say which cell it is."""
    return {
        "cell_id": identify(what),
        "cell": what["cell"] | {"topology": what["cell"]["swarm"]["topology"]},
        "identity": {name: value for name, value in what.items() if name != "cell"},
    }
