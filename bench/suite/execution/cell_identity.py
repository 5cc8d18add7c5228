"""What identifies a cell: everything that can change its outcome, and the record of one that could not finish."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from thiefbench import provenance, registry, user_frames
from thiefbench.attacks.base import Attack
from thiefbench.defenses.aggregation.honest_mean import HonestMean
from thiefbench.defenses.anchors import Oracle
from thiefbench.defenses.base import Defense
from thiefbench.defenses.stages.honest_stages import HonestStages
from thiefbench.engine_revision import engine_revision
from thiefbench.errors import UserError
from thiefbench.judges import judge_identity
from thiefbench.package_meaning import averaging_digest, experts_digest, package_digest, pipeline_digest
from thiefbench.reward_judges import reward_judge_identity
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import ROWS_VERSION, Record, identify
from thiefbench.tasks.sandbox import SandboxUnavailable
from thiefbench.torch_settings import torch_settings_kept
from thiefbench.zoo.models import weights_fingerprint

_R = TypeVar("_R")
_MOST_THREADS_LOOKED_FOR = 16


class CellFactory(Protocol):
    """Who makes a cell's defense and its attack, and names their sources."""

    def make(self, spec: str) -> Defense:
        """The defense of a spec string, fresh."""

    def source_hash(self, spec: str) -> str:
        """SHA-256 over what defines it, as `registry.source_hash` has it."""

    def make_attack(self, spec: str) -> Attack:
        """The attack of a spec string, fresh."""

    def attack_hash(self, spec: str) -> str:
        """As `source_hash`, of an attack."""


class RegistryFactory:
    """The registry, which loads the classes of defense and attack in this process. What they set in torch is undone."""

    @torch_settings_kept()
    def make(self, spec: str) -> Defense:
        """As `registry.make`."""
        defense: Defense = registry.make("defense", spec)
        return defense

    @torch_settings_kept()
    def source_hash(self, spec: str) -> str:
        """As `registry.source_hash`."""
        return registry.source_hash("defense", spec)

    @torch_settings_kept()
    def make_attack(self, spec: str) -> Attack:
        """As `registry.make`."""
        attack: Attack = registry.make("attack", spec)
        return attack

    @torch_settings_kept()
    def attack_hash(self, spec: str) -> str:
        """As `registry.source_hash`."""
        return registry.source_hash("attack", spec)


class Identities:
    """Identities of the cells of one run: what several cells share, such as a task's data, is hashed once.

    A later edit to a file is not seen, so there is a new one for every run.

    Args:
        maker: makes their defenses and attacks.
    """

    def __init__(self, maker: CellFactory = RegistryFactory()) -> None:  # noqa: B008  (it holds nothing)
        self._maker = maker
        self._known: dict[tuple[str, str], Any] = {}

    def of(self, spec: CellSpec) -> dict[str, Any]:
        """Everything that can change a cell's outcome, as plain data."""
        task, attack, defense = spec.task, spec.attack, spec.defense
        content = {
            "cell": spec.as_dict(),
            "task_data": self._once("task_data", task, lambda: registry.make("task", task).fingerprint()),
            "weights": self._weights_of(spec),
            "sources": {
                "task": self._once("task", task, lambda: registry.source_hash("task", task)),
                "attack": self._once("attack", attack, lambda: self._maker.attack_hash(attack)),
                "defense": self._once("defense", defense, lambda: self._maker.source_hash(defense)),
            },
            "engine_revision": self._once("revision", "engine", engine_revision),
            "schema_version": ROWS_VERSION,
        }
        if spec.averaging:
            content["averaging_revision"] = self._once("revision", "averaging", lambda: averaging_digest().hex()[:16])
            if isinstance(self._maker.make(defense), Oracle):  # whose own source inspects completions
                content["oracle_revision"] = package_digest(HonestMean).hex()[:16]
        if spec.pipeline:
            content["pipeline_revision"] = self._once("revision", "pipeline", lambda: pipeline_digest().hex()[:16])
            if isinstance(self._maker.make(defense), Oracle):
                content["oracle_revision"] = package_digest(HonestStages).hex()[:16]
        if spec.experts:
            content["experts_revision"] = self._once("revision", "experts", lambda: experts_digest().hex()[:16])
        judge = self._once("judge", defense, lambda: self._judge_of(defense))
        asked = f"{spec.swarm.reward} {spec.swarm.reward_judge}"
        rewarding = self._once("reward judge", asked, lambda: reward_judge_identity(spec.swarm))
        judges = {"judge": judge, "reward_judge": rewarding}
        return content | {name: dict(one) for name, one in judges.items() if one is not None}

    def _once(self, what: str, spec: str, compute: Callable[[], _R]) -> _R:
        if (what, spec) not in self._known:
            self._known[what, spec] = compute()
        known: _R = self._known[what, spec]
        return known

    def _judge_of(self, defense: str) -> dict[str, str] | None:
        judge = self._maker.make(defense).judge
        return None if judge is None else judge_identity(judge)

    def _weights_of(self, spec: CellSpec) -> str | dict[str, str]:
        """The fingerprint of the start weights; of a population's, by model."""

        def weights_of(model: str) -> str:
            return self._once("weights", model, lambda: weights_fingerprint(model))

        return {model: weights_of(model) for model in spec.models} if spec.swarm.population else weights_of(spec.model)


def identity(spec: CellSpec, maker: CellFactory = RegistryFactory()) -> dict[str, Any]:  # noqa: B008  (it holds nothing)
    """Everything that can change a cell's outcome, as plain data; see `Identities` for several cells."""
    return Identities(maker).of(spec)


def other_threads(what: dict[str, Any], exists: Callable[[str], bool]) -> int | None:
    """The number of threads with which a store has a cell that it lacks as it is asked for; None without such a cell.

    Args:
        what: the cell's identity.
        exists: whether the store has a cell of an id.
    """
    cell = what["cell"]
    others = (
        (n for n in range(1, _MOST_THREADS_LOOKED_FOR + 1) if n != cell["threads"]) if cell["device"] == "cpu" else ()
    )
    return next((n for n in others if exists(identify(what | {"cell": cell | {"threads": n}}))), None)


def failed_record(spec: CellSpec, what: dict[str, Any], error: BaseException) -> Record:
    """The record of a cell that could not finish: its error, and no score. `what` is the cell's `identity`."""
    return Record(
        **identified(what),
        status="error",
        error=user_frames.described(error),
        provenance=provenance.provenance(spec.device, spec.threads)
        | {"finished": provenance.now()}
        | user_frames.kept(error),
    )


def ends_run(error: BaseException) -> bool:
    """Whether an error meets every cell: a mistake of the user, or a disk that cannot be written.

    Any other is recorded as the cell's failure. So is a missing sandbox: cells that need none can still be run.
    """
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)
    return isinstance(error, UserError) and not isinstance(error, SandboxUnavailable)


def identified(what: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record that say which cell it is."""
    return {
        "cell_id": identify(what),
        "cell": what["cell"] | {"topology": what["cell"]["swarm"]["topology"]},
        "identity": {name: value for name, value in what.items() if name != "cell"},
    }
