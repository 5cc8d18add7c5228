"""A model, a suite and a store that fit into a test."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
import yaml

from thiefbench.engine.spec import SwarmSpec
from thiefbench.suite.estimates.eta import MeasuredCell, RunOutline
from thiefbench.suite.execution.cell_identity import identity
from thiefbench.suite.execution.runner import run_suite
from thiefbench.suite.scenario import CellSpec, Evaluation, Suite
from thiefbench.suite.store.records import CellDir, Record, Store, identify
from thiefbench.tasks.base import Sampling

PLUGINS = Path(__file__).with_name("plugins.py")
REHEARSES = f"{PLUGINS.with_name('rehearsing.py')}:Rehearses"
TASK = f"{PLUGINS}:Sums"
ATTACK = "text(phrase='All hail to the thief', position='start')"
SWARM = SwarmSpec(nodes=2, malicious=1, prompts=4, group=4, sampling=Sampling(max_new_tokens=20))

_FOLDER = TemporaryDirectory(prefix="thiefbench-tiny-")


@cache
def model(layers: int = 2) -> Path:
    """The directory of a Qwen2 model with random weights and a tokenizer of its own."""
    import torch

    from thiefbench.zoo import recipe
    from thiefbench.zoo.corpus import MathCorpus

    class Few(MathCorpus):
        def texts(self, seed: int) -> Iterator[tuple[str, str]]:
            return islice(super().texts(seed), 200)

    torch.set_num_threads(1)
    directory = Path(_FOLDER.name) / f"model-{layers}"
    shape = recipe.Recipe(corpus=Few(), vocabulary=640, hidden=32, layers=layers, heads=2, feedforward=64)
    tokenizer = recipe.train_tokenizer(shape)
    recipe.new_model(shape, tokenizer).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def unloadable_model(folder: Path) -> Path:
    """A copy of the model that transformers does not know."""
    for path in model().iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"qwen2"', '"no such model"'))
    return folder


@dataclass(frozen=True)
class Attacked(Suite):
    """A suite whose control is left out."""

    def cells(self, device: str, dtype: Literal["float32", "bfloat16"], threads: int) -> list[CellSpec]:
        return [cell for cell in super().cells(device, dtype, threads) if cell.role == "attack"]


def suite(*defenses: str, kind: type[Suite] = Suite, **changes: Any) -> Suite:
    """A suite of a control and one attacked cell per defense, each taking well under a second."""
    fields: dict[str, Any] = {
        "name": "tiny", "version": 1, "task": TASK, "model": str(model()), "attacks": (ATTACK,), "swarm": SWARM,
        "defenses": defenses or ("none",), "rounds": 3, "evaluation": Evaluation(every=2, completions=16, final=16),
    }  # fmt: skip
    return kind(**(fields | changes))


def suite_file(folder: Path, **changes: Any) -> Path:
    """The suite as a YAML file, with some fields changed; None takes a field out."""
    fields: dict[str, Any] = {
        "name": "tiny", "version": 1, "task": TASK, "model": str(model()), "attacks": [ATTACK], "rounds": 3,
        "evaluation": {"every": 2, "completions": 16, "final": 16},
        "swarm": {"nodes": 2, "malicious": 1, "prompts": 4, "group": 4, "sampling": {"max_new_tokens": 20}},
    }  # fmt: skip
    kept = {name: value for name, value in (fields | changes).items() if value is not None}
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(kept, sort_keys=False), encoding="utf-8")
    return path


def cells(of: Suite) -> list[CellSpec]:
    """The suite's cells on one CPU thread."""
    return of.cells("cpu", "float32", 1)


def cell(of: Suite, role: str = "attack") -> CellSpec:
    """The suite's first cell in a role."""
    return next(spec for spec in cells(of) if spec.role == role)


def stored(of: Suite, store: Path, table: str) -> list[bytes]:
    """What the cells of a suite have stored, beside their records: completions, and another table."""
    folders = [Store(store).cell(identify(identity(spec))).path for spec in cells(of)]
    return [(folder / name).read_bytes() for folder in folders for name in ("completions.parquet", table)]


def opened_cell(of: Suite, store: Path) -> tuple[CellSpec, Record, CellDir]:
    """The one cell of a suite that ran without an error."""
    (spec,) = cells(of)
    directory = Store(store).cell(identify(identity(spec)))
    record = directory.read()
    assert record is not None
    assert record.status == "ok", record.error
    return spec, record, directory


def stopped_and_resumed(of: Suite, folder: Path, times: int = 2) -> None:
    """Run a suite of one cell whole, and again with stops; both leave the same. Every round must be a checkpoint."""
    run(of, folder / "whole")
    for _ in range(times):
        with pytest.raises(KeyboardInterrupt):
            run(of, folder / "parts", Watcher(stop_after=1))
    (again,) = run(of, folder / "parts")
    assert again.provenance["ended"] == "resumed"
    same(of, folder / "parts", folder / "whole")


def whole_and_stopped(of: Suite, folder: Path, table: str) -> None:
    """Run a suite of several cells whole, and again with stops at several places; both leave the same bytes."""
    run(of, folder / "whole")
    stops = 0
    for stop_after in (3, 2, 4, 100):
        try:
            run(of, folder / "stopped", Watcher(stop_after))
        except KeyboardInterrupt:
            stops += 1
    assert stops >= 2
    same(of, folder / "whole", folder / "stopped")
    assert stored(of, folder / "whole", table) == stored(of, folder / "stopped", table)


def cut(path: Path) -> None:
    """Damage a file: its end is missing."""
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path) -> None:
    """Damage a file: one bit in its middle is another."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@dataclass
class Watcher:
    """A listener that remembers; `stop_after` rounds of all cells together it interrupts like Ctrl-C would."""

    stop_after: int | None = None
    missing: list[CellSpec] = field(default_factory=list)
    cached: int = 0
    rounds: int = 0
    ended: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    begun: set[CellSpec] = field(default_factory=set)
    measured: list[MeasuredCell] = field(default_factory=list)

    def plan(self, plan: RunOutline) -> None:
        self.title, self.missing, self.cached = plan.title, list(plan.missing), plan.cached
        self.unfinished, self.measured = dict(plan.begun), list(plan.measured)

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        self.rounds += spec in self.begun  # the first call says where the cell begins
        self.begun.add(spec)
        if self.stop_after is not None and self.rounds >= self.stop_after:
            raise KeyboardInterrupt

    def finished(self, spec: CellSpec, record: Record) -> None:
        self.ended.append(record)

    def note(self, message: str) -> None:
        self.notes.append(message)


def run(of: Suite, store: Path, watcher: Watcher | None = None, **options: Any) -> list[Record]:
    """Run the suite's cells in this process."""
    return run_suite(of, cells(of), Store(store), watcher or Watcher(), **options)


def same(of: Suite, *stores: Path) -> None:
    """Two stores hold equal records and equal completions of a suite, times and places left out.

    Raises:
        AssertionError: they do not.
    """
    for spec in cells(of):
        one, other = (Store(store).cell(identify(identity(spec))) for store in stores)
        records = [directory.read() for directory in (one, other)]
        assert None not in records, f"both stores have a record of {spec.label}"
        apart = {"seconds", "pace", "provenance", "completions_sha256"}
        plain = [record.model_dump(exclude=apart) for record in records if record is not None]
        for name, value in plain[0].items():
            assert plain[1][name] == value, f"{name} of {spec.label} is the same in both"
        if plain[0]["status"] == "ok":
            assert one.read_rows().to_pylist() == other.read_rows().to_pylist(), "and so is every completion"


def command(*words: str, setup: str = "", **variables: str) -> subprocess.Popen[str]:
    """The command line in a process of its own, after the Python statements `setup`."""
    code = f"{setup}\nfrom thiefbench.cli import main\nmain()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | variables,
    )  # fmt: skip


def terminal(store: Store) -> str:
    """What a run prints of its results."""
    from rich.console import Console

    from thiefbench.suite.report.run_table import print_results, rows_of_run

    written = io.StringIO()
    print_results(Console(width=80, file=written), store, rows_of_run(store))
    return written.getvalue()
