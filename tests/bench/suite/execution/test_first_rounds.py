"""A first round with code of the user's own, before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.tiny import REHEARSES, Attacked, Watcher, run, suite
from thiefbench.engine import swarm as engine
from thiefbench.engine.round_record import RoundRecord
from thiefbench.suite.execution import first_rounds
from thiefbench.suite.execution.first_rounds import FirstRoundError
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import Store
from thiefbench.tasks.sandbox import SandboxUnavailable

_OWN = """
from weakref import WeakSet
from thiefbench.attacks.base import Attack, ThreatModel
from thiefbench.defenses.base import ACCEPT, Defense, Verdict


class Odd(Defense):
    name = "odd"

    def inspect(self, view):
        return [Verdict("zero") if place % 2 else ACCEPT for place in range(len(view.completions))]


class Mistaken(Odd):
    def inspect(self, view):
        return [view.completions[0].txt]


class Few(Odd):
    def inspect(self, view):
        return [ACCEPT]


class Exits(Odd):
    def inspect(self, view):
        raise SystemExit(0)


class Needy(Attack):
    name = "needy"
    threat = ThreatModel("in-context")

    def poison(self, view):
        return [view.task.compose(slot.item, "All hail") for slot in view.slots]

    def outcome(self, item, completion, swarm):
        return completion.missing


HELD = WeakSet()


class Holds(Odd):
    name = "holds"

    def __init__(self):
        if HELD:
            raise OSError("what another one holds")
        HELD.add(self)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own.py"
    file.write_text(_OWN)
    return file


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Role and number of every round that a swarm plays."""
    rounds: list[tuple[str, int]] = []
    play = engine.Swarm.round

    def counting(swarm: engine.Swarm, number: int) -> RoundRecord:
        rounds.append((swarm.context.role, number))
        return play(swarm, number)

    monkeypatch.setattr(engine.Swarm, "round", counting)
    return rounds


def _tried(of: Suite, store: Path) -> list[str]:
    """What was said of rounds that were tried with code of `own.py`; the suite's task is in a file too."""
    watcher = Watcher()
    run(of, store, watcher, try_first=True)
    return [note for note in watcher.notes if note.startswith("tried") and "own.py" in note]


@pytest.mark.parametrize(
    ("defense", "why"),
    [
        ("Mistaken", r"AttributeError: .*'txt'.* \(own\.py, line 16\)"),
        ("Few", "ValueError: the defense odd gave 1 verdicts for 16 completions"),
        ("Exits", r"SystemExit: 0 \(own\.py, line 26\)"),
    ],
)
def test_a_mistake_shows_before_anything_is_trained(
    own: Path, tmp_path: Path, played: list[tuple[str, int]], defense: str, why: str
) -> None:
    with pytest.raises(FirstRoundError, match=rf"with .*{defense} failed, so nothing was trained: {why}"):
        run(suite("none", f"{own}:Odd", f"{own}:{defense}"), tmp_path / "store", try_first=True)
    assert played == [("attack", 1)] * 3, "with the suite's own task, with Odd, and with the one that fails"
    assert not (tmp_path / "store").exists()


def test_an_attack_of_the_users_is_tried_too(own: Path, tmp_path: Path) -> None:
    of = suite("none", attacks=(f"{own}:Needy",))
    with pytest.raises(FirstRoundError, match=r":Needy failed.* no attribute 'missing' \(own\.py, line 37\)"):
        run(of, tmp_path / "store", try_first=True)


def test_cells_come_out_as_without_a_trial(own: Path, tmp_path: Path, played: list[tuple[str, int]]) -> None:
    of = suite("none", f"{own}:Odd", kind=Attacked)
    (said,) = _tried(of, tmp_path / "tried")
    assert said.startswith(f"tried one round with {own}:Odd: it rejects 8 of 16 completions (")
    rounds = len(played)
    run(of, tmp_path / "plain")
    assert rounds == 2 + len(played) - rounds, "the task's and the defense's"
    hashes = [
        {record.cell_id: record.completions_sha256 for record in Store(tmp_path / name).records()}
        for name in ("tried", "plain")
    ]
    assert hashes[0] == hashes[1]


def test_what_the_trial_held_is_free_for_the_cells(own: Path, tmp_path: Path) -> None:
    """Such as a port or a file that is locked."""
    assert _tried(suite(f"{own}:Holds"), tmp_path / "store")
    assert {record.status for record in Store(tmp_path / "store").records()} == {"ok"}


def test_what_has_been_begun_is_not_tried_again(own: Path, tmp_path: Path) -> None:
    assert _tried(suite(f"{own}:Odd"), tmp_path / "store")
    assert not _tried(suite(f"{own}:Odd", seeds=(0, 1)), tmp_path / "store")


def test_what_the_package_declares_is_not_tried(tmp_path: Path, played: list[tuple[str, int]]) -> None:
    assert not _tried(suite("none", "logit", kind=Attacked), tmp_path / "store")
    assert len([number for _, number in played if number == 1]) == 3, "of the two cells, and with the task"


def test_a_rehearsal_is_left_to_the_cells(own: Path, tmp_path: Path, played: list[tuple[str, int]]) -> None:
    of = suite(f"{own}:Odd", attacks=(REHEARSES,), kind=Attacked)
    _tried(of, tmp_path / "store")
    assert played[0] == ("control", 1)


def test_without_a_sandbox_the_cells_say_so(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(spec: CellSpec, *_: object) -> engine.Swarm:
        raise SandboxUnavailable("there is none")

    monkeypatch.setattr(first_rounds, "build_swarm", missing)
    assert not _tried(suite(f"{own}:Odd"), tmp_path / "store")
    assert len(Store(tmp_path / "store").records()) == 2
