"""The ranking of a stored run, and how its report shows it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.handmade import TEXT, Numbers, comparisons, store, suite
from tests.bench.suite.report.test_report import ATTACK, World, build, label, report, small_suite, small_world
from thiefbench.suite.analysis.ranking import Placement
from thiefbench.suite.analysis.ranking_inputs import places
from thiefbench.suite.analysis.run_comparisons import comparisons_of_run
from thiefbench.suite.analysis.statistics import SeedCount
from thiefbench.suite.report.tables import csv_text
from thiefbench.suite.scenario import CellSpec, RankingRules
from thiefbench.suite.store.records import Store
from thiefbench.testing.results import TrainedResult

STRONG, WEAK = "logit", "logit(reject='drop')"


def says(cell: CellSpec, progress: float) -> float:
    """The undefended attack succeeds, one defense stops all of it and the other less."""
    if cell.role != "attack":
        return 0.0
    return {"none": 0.9, WEAK: 0.5}.get(cell.defense, 0.0) * progress


def world_of(seeds: int = 5, **changes: Any) -> World:
    """A run in which every model ends up right."""
    wanted: dict[str, Any] = {
        "defenses": ("none", STRONG, WEAK, "oracle"), "placebo": True, "utility": True, "replayed": (),
        "seeds": tuple(range(seeds)),
    }  # fmt: skip
    return replace(
        small_world(small_suite(**(wanted | changes))), says=says, right=lambda cell, progress: progress, items={}
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of such a run at five seeds."""
    build(Store(folder := tmp_path_factory.mktemp("whole")), world_of())
    return folder


def ranking(whole: Path, folder: Path, skip: tuple[str, ...] = (), seeds: int = 5, **changes: Any) -> list[Placement]:
    """The places in a run of a smaller suite, or without the cells of `skip`; its other cells are those of `whole`."""
    store = Store(Path(shutil.copytree(whole, folder)))
    world = world_of(seeds, **changes)
    ids = build(store, world, skip=[cell.label for cell in world.suite.cells("cpu", "float32", 2)])  # the run alone
    assert all(store.cell(cell_id).record_path.exists() for cell_id in ids.values())
    for label_of_cell in skip:
        shutil.rmtree(store.cell(ids[label_of_cell]).path)
    run = store.read_run()
    assert run is not None
    return places(run, comparisons_of_run(store, run))


def test_a_run_with_all_its_cells_is_ranked_and_shown(whole: Path, tmp_path: Path) -> None:
    found = ranking(whole, tmp_path / "store")
    assert [(p.defense, p.status, p.number) for p in found] == [
        (STRONG, "ranked", 1), (WEAK, "ranked", 2), ("oracle", "anchor", None), ("none", "anchor", None),
    ]  # fmt: skip
    worst = [p.worst.summary.mean for p in found if p.worst]
    assert worst[0] == 1.0
    assert 0.2 < worst[1] < 0.7
    assert worst[3] == 0.0, "without a defense nothing is prevented"
    _, page = report(Store(tmp_path / "store"))
    shown = {row[0]: row[1:] for row in page.rows if len(row) == 3}
    assert shown[STRONG][0] == "1"
    assert shown[STRONG][1].startswith("1.00 (5 of 5 seeds, \u2265 0.55) against text(")
    assert shown["none"][0] == "anchor"


def test_one_weak_seed_leaves_every_row_its_score(tmp_path: Path) -> None:
    """Undefended 0.8 at four seeds and nothing at the fifth: the ratio of means is over 0.64."""

    def numbers(cell: CellSpec) -> Numbers:
        if cell.role != "attack":
            return Numbers()
        left = {"none": 0.8, "logit": 0.08, "similarity": 0.32}.get(cell.defense, 0.0)
        return Numbers(asr=0.0 if cell.seed == 3 and cell.defense == "none" else left)

    kept = store(tmp_path, suite(attacks=(TEXT,), seeds=(0, 1, 2, 3, 4)), numbers)
    by_defense = {place.defense: place for place in places(kept.read_run() or {}, comparisons(kept))}
    for defense, prevented in (("logit", 1 - 0.08 / 0.64), ("similarity", 1 - 0.32 / 0.64), ("none", 0.0)):
        worst = by_defense[defense].worst
        assert worst is not None
        assert worst.summary.mean == pytest.approx(prevented)
    assert by_defense["logit"].number == 1
    count = by_defense["logit"].worst.summary.count  # type: ignore[union-attr]
    assert count == SeedCount(4, 4), "a seed at which the attack fails by itself shows nothing"
    (comparison,) = comparisons(kept)
    line = comparison.line("logit")
    assert line is not None
    assert TrainedResult(comparison, line, "made").harm_prevented == pytest.approx(1 - 0.08 / 0.64), "tests read it too"
    assert "0.875" in csv_text(kept.read_run() or {}, [comparison]), "and so does results.csv"


def test_below_the_least_harm_there_is_no_share(tmp_path: Path) -> None:
    def numbers(cell: CellSpec) -> Numbers:
        return Numbers(asr=0.0 if cell.role != "attack" else 0.09 if cell.defense == "none" else 0.01)

    weak = suite(attacks=(TEXT,), seeds=(0, 1, 2, 3, 4))
    for number, (rules, least) in enumerate(((RankingRules(), 0.1), (RankingRules(least_harm=0.05), 0.05))):
        kept = store(tmp_path / str(number), replace(weak, ranking=rules), numbers)
        found = {place.defense: place for place in places(kept.read_run() or {}, comparisons(kept))}
        assert found["logit"].status == ("ranked" if least == 0.05 else "inconclusive")
        assert found["logit"].reason == (
            "" if least == 0.05
            else f"undefended, {TEXT} does a mean harm of 0.090, and below 0.1 no share of it is taken"
        )  # fmt: skip


def test_a_missing_cell_takes_its_defense_out(whole: Path, tmp_path: Path) -> None:
    found = ranking(whole, tmp_path / "store", skip=(label("attack", WEAK, 1),))
    assert [(p.defense, p.status) for p in found] == [
        (STRONG, "ranked"), ("oracle", "anchor"), ("none", "anchor"), (WEAK, "unranked"),
    ]  # fmt: skip
    assert f"{ATTACK} at seed 1" in found[-1].reason


def test_a_missing_cell_without_an_attack_takes_its_defense_out(whole: Path, tmp_path: Path) -> None:
    found = ranking(whole, tmp_path / "store", skip=(label("control", STRONG, 0),))
    assert found[-1].defense == STRONG
    assert found[-1].reason.startswith("no utility without an attack at seed 0 (missing")


def test_without_a_placebo_nothing_is_conclusive(whole: Path, tmp_path: Path) -> None:
    found = ranking(
        whole, tmp_path / "store", skip=tuple(f"placebo of {ATTACK} x none, seed {seed}" for seed in (0, 1))
    )
    assert {p.status for p in found} == {"inconclusive", "anchor"}
    assert "no undefended score at seeds 0-1" in found[-1].reason


@pytest.mark.slow
def test_a_suite_without_the_cells_for_it_is_not_ranked(whole: Path, tmp_path: Path) -> None:
    assert ranking(whole, tmp_path / "a", seeds=1, utility=False) == []
    assert ranking(whole, tmp_path / "b", seeds=1, placebo=False) == []
    assert ranking(whole, tmp_path / "c", seeds=4) == [], "nor is one with few seeds"
    _, page = report(Store(tmp_path / "c"))
    assert "Nothing is ranked" in page.text
    assert "The suite has 4 seeds, and a ranking takes 5 or more." in page.text
    _, page = report(Store(tmp_path / "a"))
    assert "Ranking" not in page.text
