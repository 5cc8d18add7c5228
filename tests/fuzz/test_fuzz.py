"""A quick slice of the fuzzer with a fixed seed, and proof that it sees what it looks for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.fuzz import run, targets
from tests.fuzz.mutations import Mutator
from tests.fuzz.run import Findings, fuzz, summary
from tests.fuzz.targets import PLAYED, TARGETS, Bases, bases

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, and limits address space")
QUICK = sorted(TARGETS.keys() - PLAYED - {"report", "plan"})
"""The full set takes minutes: python -m tests.fuzz."""


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    torch.set_num_threads(1)  # forked processes have no other
    return bases(tmp_path_factory.mktemp("examples"), played=False)


def test_nothing_that_is_read_is_run_or_ends_in_a_traceback(examples: Bases) -> None:
    known = fuzz(examples, 0, range(60), QUICK)
    assert not known.findings, "\n".join(summary(known))
    assert sum(known.cases.values()) == 60
    assert known.errors.total() > 5, "mutations are noticed"
    assert known.results.total() > 5, "and not all of them are fatal"


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (lambda folder: os.system("true"), "os.system"),
        (lambda folder: __import__("antigravity"), "import"),
        (lambda folder: (folder / "marker").write_text("x"), "the marker was left"),
        (lambda folder: [][0], "IndexError"),
        (lambda folder: bytearray(3 << 30), "MemoryError"),
        (lambda folder: os.kill(os.getpid(), 9), "signal 9"),
        (lambda folder: [None for _ in iter(int, 1)], "TooLongError"),
    ],
)
def test_what_must_not_happen_is_found(
    examples: Bases, monkeypatch: pytest.MonkeyPatch, bad: Callable[[Path], object], expected: str
) -> None:
    def case(examples: Bases, mutator: Mutator, folder: Path) -> Callable[[], object]:
        return lambda: bad(folder)

    monkeypatch.setattr(run, "SECONDS", 1)
    monkeypatch.setattr(run, "_warm", lambda *options: None)
    monkeypatch.setitem(targets.TARGETS, "bad", (case, 1))
    known: Findings = fuzz(examples, 0, [0], ["bad"])
    ((_, number, what),) = known.findings
    assert number == 0
    assert expected in what
