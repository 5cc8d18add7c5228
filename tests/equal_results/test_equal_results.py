"""Sources are declared equal where everything agrees, and only there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.equal_results import deciding
from tests.equal_results.cells import CELLS, hashes_of, surroundings
from tests.equal_results.deciding import FILES, Files, UndecidedError, check_installed, failing_tests, main
from thiefbench.engine.learning import cohort

BASE, OTHER, EARLIER = "b" * 16, "c" * 16, "d" * 16
CELL = "chosen groups"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """Of a base revision with one small cell and a test that passes, while the sources have another digest."""
    passes = tmp_path / "test_passes.py"
    passes.write_text("def test_it(): pass\n")
    monkeypatch.setattr(deciding, "CELLS", {CELL: CELLS[CELL]})
    monkeypatch.setattr(deciding, "TESTS", (str(passes),))
    monkeypatch.setattr(deciding, "check_installed", lambda: None)
    monkeypatch.setattr(deciding, "sources_digest", lambda: OTHER)
    found = Files(tmp_path / "revisions.json", tmp_path / "values.json")
    write(found.declarations, {"base": BASE, "equal": {EARLIER: "a constant moved"}})
    write(found.values, {"base": BASE, "machines": {surroundings(): {CELL: hashes_of(CELL)}}})
    return found


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def test_equal_results_are_declared_with_the_reason(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--equal", "a field\n renamed"], files) == 0
    assert json.loads(files.declarations.read_text()) == {
        "base": BASE,
        "equal": {EARLIER: "a constant moved", OTHER: "a field renamed"},
    }
    assert main(["--equal", "again"], files) == 2
    assert capsys.readouterr().out.endswith(f"The engine's code has the base revision {BASE} already.\n")


def test_weights_that_differ_in_the_last_bit_are_not_declared(
    files: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, before = cohort.Cohort.advantages, files.declarations.read_bytes()

    def nudged(self: Any, rows: Any) -> list[float]:
        return [value * (1 + 1e-7) for value in plain(self, rows)]

    monkeypatch.setattr(cohort.Cohort, "advantages", nudged)
    assert main(["--equal", "a field renamed"], files) == 1
    told = capsys.readouterr().out
    assert f"differs: the cell '{CELL}': weights and optimizer\n" in told
    assert f"differs: the cell '{CELL}': settings\n" not in told, "only what differs is named"
    assert files.declarations.read_bytes() == before, "nothing is written"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "outcome"),
    [("assert 1 == 2", "failure, "), ("import pytest; pytest.skip('no sandbox')", "skipped, no sandbox")],
)
def test_a_test_that_does_not_pass_is_named(
    files: Files, body: str, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    other, before = tmp_path / "test_other.py", files.declarations.read_bytes()
    other.write_text(f"def test_it(): {body}\n")
    monkeypatch.setattr(deciding, "TESTS", (str(other),))
    assert main(["--equal", "a field renamed"], files) == 1
    assert f"test_other::test_it: {outcome}" in capfd.readouterr().out
    assert files.declarations.read_bytes() == before, "nothing is written"


def test_tests_that_are_missing_do_not_pass(tmp_path: Path) -> None:
    assert list(failing_tests([str(tmp_path / "test_missing.py")]))
    (tmp_path / "test_nothing.py").touch()
    assert list(failing_tests([str(tmp_path / "test_nothing.py")]))


def test_every_test_that_must_pass_exists() -> None:
    assert all((deciding.CHECKOUT / path).exists() for path in deciding.TESTS)


def test_another_machine_has_no_hashes(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    write(files.values, {"base": BASE, "machines": {"torch 1.0": {}}})
    assert main(["--equal", "a field renamed"], files) == 2
    assert "no hashes of the base revision" in capsys.readouterr().out
    assert main(["--this-machine"], files) == 2, "and code of another revision cannot make them"


def test_this_machine_s_hashes_are_added(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    before = json.loads(files.values.read_text())["machines"]
    write(files.values, {"base": BASE, "machines": {"torch 1.0": {}}})
    monkeypatch.setattr(deciding, "sources_digest", lambda: EARLIER)
    assert main(["--this-machine"], files) == 0
    assert json.loads(files.values.read_text()) == {"base": BASE, "machines": {"torch 1.0": {}, **before}}


def test_a_new_base_drops_earlier_declarations(files: Files) -> None:
    machines = json.loads(files.values.read_text())["machines"]
    assert main(["--new-base"], files) == 0
    assert json.loads(files.declarations.read_text()) == {"base": OTHER, "equal": {}}
    assert json.loads(files.values.read_text()) == {"base": OTHER, "machines": machines}


def test_the_installed_package_must_be_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/limits.py").write_text("OTHER = 1\n")
    with pytest.raises(UndecidedError, match=r"another bench/limits\.py; write make install"):
        check_installed(tmp_path)


def test_hashes_of_the_base_revision_are_kept() -> None:
    assert json.loads(FILES.values.read_text())["base"] == FILES.declared().base
    for machine, cells in FILES.machines(FILES.declared().base).items():
        assert cells.keys() == CELLS.keys(), f"every small cell has its hashes for {machine}"


def test_a_cell_leaves_the_same_on_every_call() -> None:
    threads = torch.get_num_threads()
    assert hashes_of(CELL) == hashes_of(CELL)
    torch.set_num_threads(threads)
