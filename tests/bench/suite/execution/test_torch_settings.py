"""What a plugin sets in torch for the whole process reaches no other cell, and no cell depends on who loaded it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.bench.tiny import cells, model, run, suite
from thiefbench.suite.execution.cell_identity import identity
from thiefbench.suite.scenario import Suite
from thiefbench.suite.store.records import Store, identify
from thiefbench.torch_settings import torch_settings_kept

MEDDLES = """
import torch
from thiefbench.defenses.base import ACCEPT, Defense


def meddle():
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    torch.manual_seed(7)


if {loaded}:
    meddle()


class Meddles(Defense):
    name = "meddles"

    def __init__(self):
        if {made}:
            meddle()

    def inspect(self, view):
        if {inspects}:
            meddle()
        return [ACCEPT] * len(view.completions)
"""


def settings() -> tuple[Any, ...]:
    return (
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.get_rng_state().tolist(),
    )


def meddling(folder: Path, when: str) -> str:
    file = folder / "meddles.py"
    file.write_text(MEDDLES.format(**{each: each == when for each in ("loaded", "made", "inspects")}))
    return f"{file}:Meddles"


def stored(of: Suite, store: Path, defense: str) -> bytes:
    """The completions of a defense's attacked cell."""
    spec = next(each for each in cells(of) if (each.role, each.defense) == ("attack", defense))
    directory = Store(store).cell(identify(identity(spec)))
    record = directory.read()
    assert record is not None
    assert record.status == "ok", record.error
    return directory.completions_path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["loaded", "made", "inspects"])
def test_no_cell_depends_on_which_one_ran_before(tmp_path: Path, when: str) -> None:
    model()  # sets the threads
    before, spec = settings(), meddling(tmp_path, when)
    both, alone = suite(spec, "none"), suite("none")
    run(alone, tmp_path / "alone")
    run(both, tmp_path / "both")
    assert settings() == before
    assert stored(both, tmp_path / "both", "none") == stored(alone, tmp_path / "alone", "none")
    if when == "inspects":
        return  # a cell may harm itself
    run(both, tmp_path / "again")
    mine = stored(both, tmp_path / "both", spec)
    assert mine == stored(both, tmp_path / "again", spec), "its file is loaded already, and that changes nothing"
    assert mine == stored(both, tmp_path / "both", "none"), "both accept all"


@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.set_default_device("meta"),
        lambda: torch.set_deterministic_debug_mode(1),
        lambda: torch.autograd.set_detect_anomaly(True),
        lambda: torch.backends.cuda.enable_flash_sdp(False),
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
        lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
        lambda: torch.set_flush_denormal(True),
        lambda: torch.rand(3),
    ],
)
def test_settings_are_as_before_even_after_an_error(change: Callable[[], Any]) -> None:
    def seen() -> tuple[Any, ...]:
        return (
            *settings(), torch.get_default_device(), torch.get_deterministic_debug_mode(), torch.is_anomaly_enabled(),
            torch.backends.cuda.flash_sdp_enabled(), torch.backends.cudnn.benchmark,
            torch.utils.deterministic.fill_uninitialized_memory, float(torch.tensor(1e-310, dtype=torch.float64) * 0.5),
        )  # fmt: skip

    before = seen()
    with pytest.raises(ValueError, match="broken"), torch_settings_kept():
        change()
        raise ValueError("broken")
    assert seen() == before
