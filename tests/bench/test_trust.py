"""Stores and suites of strangers are data: reading, reporting, comparing, merging or planning runs none of their code.

Every hostile spec string would leave a file behind, `ran`, if anything that it names were imported or made.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.bench import tiny
from tests.bench.handmade import TEXT, store, suite
from thiefbench import registry
from thiefbench.cli import app
from thiefbench.errors import UserError
from thiefbench.suite.report import plots
from thiefbench.suite.store.records import Record, Store

EVIL = """
from pathlib import Path

Path({marker!r}).touch()

from thiefbench.attacks.base import Attack
from thiefbench.defenses.base import Defense
from thiefbench.tasks.base import Task


class Evil:
    pass
"""


@dataclass(frozen=True)
class Trap:
    """A folder with hostile code in it, which is the current one.

    Attributes:
        folder: where.
        specs: hostile spec strings, by the way in which they would be executed.
    """

    folder: Path
    specs: dict[str, str]

    @property
    def sprung(self) -> bool:
        """Whether hostile code ran."""
        return (self.folder / "ran").exists()


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trap:
    marker = str(tmp_path / "ran")
    package = tmp_path / "strange_package"
    package.mkdir()
    for file in (tmp_path / "evil.py", package / "__init__.py", package / "inner.py"):
        file.write_text(EVIL.format(marker=marker))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # what one test lets Python find, the next must not
    for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delenv("THIEFBENCH_TRUST_PLUGINS", raising=False)
    return Trap(
        tmp_path,
        {
            "a class of the standard library": f"zipfile:ZipFile(file={marker!r}, mode='w')",
            "a command of the shell": f"subprocess:Popen(args='touch {marker}', shell=True)",
            "a file": f"{tmp_path / 'evil.py'}:Evil",
            "a file here": "./evil.py:Evil",
            "a package here": "strange_package.inner:Evil",
        },
    )


@pytest.fixture(autouse=True)
def plots_unsaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots are laid out and not rendered, which takes most of a report's time and reads no name in a store."""
    monkeypatch.setattr(plots, "saved", lambda *_: ('<svg viewBox="0 0 1 1"></svg>', b""))


WAYS = ["a class of the standard library", "a command of the shell", "a file", "a file here", "a package here"]


def command(*words: object) -> str:
    """What a command prints and the sentence that it ends with, as from a shell: nobody has said whom to trust."""
    result = Context().run(CliRunner().invoke, app, [str(word) for word in words])
    raised = result.exception
    if raised is not None and not isinstance(raised, SystemExit | UserError):
        return f"TRACEBACK: {raised!r}"
    return result.output + ("" if raised is None else str(raised))


def rewritten(kept: Store, change: Callable[[Any], Any]) -> Store:
    """Change the JSON values of a store's records and run, and sign what was changed."""
    for folder in (kept.root / "cells").iterdir():
        record = kept.cell(folder.name).read()
        assert record is not None
        (folder / "record.json").unlink()
        kept.cell(folder.name).write(Record(**change(record.model_dump(mode="json"))))
    run = kept.root / "run.json"
    run.write_text(json.dumps(change(json.loads(run.read_text()))))
    return kept


def replaced(old: str, new: str) -> Callable[[Any], Any]:
    """Put another text in the place of one, wherever it stands."""

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: change(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [change(inner) for inner in value]
        return new if value == old else value

    return change


TASK = "gsm_micro(size=24)"


def hostile_store(folder: Path, field: str, spec: str) -> Store:
    """A store of three cells, in which a spec string stands for the attack, the defense, the task or a replay."""
    made = suite(attacks=(TEXT,), defenses=("none", "logit"), placebo=False, utility=False, seeds=(0,))
    kept = store(folder, made)
    if field == "replayed":
        run = json.loads((kept.root / "run.json").read_text())
        run["suite"]["replayed"] = [spec]
        (kept.root / "run.json").write_text(json.dumps(run))
        return kept
    return rewritten(kept, replaced({"attack": TEXT, "defense": "logit", "task": TASK}[field], spec))


# --- stores ---


@pytest.mark.parametrize("field", ["attack", "defense", "task", "replayed"])
@pytest.mark.parametrize("way", WAYS)
def test_a_report_on_a_store_runs_nothing_that_its_records_name(trap: Trap, way: str, field: str) -> None:
    kept = hostile_store(trap.folder / "store", field, trap.specs[way])
    printed = command("report", kept.root)
    assert not trap.sprung, "reading a store runs nothing of it"
    if field == "attack":
        assert "--trust-plugins" in printed, f"one sentence says what to add: {printed}"
        assert len(printed.strip().splitlines()) == 1
    else:
        assert "report: " in printed, "what is not needed is left out"


@pytest.mark.parametrize("way", WAYS)
def test_a_nested_spec_string_runs_no_more(trap: Trap, way: str) -> None:
    inner = trap.specs[way]
    for field, spec in (("attack", f"varied(attack={inner!r})"), ("replayed", f"reputation(defense={inner!r})")):
        kept = hostile_store(trap.folder / field, field, spec)
        printed = command("report", kept.root)
        assert not trap.sprung, spec
        assert "TRACEBACK" not in printed


@pytest.mark.parametrize("way", WAYS)
def test_a_comparison_of_stores_runs_nothing_that_their_records_name(trap: Trap, way: str) -> None:
    for field in ("attack", "defense"):
        kept = hostile_store(trap.folder / field, field, trap.specs[way])
        printed = command("compare", kept.root, kept.root)
        printed += command("compare", kept.root, "--defense", "none", "--defense", "logit")
        assert not trap.sprung, field
        assert "TRACEBACK" not in printed


@pytest.mark.parametrize("way", WAYS)
def test_a_merge_of_stores_runs_nothing_that_their_records_name(trap: Trap, way: str) -> None:
    for field in ("attack", "defense", "task", "replayed"):
        kept = hostile_store(trap.folder / field, field, trap.specs[way])
        printed = command("merge", kept.root, hostile_store(trap.folder / f"{field}-2", field, trap.specs[way]).root,
                          "--into", trap.folder / f"{field}-joined")  # fmt: skip
        assert not trap.sprung, field
        assert "3 were the same" in printed, "stores are merged all the same"


@pytest.mark.parametrize("way", WAYS)
def test_an_export_of_a_cell_runs_nothing_that_its_record_names(trap: Trap, way: str) -> None:
    for field in ("attack", "task"):
        kept = hostile_store(trap.folder / field, field, trap.specs[way])
        cells = list((kept.root / "cells").iterdir())
        assert len(cells) == 3
        for number, cell in enumerate(cells):
            printed = command("export", kept.root, cell.name, trap.folder / f"{field}-{number}.jsonl")
            assert not trap.sprung, field
            assert "TRACEBACK" not in printed
            assert "--trust-plugins" in printed or field == "attack"


# --- suites ---


@pytest.mark.parametrize("field", ["attacks", "task", "defenses", "replayed"])
@pytest.mark.parametrize("way", WAYS)
def test_a_plan_of_a_suite_file_runs_nothing_that_it_names(trap: Trap, way: str, field: str) -> None:
    spec = trap.specs[way]
    (trap.folder / "suite").mkdir()
    file = tiny.suite_file(trap.folder / "suite", **{"task": TASK, field: spec if field == "task" else [spec]})
    printed = command("run", file, "--plan", "--store", trap.folder / "store", "--threads", 1)
    assert not trap.sprung
    assert "TRACEBACK" not in printed
    if field != "replayed":
        assert "--trust-plugins" in printed, printed


@pytest.mark.parametrize("words", [("run",), ("matrix",)])
def test_a_run_of_a_suite_file_asks_for_the_flag_first(trap: Trap, words: tuple[str, ...]) -> None:
    (trap.folder / "suite").mkdir()
    for spec in trap.specs.values():
        file = tiny.suite_file(trap.folder / "suite", task=TASK, attacks=[spec])
        assert "--trust-plugins" in command(*words, file, "--store", trap.folder / "store")
        assert not trap.sprung, spec


def test_what_is_typed_trusts_no_more_than_itself(trap: Trap) -> None:
    """An attack of the user's own does not open the way for the suite's other names."""
    own = trap.folder / "own.py"
    shutil.copy(tiny.PLUGINS, own)
    (trap.folder / "suite").mkdir()
    for spec in trap.specs.values():
        file = tiny.suite_file(trap.folder / "suite", defenses=["none", spec])
        words = ("--task", f"{own}:Sums", "--plan", "--store", trap.folder / "store", "--threads", 1)
        printed = command("run", file, *words)
        assert not trap.sprung, spec
        assert "--trust-plugins" in printed


# --- the user's own ---


def test_own_plug_ins_run_where_they_are_typed_and_are_reported_with_the_flag(trap: Trap) -> None:
    (trap.folder / "suite").mkdir()
    shutil.copy(tiny.PLUGINS, trap.folder / "mine.py")
    file = tiny.suite_file(trap.folder / "suite", task=TASK, rounds=1)
    words = (
        "--task",
        "./mine.py:Sums",
        "--defense",
        "./mine.py:Counts",
        "--attack",
        "varied(attack='./mine.py:Samples')",
    )
    printed = command("run", file, *words, "--store", "runs", "--threads", 1)
    assert "for the page" in printed.lower(), printed
    assert "--trust-plugins" in printed, "the next command is ready to be typed"
    refused = command("report", "runs")
    assert "the attack ./mine.py:Samples is named in what was read" in refused, refused
    assert "report: " in command("report", "runs", "--trust-plugins")


def test_an_own_defense_needs_no_flag_to_be_reported_on(trap: Trap) -> None:
    """What a report says of a defense stands in the record."""
    kept = hostile_store(trap.folder / "store", "defense", "./mine.py:Mine(floor=-3.0)")
    printed = command("report", kept.root)
    assert "report: " in printed
    assert "./mine.py:Mine(floor=-3.0)" in (kept.root / "report" / "index.html").read_text()


def test_a_class_of_another_kind_is_not_made(trap: Trap) -> None:
    """Not even where it is trusted."""
    for kind in ("attack", "defense", "task"):
        for name in WAYS[:2]:
            with pytest.raises(registry.SpecStringError, match="is not a subclass of thiefbench"):
                registry.make(kind, trap.specs[name])
            with pytest.raises(registry.SpecStringError, match="is not a subclass of thiefbench"):
                registry.canonical(kind, trap.specs[name])
    with pytest.raises(registry.SpecStringError, match="is not a subclass of thiefbench"):
        registry.make("attack", f"{tiny.PLUGINS}:Sums")
    assert not trap.sprung


# --- files ---


def test_a_source_hash_without_loading_imports_nothing(trap: Trap) -> None:
    for spec in (*trap.specs.values(), f"reputation(defense={trap.specs['a package here']!r})"):
        try:
            registry.source_hash("defense", spec, load=False)
        except registry.SpecStringError as error:
            assert "is not imported here" in str(error)
        assert not trap.sprung, spec


def test_only_plain_files_are_read(trap: Trap) -> None:
    os.mkfifo(trap.folder / "pipe.py")
    (trap.folder / "zero.py").symlink_to("/dev/zero")
    (trap.folder / "folder.py").mkdir()
    for path in ("/dev/zero", "zero.py", "pipe.py", "folder.py", "x" * 5000, "no/such.py", "a\tb.py"):
        for spec in (f"{path}:X", f"reputation(defense={f'{path}:X'!r})"):
            with pytest.raises(registry.SpecStringError):
                registry.source_hash("defense", spec, load=False)


def test_a_store_of_devices_and_pipes_is_damaged_and_not_waited_for(trap: Trap) -> None:
    kept = hostile_store(trap.folder / "store", "defense", "logit")
    first, second, third = sorted((kept.root / "cells").iterdir())
    for path, make in (
        (first / "record.json", lambda path: path.symlink_to("/dev/zero")),
        (second / "record.json", os.mkfifo),
        (third / "completions.parquet", lambda path: path.symlink_to("/dev/zero")),
    ):
        path.unlink()
        make(path)
    assert kept.records() == [], "none is intact"
    assert "no cell of the run" in command("report", kept.root)
    (kept.root / "run.json").unlink()
    (kept.root / "run.json").symlink_to("/dev/zero")
    assert "holds no run" in command("report", kept.root)
