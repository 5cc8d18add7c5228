"""Parts `agreement` and `medium`: swarms on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from rich.console import Console

from tests.benchmarks.attacks import EQUATION, PAPER, half
from tests.benchmarks.device.sizes import MEDIUM_SWARM_RATE, Sizes, device
from thiefbench import registry
from thiefbench.engine.learning.memory import keep_freed_memory
from thiefbench.progress import bar, watch
from thiefbench.suite.execution.runner import run_suite
from thiefbench.suite.scenario import CellSpec, Evaluation
from thiefbench.suite.store.records import Record, Store
from thiefbench.suite.suite_yaml import load_suite
from thiefbench.zoo.recipe import train

SCORES = ("asr", "start_reward", "clean_reward", "mean_length")
# Same weights and noise: only near-ties flip a token, and the rest of its completion with it.
MOST_DIFFERENT = 0.01
# From the first flipped token on, two runs are two samples of the same experiment.
TOLERANCES = {"asr": 0.10, "clean_reward": 0.05}


def measure_agreement(sizes: Sizes, out: Path) -> dict[str, Any]:
    """`smoke`'s undefended swarm on the processor and on the device; bfloat16 is told without a judgement."""
    cell = _cell(sizes)
    cells = {
        "processor, float32": replace(cell, device="cpu", threads=min(4, torch.get_num_threads())),
        f"{device()}, float32": replace(cell, device=device(), threads=1),
        f"{device()}, bfloat16": replace(cell, device=device(), dtype="bfloat16", threads=1),
    }
    store = Store(out / "agreement")
    records = _played(cells, store, "agreement")
    told: dict[str, Any] = {name: scores(record) for name, record in records.items()}
    ids = {name: first_round(store.cell(record.cell_id).read_rows()) for name, record in records.items()}
    reference = next(iter(cells))
    for name in list(cells)[1:]:
        moved = apart(told[reference], told[name]) | {"completions of round 1 that differ": differing(ids, name)}
        told[f"{name}, against the processor"] = moved
    float32 = told[f"{device()}, float32, against the processor"]
    return told | {"tolerances": TOLERANCES | {"round 1": MOST_DIFFERENT}, "agrees": agrees(float32)}


def apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """How much higher the second swarm's scores are."""
    return {name: other[name][0] - one[name][0] for name in SCORES}


def agrees(moved: Mapping[str, float]) -> bool:
    """Whether a swarm in float32 is within the tolerances of the processor's."""
    near = all(abs(moved[name]) <= most for name, most in TOLERANCES.items())
    return near and moved["completions of round 1 that differ"] <= MOST_DIFFERENT


def first_round(rows: pa.Table) -> list[list[int]]:
    """Token ids of the honest completions of round 1, in the store's order."""
    rows = rows.filter(pc.and_(pc.equal(rows["phase"], "train"), pc.equal(rows["round"], 1)))
    return rows.filter(pc.invert(rows["malicious"]))["ids"].to_pylist()


def differing(ids: Mapping[str, list[list[int]]], name: str) -> float:
    """The share of completions that are not those of the first swarm."""
    reference = next(iter(ids.values()))
    return sum(a != b for a, b in zip(reference, ids[name], strict=True)) / len(reference)


def measure_medium(sizes: Sizes, out: Path) -> dict[str, Any]:
    """Train the larger model, then play TEXT, MATH and no attack on it."""
    folder = out / sizes.medium.name
    losses: list[float] = []
    with bar(Console(), f"training {sizes.medium.name}") as shown:

        def progress(step: int, steps: int, loss: float) -> None:
            losses.append(loss)
            shown(step, steps)

        train(sizes.medium, folder, progress, device())
    cell = _cell(sizes, str(folder))
    upright = replace(cell, swarm=replace(cell.swarm, topology="vertical"))
    cells = {
        "TEXT": cell,
        "MATH": replace(upright, attack=registry.canonical("attack", half(EQUATION))),
        "no attack": replace(cell, role="control"),
    }
    records = _played(cells, Store(out / "medium"), "medium")
    last = losses[-100:]
    told = {"mean loss of its last 100 steps": sum(last) / len(last)}
    return told | {name: scores(record) for name, record in records.items()}


def scores(record: Record) -> dict[str, Any]:
    """A swarm's scores as [value, low, high], its outcome by round and its seconds.

    Raises:
        RuntimeError: the swarm failed.
    """
    if record.status != "ok":
        raise RuntimeError(f"the swarm failed: {record.error}")
    values = {name: [record.scores[name].value, record.scores[name].low, record.scores[name].high] for name in SCORES}
    curve = {str(point.round): point.value for point in record.curves["eval_asr"]}
    return values | {"asr by round": curve, "seconds": sum(record.seconds.values())}


def _cell(sizes: Sizes, model: str = "micro-math") -> CellSpec:
    """TEXT on `smoke`'s swarm, without a defense, on the device."""
    suite = load_suite("smoke")
    learner = suite.swarm.learner
    if model != "micro-math":
        learner = replace(learner, learning_rate=MEDIUM_SWARM_RATE)
    return CellSpec(
        task=suite.task,
        model=model,
        attack=registry.canonical("attack", PAPER),
        defense=registry.canonical("defense", "none"),
        role="attack",
        seed=0,
        swarm=replace(suite.swarm, learner=learner, prompts=sizes.swarm_prompts, group=sizes.swarm_group),
        rounds=sizes.rounds,
        evaluation=Evaluation(every=20, completions=min(512, sizes.completions), final=sizes.completions),
        device=device(),
        threads=1,
    )


def _played(cells: Mapping[str, CellSpec], store: Store, name: str) -> dict[str, Record]:
    """The record of every cell."""
    keep_freed_memory()
    suite = replace(load_suite("smoke"), name=name)
    distinct = list(dict.fromkeys(cells.values()))  # on a processor with one thread, two of `agreement` are the same
    workers = len(distinct) if torch.cuda.is_available() else 1  # one small swarm leaves a GPU idle most of the time
    with watch(Console()) as listener:
        records = run_suite(suite, distinct, store, listener, workers=workers, share=False)
    played = dict(zip(distinct, records, strict=True))
    return {name: played[cell] for name, cell in cells.items()}
