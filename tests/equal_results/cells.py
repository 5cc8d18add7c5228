"""Small cells of every kind, and hashes of all that they leave: equal hashes mean results equal to the last bit.

Their models, task, attack and defense are those of the golden test, so nothing but the engine decides the hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import torch

from tests.bench.engine.golden.parts import LEARNER, SWARMS, swarm_of
from thiefbench import provenance
from thiefbench.engine.backends.local import LocalBackend
from thiefbench.engine.heterogeneity import DelaySpec, plain
from thiefbench.engine.round_record import RoundRecord
from thiefbench.suite.store.records import rows_table

Hashes = dict[str, str]

CELLS: Final[dict[str, dict[str, Any]]] = SWARMS | {
    "placebo": {"seed": 8, "role": "placebo", "evaluated": 4},
    "control": {"seed": 8, "role": "control", "evaluated": 4},
    "batches by node": {"seed": 5, "rounds": 2, "by_node": True, "evaluated": 4},
    "committed items": {"seed": 4, "topology": "vertical", "items": "committed", "rounds": 2, "evaluated": 0},
    "drawn items": {"seed": 4, "topology": "vertical", "items": "drawn", "rounds": 2, "evaluated": 0},
    "dr_grpo": {"seed": 6, "learner": replace(LEARNER, loss="dr_grpo", scale_rewards=False), "evaluated": 0},
    "dapo": {"seed": 6, "learner": replace(LEARNER, loss="dapo", epsilon_high=0.28), "evaluated": 0},
    **{
        f"late {loss}": {
            "seed": 2, "delay": DelaySpec(rounds=1), "logprobs": "reported", "evaluated": 0,
            "learner": replace(LEARNER, loss=loss, delta=4.0),
        }
        for loss in ("grpo", "dapo", "cispo", "gspo", "ftis", "gepo")
    },
}  # fmt: skip
"""By name, as in the golden test's `SWARMS`; with `by_node`, every node samples on its own."""

SURROUNDINGS: Final = ("torch", "transformers", "numpy", "capability", "processor_model")
"""What last bits depend on, as named in a record's provenance."""


def surroundings() -> str:
    """The versions and the processor in use: only results made with equal ones can be compared to the last bit."""
    here = provenance.provenance("cpu", 1)
    return ", ".join(f"{name} {here[name]}" for name in SURROUNDINGS)


def hashes_of(name: str) -> Hashes:
    """Play a cell on one thread and hash what it leaves, by what it is."""
    torch.set_num_threads(1)
    settings = dict(CELLS[name])
    rounds, evaluated = settings.pop("rounds", 3), settings.pop("evaluated", 8)
    backend = LocalBackend("node") if settings.pop("by_node", False) else None
    swarm, defense = swarm_of(**settings, backend=backend)
    records, seen = [], []
    for number in range(1, rounds + 1):
        records.append(swarm.round(number))
        seen.append(defense.told)
    evaluations = [swarm.evaluate(rounds, evaluated)] if evaluated else []
    return {
        "settings": _hash(plain(swarm.spec)),
        "completions": _hash([list(_lines(record)) for record in (*records, *evaluations)]),
        "what the defense sees": _hash(seen),
        "weights and optimizer": _hash_of_tensors(swarm.population.tensors()),
        "other state": _hash([swarm.population.state(), [record.grad_norm for record in records]]),
    }


def _lines(record: RoundRecord) -> Iterator[dict[str, Any]]:
    """The rows as stored, without columns that say nothing: a later column is empty where its feature is not used."""
    for line in rows_table(record.rows).to_pylist():
        yield {name: value for name, value in line.items() if value is not None}


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _hash_of_tensors(tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]
