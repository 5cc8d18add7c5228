"""A rehearsal that takes over rounds ends as one that is played from the start, bit for bit."""

from __future__ import annotations

import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.suite.execution.sharing.test_shared_rounds import (
    FILE,
    TEXT,
    AttackedAndPlacebo,
    _unused,
    directories,
    equal,
    of,
    one_thread,  # noqa: F401  (a fixture that every test here uses)
    records,
    shared_and_alone,
    taken,
    until,
)
from tests.bench.tiny import Watcher, flip, run
from tests.variants import at_length
from thiefbench import registry
from thiefbench.attacks import auto
from thiefbench.engine.backends import local
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.spec import Seeds
from thiefbench.engine.swarm import Swarm
from thiefbench.suite.execution.sharing import rehearsals, shared_rounds
from thiefbench.suite.scenario import Suite
from thiefbench.suite.store.records import SHARED_REHEARSAL, Record
from thiefbench.tasks.base import Topology

PLUGINS = Path(__file__).with_name("rehearsing_plugins.py")
DRAWN = f"{PLUGINS}:Drawn"
ROUNDS = 3


def tries(*defenses: str, names: str = "half draws asks", play: str = "", **changes: Any) -> Suite:
    """Attacked cells of two rounds whose attack rehearses for three."""
    attack = f"{PLUGINS}:Tries(attack={TEXT!r}, names={names!r}, play={play!r})"
    return of(*defenses, attack=attack, **({"rounds": 2} | changes))


def rehearsed(record: Record) -> str:
    """What a cell says of its rehearsal, without the names of other cells."""
    said = str(record.provenance.get(SHARED_REHEARSAL, ""))
    return " ".join(word for word in said.split() if len(word.strip(",;")) != 16).replace(" of", "")


def kept(store: Path) -> list[Path]:
    return sorted((store / "shared").glob("*/rehearsals/*.parquet"))


ALL = "copy 1: 1-3 copy 2: 1-3 copy 3: 1-3"


@pytest.mark.slow
def test_a_rehearsal_follows_as_far_as_it_goes_the_same_way(tmp_path: Path) -> None:
    swarm = tries("none", until(9), f"{DRAWN}(start=2)", until(2), until(2, "Measures"), until(2, then="some"))
    none, never, drawn, second, measures, some = shared_and_alone(swarm, tmp_path)
    assert rehearsed(none) == "", "nobody was there before"
    assert rehearsed(never) == ALL
    assert taken(never) == {1, 2}, "and then the rounds themselves"
    assert rehearsed(drawn) == "copy 1: 1-3 copy 2: 1-1 copy 3: 1-3", "it differs in one copy, from round 2 on"
    assert rehearsed(second).startswith("copy 1: 1-1"), rehearsed(second)
    assert rehearsed(measures), "the model is run over the pool in the order of the defense"
    assert rehearsed(some).startswith("copy 1: 1-1"), rehearsed(some)


@pytest.mark.slow
@pytest.mark.parametrize("play", ["draws", *at_length("half", "asks")])
def test_the_rounds_after_it_are_shared_whatever_is_played(play: str, tmp_path: Path) -> None:
    swarm = tries("none", until(9), until(2), names="half draws asks", play=play, rounds=4)
    _, never, second = shared_and_alone(swarm, tmp_path)
    assert taken(never) == {1, 2, 3, 4}
    assert 2 not in taken(second)


@pytest.mark.slow
@pytest.mark.parametrize("defense", ["logit", *at_length("reject_all", "random(rate=0.4)", f"{FILE}:Clock")])
def test_other_defenses(defense: str, tmp_path: Path) -> None:
    clock = "Clock" in defense
    swarm = tries("none", defense, until(9))
    if clock:  # its own cell has no second run that equals it
        run(swarm, tmp_path / "shared")
        run(swarm, tmp_path / "alone", share=False)
        rest = tries("none", until(9))
        equal(rest, tmp_path / "shared", tmp_path / "alone")
        assert rehearsed(records(rest, tmp_path / "shared")[1]) == ALL
    else:
        assert rehearsed(shared_and_alone(swarm, tmp_path)[2]) == ALL


def test_nothing_is_sampled_trained_or_evaluated_where_all_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tries("none", names="half draws", play="draws"), tmp_path)
    for owner, name in ((local, "sample"), (Cohort, "accumulate"), (Swarm, "evaluate")):
        monkeypatch.setattr(owner, name, _unused)
    again = tries(until(9), names="half draws", play="draws")
    run(again, tmp_path)
    assert rehearsed(records(again, tmp_path)[0]) == "copy 1: 1-3 copy 2: 1-3"


@pytest.mark.slow
def test_an_attack_that_keeps_something_is_played_in_full(tmp_path: Path) -> None:
    """Skipped outcomes would change what it sends in the next copy, so nothing is taken over from there on."""
    swarm = tries("none", until(9), until(2), names="half counts draws", play="counts")
    _, never, second = shared_and_alone(swarm, tmp_path)
    assert rehearsed(never) == "copy 1: 1-3 copy 3: 1-3", "what it has counted is the same"
    assert "copy 2" not in rehearsed(second)


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "topology"), [("beacon", "horizontal"), *at_length(("announced", "vertical"))])
def test_seeds_and_topologies(seeds: Seeds, topology: Topology, tmp_path: Path) -> None:
    swarm = replace(of("none").swarm, seeds=seeds, topology=topology)
    found = shared_and_alone(tries("none", until(9), until(2), play="draws", swarm=swarm), tmp_path)
    assert rehearsed(found[1]) == ALL


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["vertical", "horizontal"])
def test_all_members_of_auto(topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "ROUNDS", 2)
    monkeypatch.setattr(auto, "COMPLETIONS", 16)
    swarm = replace(of("none").swarm, topology=topology)
    suite = of("none", until(9), until(2), "logit", attack=f"auto(attack={TEXT!r})", swarm=swarm, rounds=2)
    found = shared_and_alone(suite, tmp_path)
    left_out = {"vertical": {"naive"}, "horizontal": {"gibberish", "items"}}
    members = auto.Auto(registry.make("attack", TEXT)).members().keys() - left_out[topology]
    assert rehearsed(found[1]).count("1-2") == len(members)
    assert taken(found[1]) == {1, 2}


class Killed(BaseException):
    """As if the process ended here."""


@pytest.mark.slow
@pytest.mark.parametrize("writes", [1, 4, 11, 20])
def test_a_cell_killed_while_it_rehearses_finds_its_rounds(
    writes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, whole, parts = tries("none", until(2)), tmp_path / "whole", tmp_path / "parts"
    run(both, whole)
    done = 0
    write_table, write_sealed = rehearsals.write_table, rehearsals.write_sealed

    def counted(write: Any) -> Any:
        def counting(path: Path, content: Any) -> None:
            nonlocal done
            done += 1
            if done == writes:
                path.parent.mkdir(parents=True, exist_ok=True)
                (path.parent / f".{path.name}-x.part").write_bytes(b"half")
                raise Killed
            write(path, content)

        return counting

    monkeypatch.setattr(rehearsals, "write_table", counted(write_table))
    monkeypatch.setattr(rehearsals, "write_sealed", counted(write_sealed))
    with pytest.raises(Killed):
        run(both, parts)
    played = len(kept(parts))
    run(both, parts)
    assert done > writes
    equal(both, parts, whole)
    names = [[path.relative_to(store) for path in sorted((store / "shared").rglob("*"))] for store in (parts, whole)]
    assert names[0] == names[1], "nothing half-written is left, and no round is there twice"
    assert [path.read_bytes() for path in kept(parts)] == [path.read_bytes() for path in kept(whole)]
    assert played == writes // 2, "what was finished is kept"


@pytest.mark.slow
def test_a_rehearsal_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_rounds, "TELL_EVERY_SECONDS", 0.0)
    watcher = Watcher()
    run(tries("none"), tmp_path, watcher)
    copies = [re.search(r": rehearsal, round (\d+) of swarm copy (\d+)$", note) for note in watcher.notes]
    told = [tuple(map(int, found.groups())) for found in copies if found]
    assert told == [(number, copy) for copy in (1, 2, 3) for number in range(1, ROUNDS + 1)]
    quiet = Watcher()
    monkeypatch.setattr(shared_rounds, "TELL_EVERY_SECONDS", 3600.0)
    run(tries("none"), tmp_path / "other", quiet)
    assert len(quiet.notes) == len(watcher.notes) - len(told), "a short one only says that it begins"


class Interrupts(Watcher):
    """Presses Ctrl-C as soon as a rehearsal begins."""

    def note(self, message: str) -> None:
        super().note(message)
        if "rehearses before round 1" in message:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_ctrl_c_stops_a_rehearsal_after_its_round(tmp_path: Path) -> None:
    """A rehearsal of `auto` takes minutes."""
    both, whole, parts, watcher = tries("none", until(2)), tmp_path / "whole", tmp_path / "parts", Interrupts()
    run(both, whole)
    with pytest.raises(KeyboardInterrupt):
        run(both, parts, watcher)
    assert watcher.notes[1:] == ["stopping after this round; press Ctrl-C again to stop at once"]
    assert len(kept(parts)) == 1, "the round is kept"
    run(both, parts)
    equal(both, parts, whole)


@pytest.mark.parametrize("damage", ["flip", *at_length("all", "delete", "half")])
def test_files_that_are_damaged_or_gone_cost_time_only(damage: str, tmp_path: Path) -> None:
    swarm, store = tries("none", until(9)), tmp_path / "shared"
    run(tries("none"), store)
    files = kept(store)
    assert len(files) == 3 * (ROUNDS + 1)
    for number, path in enumerate(files):
        if damage == "all":
            shutil.rmtree(path.parent, ignore_errors=True)
        elif number % 2:
            continue
        elif damage == "flip":
            flip(path)
        elif damage == "delete":
            path.unlink()
        else:
            flip(path.with_suffix(".json"))
    found = shared_and_alone(swarm, tmp_path)[1]
    assert (rehearsed(found) == "") == (damage == "all")
    assert rehearsed(found) != ALL


@pytest.mark.slow
def test_rounds_behind_a_link_are_neither_read_nor_written(tmp_path: Path) -> None:
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    run(tries("none"), store)
    (folder,) = {path.parent for path in kept(store)}
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    before = sorted(elsewhere.iterdir())
    run(tries(until(2)), store, shared_gb=1e-9)
    assert sorted(elsewhere.iterdir()) == before, "nothing is written or deleted"
    assert not rehearsed(records(tries(until(2)), store)[0])


@pytest.mark.slow
def test_they_are_within_the_limit(tmp_path: Path) -> None:
    run(tries("none"), tmp_path)
    most = sum(path.stat().st_size for path in kept(tmp_path)) // 2
    run(tries(until(2)), tmp_path, shared_gb=most / 1e9)
    assert 0 < sum(path.stat().st_size for path in kept(tmp_path)) <= most
    run(tries(until(3)), tmp_path, shared_gb=0)
    assert not kept(tmp_path)


@pytest.mark.slow
def test_updates_that_are_not_reproduced_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tries("none"), tmp_path / "shared")
    read = rehearsals.KeptRounds._read

    def other(*parts: Any, **named: Any) -> Any:
        found = read(*parts, **named)
        return found and replace(found, grad_norm=found.grad_norm * (1 + 1e-12))

    monkeypatch.setattr(rehearsals.KeptRounds, "_read", other)
    watcher, both = Watcher(), tries("none", until(2))
    run(both, tmp_path / "shared", watcher)
    assert any("begins again" in note for note in watcher.notes)
    run(both, tmp_path / "alone", share=False)
    equal(both, tmp_path / "shared", tmp_path / "alone")
    assert not rehearsed(records(both, tmp_path / "shared")[1])


@pytest.mark.slow
def test_a_placebo_rehearses_as_its_attack_did(tmp_path: Path) -> None:
    both = tries("none", kind=AttackedAndPlacebo, placebo=True)
    run(both, tmp_path / "alone", share=False)
    run(both, tmp_path / "shared")
    attacked, placebo = directories(both, tmp_path / "shared")
    attacked.record_path.unlink()
    placebo.record_path.unlink()
    only = tries("none", kind=Placebos, placebo=True)
    run(only, tmp_path / "shared")
    equal(only, tmp_path / "shared", tmp_path / "alone")
    assert rehearsed(records(only, tmp_path / "shared")[0]) == ALL


class Placebos(AttackedAndPlacebo):
    """Placebo cells alone."""

    def cells(self, *numerics: Any) -> Any:
        return [spec for spec in super().cells(*numerics) if spec.role == "placebo"]
