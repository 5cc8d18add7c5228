"""A model, a suite and a store that fit into a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import yaml

from thiefbench.engine.spec import SwarmSpec
from thiefbench.suite.results import Record, Store
from thiefbench.suite.runner import run_suite
from thiefbench.suite.scenario import CellSpec, Evaluation, Suite
from thiefbench.tasks.base import Item, Sampling, Task

PLUGINS = Path(__file__).with_name("plugins.py")
TASK = f"{PLUGINS}:Sums"
ATTACK = "text(phrase='All hail to the thief', position='start')"
SWARM = SwarmSpec(nodes=2, malicious=1, prompts=4, group=4, sampling=Sampling(max_new_tokens=32))

_FOLDER = TemporaryDirectory(prefix="thiefbench-tiny-")


@cache
def model() -> Path:
    """The directory of a Qwen2 model with random weights and a tokenizer of its own."""
    import torch

    from thiefbench.zoo import recipe
    from thiefbench.zoo.corpus import texts

    torch.set_num_threads(1)
    directory = Path(_FOLDER.name) / "model"
    shape = recipe.Recipe(vocabulary=640, hidden=32, layers=2, heads=2, feedforward=64)

    def few(*arguments: Any) -> Iterator[tuple[str, str]]:
        return islice(texts(*arguments), 200)

    with patch.object(recipe, "texts", few):
        tokenizer = recipe.train_tokenizer(shape)
    recipe.new_model(shape, tokenizer).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def suite(*defenses: str, **changes: Any) -> Suite:
    """A suite of a control and one attacked cell per defense, each taking well under a second."""
    fields: dict[str, Any] = {
        "name": "tiny", "version": 1, "task": TASK, "model": str(model()), "attacks": (ATTACK,), "swarm": SWARM,
        "defenses": defenses or ("none",), "rounds": 3, "evaluation": Evaluation(every=2, completions=16, final=16),
    }  # fmt: skip
    return Suite(**(fields | changes))


def suite_file(folder: Path, **changes: Any) -> Path:
    """The suite as a YAML file, with some fields changed; None takes a field out."""
    fields: dict[str, Any] = {
        "name": "tiny", "version": 1, "task": TASK, "model": str(model()), "attacks": [ATTACK], "rounds": 3,
        "evaluation": {"every": 2, "completions": 16, "final": 16},
        "swarm": {"nodes": 2, "malicious": 1, "prompts": 4, "group": 4, "sampling": {"max_new_tokens": 32}},
    }  # fmt: skip
    kept = {name: value for name, value in (fields | changes).items() if value is not None}
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(kept, sort_keys=False), encoding="utf-8")
    return path


def cells(of: Suite) -> list[CellSpec]:
    """The suite's cells on one CPU thread."""
    return of.cells("cpu", "float32", 1)


@dataclass
class Watcher:
    """A listener that remembers; `stop_after` rounds of all cells together it interrupts like Ctrl-C would."""

    stop_after: int | None = None
    missing: list[CellSpec] = field(default_factory=list)
    cached: int = 0
    rounds: int = 0
    ended: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def plan(self, missing: Sequence[CellSpec], cached: int) -> None:
        self.missing, self.cached = list(missing), cached

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        self.rounds += done > 0
        if self.stop_after is not None and self.rounds >= self.stop_after:
            raise KeyboardInterrupt

    def finished(self, spec: CellSpec, record: Record) -> None:
        self.ended.append(record)

    def note(self, message: str) -> None:
        self.notes.append(message)


def run(of: Suite, store: Path, watcher: Watcher | None = None, **options: Any) -> list[Record]:
    """Run the suite's cells in this process."""
    return run_suite(of, cells(of), Store(store), watcher or Watcher(), **options)


def outcome(record: Record) -> dict[str, Any]:
    """A record without what two equal runs may differ in: how long they took and where."""
    return record.model_dump(exclude={"seconds", "provenance"})


def command(*words: str, setup: str = "", **variables: str) -> subprocess.Popen[str]:
    """The command line in a process of its own, after the Python statements `setup`."""
    code = f"{setup}\nfrom thiefbench.cli import main\nmain()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | variables,
    )  # fmt: skip


def train_items(task: Task, count: int) -> list[Item]:
    """The first items of the train split."""
    return [Item.from_row(row) for row in islice(task.items("train"), count)]
