"""What `--plan` says: which cells the store lacks, and how long they take."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.bench import handmade, tiny
from tests.bench.tiny import Attacked, Watcher, cells, run, suite
from thiefbench import provenance
from thiefbench.engine.reward_judge import RewardJudgeSpec
from thiefbench.engine.spec import SpecError
from thiefbench.suite import run_plan
from thiefbench.suite.analysis.power import ASSUMED_SPREAD, power, seeds_needed
from thiefbench.suite.analysis.ranking_inputs import spread_over_seeds
from thiefbench.suite.estimates.eta import EVALUATED, MeasuredCell
from thiefbench.suite.estimates.measured import cell_of, measured_here
from thiefbench.suite.estimates.reference import Span, reference_pace, setting_of
from thiefbench.suite.execution import checkpoints
from thiefbench.suite.execution.runner import run_suite
from thiefbench.suite.run_plan import Resolution, RunPlan, look_ahead, print_run_plan
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import Record, Store
from thiefbench.suite.suite_yaml import load_suite


def ahead(of: Suite, store: Path, workers: int = 1, play: bool = False) -> RunPlan:
    return look_ahead(of, cells(of), Store(store), workers, play)


def printed(of: RunPlan) -> str:
    out = StringIO()
    print_run_plan(Console(file=out, width=200), of)
    return out.getvalue()


def files(store: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def test_where_asked_two_rounds_are_played_and_nothing_written(tmp_path: Path) -> None:
    of = suite("none", "logit", seeds=(0, 1, 3))
    found = ahead(of, tmp_path / "store", play=True)
    assert not (tmp_path / "store").exists(), "a plan writes nothing"
    assert len(found.stages) == 9
    assert 0 < found.estimate.seconds.low < found.estimate.seconds.high
    assert found.estimate.source == "measured on the second round of no attack x none, seed 0, run now"
    assert found.disk is None, "nobody knows how large its cells are"
    said = printed(found)
    assert "tiny-v1: 9 cells to run, 0 in the store already" in said
    (row,) = [line.split() for line in said.splitlines() if " logit " in line]
    assert row == ["attacked", "logit", "0-1,", "3", "0", "3"], "seeds, stored, to run"


def test_nothing_is_cut_off_at_80_columns(tmp_path: Path) -> None:
    long = "gibberish+repetition+distribution"
    found = ahead(suite("none", long, f"{long}+similarity+arithmetic"), tmp_path / "store")
    out = StringIO()
    print_run_plan(Console(file=out, width=80, force_terminal=True, no_color=True, highlight=False), found)
    table = out.getvalue().partition("cells for")[2]
    assert "\N{HORIZONTAL ELLIPSIS}" not in table
    assert all(word in table for word in ("attack ", "swarm", "defense", "seeds", "stored", "to run"))
    assert "etic" in table, "a long name goes on in the next line, to its end"


def test_attacks_with_equal_cells_share_a_table(tmp_path: Path) -> None:
    of = load_suite("standard-v2")
    said = printed(look_ahead(of, of.cells("cpu", "float32", 2), Store(tmp_path / "store")))
    total, *tables = said.split("\n\n")
    assert total.startswith("standard-v2: 195 cells to run")
    assert sum(len(table.splitlines()) for table in tables) < 30
    (attacks,) = [table.splitlines() for table in tables if "contrast(attack='own')" in table]
    assert attacks[0] == "cells for each of the attacks"
    assert "  vertical: auto" in attacks
    to_run = [int(line.split()[-1]) for line in said.splitlines() if line.split()[-2:-1] == ["0"]]
    assert set(to_run) == {5}, "cells of each kind, one per seed"


def test_without_records_a_reference_machine_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_plan, "measure", lambda spec: pytest.fail("nobody asked for it"))
    of = load_suite("smoke")
    found = look_ahead(of, of.cells("cpu", "float32", 2), Store(tmp_path / "store"))
    units = 3 * (60 * 32 * 12 + EVALUATED * (3 * 512 + 2048))
    assert found.estimate.seconds.low == pytest.approx(units * 2.9e-3)
    assert found.estimate.seconds.high == pytest.approx(units * 3.8e-3 * 1.6 * (1 + 1 + 1.25) / 3), "a defense may cost"
    assert found.estimate.source.startswith("at the pace of two idle cores")
    said = printed(found)
    assert " min to " in said
    assert "not known" not in said
    one_thread = look_ahead(of, of.cells("cpu", "float32", 1), Store(tmp_path / "store")).estimate.seconds
    assert one_thread.low == found.estimate.seconds.low
    assert one_thread.high == pytest.approx(2 * found.estimate.seconds.high), "one thread takes at most twice as long"


def test_every_released_suite_of_built_in_models_has_a_reference_pace() -> None:
    released = (
        "smoke", "trial", "standard-v1", "standard-v2", "heterogeneous-v1", "averaging-v1", "pipeline-v1",
        "truth-v1", "rewards-v1", "every-attack",
    )  # fmt: skip
    for name in released:
        for spec in load_suite(name).cells("cpu", "float32", 2):
            assert reference_pace(spec) is not None, f"{name}: {spec.label}; measure {setting_of(spec)}"


def test_a_judge_that_rewards_takes_longer_and_another_one_an_unknown_time() -> None:
    spec = load_suite("smoke").cells("cpu", "float32", 2)[0]

    def pace(**judge: str) -> Span | None:
        swarm = replace(spec.swarm, reward="judge", reward_judge=RewardJudgeSpec(**judge))
        return reference_pace(replace(spec, swarm=swarm))

    plain, judged = reference_pace(spec), pace()
    assert plain is not None
    assert judged is not None
    assert (judged.low / plain.low, judged.high / plain.high) == pytest.approx((2.0, 4.5))
    assert pace(model="other") is None
    assert pace(endpoint="http://localhost:1/v1") is None


def test_what_nobody_measured_is_said(tmp_path: Path) -> None:
    found = ahead(suite("none"), tmp_path / "store")
    assert (found.estimate.seconds.high, found.estimate.unknown) == (0.0, 2)
    assert "how long the rounds take is not known; --measure runs two of them here" in printed(found)


def test_cells_with_another_number_of_threads_are_named(tmp_path: Path) -> None:
    of = suite("none", "logit", rounds=1)
    run(of, tmp_path)
    asked = of.cells("cpu", "float32", 3)
    note = "3 of these exist with --threads 1; add it to reuse them"
    planned = look_ahead(of, asked, Store(tmp_path))
    assert planned.note == note
    assert note in printed(planned)
    more = suite("none", "logit", "blacklist", rounds=1)
    watcher = Watcher(stop_after=0)
    with pytest.raises(KeyboardInterrupt):
        run_suite(more, more.cells("cpu", "float32", 3), Store(tmp_path), watcher)
    assert note in watcher.notes, "and the fourth is new with any number"
    assert look_ahead(of, cells(of), Store(tmp_path)).note == ""


def test_finished_and_begun_cells_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", -1.0)
    run(suite(), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(suite("logit", kind=Attacked), tmp_path, Watcher(stop_after=2))
    monkeypatch.setattr(run_plan, "measure", lambda spec: pytest.fail("records tell the pace"))
    before = files(tmp_path)
    found = ahead(suite("none", "logit", "blacklist"), tmp_path)
    assert files(tmp_path) == before, "a plan writes nothing"
    assert [(stage.spec.defense, stage.done) for stage in found.stages] == [("logit", 2), ("blacklist", 0)]
    assert found.estimate.source == "measured on 2 stored cells of this machine"
    size = sum(path.stat().st_size for path in tmp_path.glob("cells/*/*") if path.suffix in {".json", ".parquet"})
    assert found.disk == 2 * size, "two of four equal cells are there"
    said = printed(found)
    assert "seed 0 at round 2" in said
    assert f"about {2 * size / 1e6:.1f} MB on disk in the end" in said


def test_an_estimate_follows_from_records_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(suite(), tmp_path)
    read = Store.records

    def slower(store: Store) -> list[Record]:
        seconds = {"attack": 40.0, "control": 20.0}
        return [r.model_copy(update={"seconds": {"sample": seconds[r.cell["role"]]}}) for r in read(store)]

    monkeypatch.setattr(Store, "records", slower)
    of = suite(seeds=(0, 1, 2, 3, 4))

    def middle(workers: int) -> float:
        seconds = ahead(of, tmp_path, workers=workers).estimate.seconds
        assert (seconds.low / 0.8) == pytest.approx(seconds.high / 1.25)
        return seconds.high / 1.25

    assert middle(1) == pytest.approx(4 * 60.0, rel=0.2), "four more of a control and an attack"
    two, eight = (middle(workers) for workers in (2, 8))
    assert two == pytest.approx(120.0, rel=0.05), "whoever is free takes the next cell, those of 40 s first"
    assert eight == pytest.approx(40.0, rel=0.05), "a cell is worked on by one process"
    played: list[CellSpec] = []
    measure = run_plan.measure
    monkeypatch.setattr(run_plan, "measure", lambda spec: (played.append(spec), measure(spec))[1])
    monkeypatch.setattr(provenance, "_processor", lambda: "another one")
    assert ahead(of, tmp_path, play=True).estimate.source.startswith("measured on the second round of")
    assert len(played) == 1, "records of another processor tell nothing of this one"


def test_the_seconds_of_a_stored_rehearsal_are_kept_apart(tmp_path: Path) -> None:
    run(suite(), tmp_path)
    (record,) = (each for each in Store(tmp_path).records() if each.cell["role"] == "attack")
    for attack, seconds, rehearsed in (("auto", 10.0, 90.0), ("text", 100.0, None)):
        told = record.model_copy(
            update={"seconds": {"sample": 10.0, "rehearse": 90.0}, "cell": record.cell | {"attack": attack}}
        )
        spec = cell_of(told)
        assert spec is not None
        (measured,) = measured_here([told], [spec])
        assert (measured.seconds, measured.rehearsed) == (seconds, rehearsed)


@pytest.mark.slow
def test_a_run_is_told_what_the_store_has_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Watcher(), Watcher()
    run(suite(), tmp_path, first)
    run(suite(seeds=(0, 1)), tmp_path, second)
    assert first.measured == [], "nothing yet"
    assert {each.spec for each in second.measured} == set(first.missing)
    assert all(each.seconds > 0 for each in second.measured)
    monkeypatch.setattr(provenance, "_processor", lambda: "another one")
    third = Watcher()
    run(suite(seeds=(0, 1, 2)), tmp_path, third)
    assert third.measured == [], "records of another processor tell nothing of this one"


def test_kept_weights_are_counted(tmp_path: Path) -> None:
    run(suite(kind=Attacked, recorded=(1,)), tmp_path)
    of = suite(kind=Attacked, recorded=(1, 3), seeds=(0, 1))
    found = ahead(of, tmp_path)
    assert [(stage.spec.seed, stage.total) for stage in found.stages] == [(0, 3), (1, 3)], (
        "round 3 keeps no weights yet"
    )
    weights = next(tmp_path.rglob("round-*")).stat().st_size
    assert found.disk is not None
    assert found.disk > 4 * weights, "two rounds of two cells"


def test_a_finished_suite_takes_no_time(tmp_path: Path) -> None:
    run(suite(), tmp_path)
    found = ahead(suite(), tmp_path)
    assert (found.stages, found.estimate.seconds.high) == ((), 0.0)
    assert "0 cells to run, 2 in the store already" in printed(found)
    assert "about 0 s" not in printed(found)


def test_a_mistake_is_found_by_a_plan_too(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="requires seeds from a beacon"):
        ahead(suite("seed_replay", swarm=replace(tiny.SWARM, seeds="announced")), tmp_path)


def test_a_plan_says_how_many_seeds_tell_a_gap_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_plan, "measure", lambda spec: MeasuredCell(spec, 100.0, 1.0))
    of = handmade.suite(attacks=(handmade.TEXT,), seeds=(0, 1, 2, 3, 4))
    assumed = ahead(of, tmp_path / "none")
    assert assumed.resolution == Resolution(5, 1, ASSUMED_SPREAD, 0)
    said = printed(assumed)
    assert "a standard deviation of 0.08 over seeds (assumed)" in said
    needed, chance = seeds_needed(0.1, 0.08, 1), power(0.1, 0.08, 5, 1)
    sentence = f"found in {chance:.0%} of runs with 5 seeds; to find it in 80% of runs, use {needed} seeds"
    assert f"a difference of 0.10: {sentence}" in said
    out = StringIO()
    print_run_plan(Console(file=out, width=200), assumed, gaps=[0.07])
    assert "a difference of 0.07" in out.getvalue()
    assert "a difference of 0.10" not in out.getvalue(), "the user's gap stands alone"
    unranked = ahead(replace(of, utility=False), tmp_path / "none")
    assert unranked.resolution is None, "where nothing is ranked nothing is told apart"


def test_the_spread_is_measured_where_the_store_has_seeds(tmp_path: Path) -> None:
    """Harm prevented 0.9, 0.8, 0.7 by logit and 0.5 at each seed by similarity; undefended 0.8."""

    def numbers(cell: CellSpec) -> handmade.Numbers:
        left = {"none": 0.8, "logit": 0.08 * (1 + cell.seed), "similarity": 0.4}.get(cell.defense, 0.0)
        return handmade.Numbers(asr=left if cell.role == "attack" else 0.0)

    of = handmade.suite(attacks=(handmade.TEXT,), seeds=(0, 1, 2))
    spread = spread_over_seeds(handmade.comparisons(handmade.store(tmp_path, of, numbers)))
    assert spread == (pytest.approx((0.02 / 4) ** 0.5), 4), "squares add to 0.02, over two degrees each; no oracle"
