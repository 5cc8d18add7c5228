"""States that cells keep for others, when processes are killed while they write."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from thiefbench.suite.execution.sharing.shared_folder import States, usable

CELL, OTHER = "0123456789abcdef", "fedcba9876543210"
TENSORS = {"weight": torch.arange(6.0).reshape(2, 3)}


@pytest.mark.parametrize("writes", [0, 1])
def test_a_state_whose_writing_was_interrupted_is_kept_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    done: list[int] = []

    def interrupted(descriptor: int) -> None:
        if len(done) == writes:
            raise KeyboardInterrupt
        done.append(descriptor)

    states = States(tmp_path / "start", CELL, most_bytes=10**6)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "fsync", interrupted)
        states.keep("mark", TENSORS)
    assert states.load("mark") is None
    states.keep("mark", TENSORS)
    found = states.load("mark")
    assert found is not None
    assert torch.equal(found["weight"], TENSORS["weight"])


def test_a_cell_removes_only_what_it_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", killed)
        patched.setattr(Path, "unlink", lambda self, missing_ok=False: None)  # a killed process tidies nothing
        for cell in (CELL, OTHER):
            with pytest.raises(KeyboardInterrupt):
                States(tmp_path / "start", cell, most_bytes=10**6).keep("mark", TENSORS)
    folder = tmp_path / "start" / "states"
    assert len(list(folder.iterdir())) == 2
    assert usable(CELL, tmp_path, tmp_path / "start", folder)
    (left,) = folder.iterdir()
    assert OTHER in left.name, "another cell may be writing it"


@pytest.mark.parametrize("writes", [0, 1])
def test_a_full_disk_only_costs_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    done: list[int] = []

    def full(descriptor: int) -> None:
        if len(done) == writes:
            raise OSError(errno.ENOSPC, "No space left on device")
        done.append(descriptor)

    states = States(tmp_path / "start", CELL, most_bytes=10**6)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        states.keep("mark", TENSORS)
    assert states.load("mark") is None
    assert list((tmp_path / "start" / "states").iterdir()) == []
    states.keep("mark", TENSORS)
    assert states.load("mark") is not None


@pytest.mark.parametrize("spare", [False, True])
def test_a_state_under_another_marks_name_is_not_taken_for_that_marks(tmp_path: Path, spare: bool) -> None:
    states = States(tmp_path / "start", CELL, most_bytes=10**6)
    states.keep("mark", TENSORS, spare)
    for path in (tmp_path / "start" / "states").iterdir():
        path.rename(path.with_name(path.name.replace("mark", "other")))
    assert states.load("other") is None, "a cell would go on with the weights of another round"
