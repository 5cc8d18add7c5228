"""The current folder may be a stranger's, such as an archive that was unpacked: nothing in it is obeyed or imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pytest

from tests.bench import handmade, tiny
from thiefbench.suite.report.page import write_report
from thiefbench.suite.store.records import Store

SHADOWS = ("csv", "matplotlib", "multiprocessing", "numpy", "rich", "torch", "typer", "yaml")
"""Modules that a command imports, directly or not."""


def ended(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """A command in a folder, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(word) for word in words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip


@pytest.fixture
def shadows(tmp_path: Path) -> Path:
    """A folder with a module beside each one that a command needs, which leaves a file behind when it is imported."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name in SHADOWS:
        text = f"open({str(tmp_path / 'imported')!r}, 'a').write(__name__ + ' ')\nraise SystemExit('imported')\n"
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.mark.parametrize("how", [[Path(sys.executable).with_name("thiefbench")], [sys.executable, "-m", "thiefbench"]])
def test_no_module_of_the_current_folder_is_imported(shadows: Path, how: list[object]) -> None:
    done = ended(shadows, *how, "list", "defenses")
    assert not (imported := shadows.parent / "imported").exists(), imported.read_text()
    assert (done.returncode, "logit" in done.stdout) == (0, True), done.stderr


@pytest.mark.slow
def test_no_worker_imports_from_the_current_folder(shadows: Path) -> None:
    file = tiny.suite_file(shadows.parent, rounds=1, defenses=["none", "logit"])
    tiny.run(tiny.suite("none", rounds=1), shadows.parent / "store")  # so that one cell is left, and one worker starts
    words = ["run", file, "--store", shadows.parent / "store", "--trust-plugins", "--threads", 1, "--workers", 2]
    done = ended(shadows, Path(sys.executable).with_name("thiefbench"), *words)
    assert not (imported := shadows.parent / "imported").exists(), imported.read_text()
    assert done.returncode == 0, done.stderr
    assert len(Store(shadows.parent / "store").records()) == 3, "the worker has run its cell"


def small_store(folder: Path) -> Store:
    return handmade.store(folder, handmade.suite(attacks=(handmade.TEXT,), defenses=("none", "logit"), seeds=(0,)))


@pytest.mark.slow
def test_matplotlib_reads_no_settings_from_the_current_folder(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    os.mkfifo(tmp_path / "matplotlibrc")  # whoever reads it waits for ever
    done = ended(tmp_path, Path(sys.executable).with_name("thiefbench"), "report", store.root)
    assert (done.returncode, done.stderr) == (0, "")


def test_settings_of_matplotlib_do_not_change_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_report(plain := small_store(tmp_path / "plain"))
    for name, value in {"axes.facecolor": "red", "text.usetex": True, "lines.linewidth": 30.0}.items():
        monkeypatch.setitem(mpl.rcParams, name, value)
    write_report(changed := small_store(tmp_path / "changed"))
    assert mpl.rcParams["axes.facecolor"] == "red", "a program's own settings stay as they are"
    plots = sorted((plain.root / "report").glob("*.png"))
    assert plots
    for plot in plots:
        assert (changed.root / "report" / plot.name).read_bytes() == plot.read_bytes(), plot.name
