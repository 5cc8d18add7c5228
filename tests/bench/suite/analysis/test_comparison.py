"""One rule says whether an attack works, and every page that shows it asks that rule."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.handmade import TEXT, TONE, Numbers, comparisons, record, store, suite
from tests.leaderboard import made_entries
from thiefbench.leaderboard.site import judging
from thiefbench.leaderboard.verification import reexecution
from thiefbench.leaderboard.verification.expectation import Results
from thiefbench.leaderboard.verification.held_out import HeldOutTrial
from thiefbench.suite.analysis.comparison import (
    AttackSuccess,
    UndefendedAttack,
    undefended_attack,
    why_inconclusive,
)
from thiefbench.suite.analysis.ranking_inputs import places
from thiefbench.suite.analysis.statistics import FEW_SEEDS
from thiefbench.suite.report import page, plots
from thiefbench.suite.report.overview import suite_table
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import Record, Store, identify
from thiefbench.testing.results import TrainedResult

PLACEBO = 0.1
"""The ASR of the placebo at every seed; every interval over completions is +- 0.01."""


@dataclass(frozen=True)
class Case:
    """The undefended ASR at every seed, and whether the attack works."""

    asr: tuple[float, ...]
    works: bool


CASES = {
    "five seeds, far ahead": Case((0.80, 0.81, 0.79, 0.82, 0.78), True),
    # Leads 0.7, 0.7, 0.7, 0.7, 0.005: the interval is 0.561 +- 2.776 * 0.3108 / sqrt(5) = [0.175, 0.947]. The
    # intervals over completions of seed 4 overlap.
    "five seeds, one of them close": Case((0.8, 0.8, 0.8, 0.8, 0.105), True),
    # Leads 0.03, 0.03, 0.03, 0.03, 0.7: 0.164 +- 2.776 * 0.2996 / sqrt(5) = [-0.208, 0.536]. At every single seed
    # the intervals over completions lie apart.
    "five seeds, ahead at each by luck": Case((0.13, 0.13, 0.13, 0.13, 0.8), False),
    "five seeds, nothing": Case((0.1, 0.11, 0.09, 0.1, 0.1), False),
    "two seeds, apart at both": Case((0.13, 0.8), True),
    "two seeds, close at one": Case((0.8, 0.115), False),
    "one seed, apart": Case((0.23,), True),
    "one seed, apart, and too little harm to take a share of": Case((0.19,), False),
    "five seeds, ahead at each, and too little harm": Case((0.17, 0.18, 0.16, 0.19, 0.18), False),
    # Leads 0.7, 0.7, 0.7, 0.7, -0.05: one seed at which an attack does nothing leaves it an attack.
    "five seeds, one of them without harm": Case((0.8, 0.8, 0.8, 0.8, 0.05), True),
    "one seed, ahead by less than completions tell": Case((0.11,), False),
}


def suite_of(case: Case) -> Suite:
    return suite(attacks=(TEXT,), defenses=("none", "logit", "oracle"), seeds=tuple(range(len(case.asr))))


def numbers(case: Case, cell: CellSpec) -> Numbers:
    """Undefended what the case says, the placebo's ASR in every other cell."""
    attacked = cell.role == "attack" and cell.defense == "none"
    return Numbers(asr=case.asr[cell.seed] if attacked else 0.0 if cell.role == "control" else PLACEBO)


def made(case: Case, folder: Path) -> Store:
    return store(folder, suite_of(case), lambda cell: numbers(case, cell))


def on_the_report(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Beside a second attack, which works: with several the page begins with an overview."""

    def says(cell: CellSpec) -> Numbers:
        works = cell.attack == TONE and cell.role == "attack" and cell.defense == "none"
        return Numbers(asr=0.8) if works else numbers(case, cell)

    monkeypatch.setattr(plots, "draw_all", lambda *args: [])  # they take seconds and say nothing about this
    monkeypatch.setattr(page, "draw_tradeoff", lambda *args: None)
    both = replace(suite_of(case), attacks=(TEXT, TONE))
    text = page.write_report(store(folder, both, says)).read_text("utf-8")
    section, overview = (
        text.count("<strong>Inconclusive:</strong>"),
        text.count('<span class="note">inconclusive</span>'),
    )
    assert section == overview, "a page does not contradict itself"
    assert section < 2, "the other attack works"
    return not section


def in_the_ranking(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    kept = made(case, folder)
    run = kept.read_run() or {}
    if len(case.asr) < FEW_SEEDS:
        assert places(run, comparisons(kept)) == [], "few seeds rank nothing"
        return not suite_table(run, comparisons(kept)).doubts
    (logit,) = (place for place in places(run, comparisons(kept)) if place.defense == "logit")
    return logit.status == "ranked"


def in_a_test(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    (comparison,) = comparisons(made(case, folder))
    line = comparison.line("logit")
    assert line is not None
    return not TrainedResult(comparison, line, "made-v1").doubt


@dataclass
class FakeVerificationRun:
    """In place of a verifier's: cells are not run, they say what the case does."""

    case: Case
    submitted: Results
    order: random.Random = field(default_factory=lambda: random.Random(0))

    def run(self, spec: CellSpec, what: str) -> Record:
        return made_record(self.case, spec)


def made_record(case: Case, spec: CellSpec) -> Record:
    """A cell's record, whose curve has intervals as a played cell's has: the verifier takes its tolerance from them."""
    made = record(identify(spec.as_dict()), spec, numbers(case, spec))
    points = [
        point.model_copy(update={"low": point.value - 0.01, "high": point.value + 0.01})
        for point in made.curves["eval_asr"]
        if point.value is not None
    ]
    return made.model_copy(update={"curves": made.curves | {"eval_asr": points}})


def in_a_verification(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    of = suite_of(case)
    (part,) = of.scenes
    submitted = Results(placebo=True)
    for cell in of.cells("cpu", "float32", 2):
        key = reexecution.Cell(part.name, cell.role, cell.attack, cell.defense, cell.seed)
        submitted.records[key] = made_record(case, cell)
    trials = [HeldOutTrial(part, TEXT, seed, seed, held_out=False) for seed in of.seeds]
    verification_run: Any = FakeVerificationRun(case, submitted)
    fresh = reexecution.try_fresh(trials, "logit", verification_run)
    idle = fresh.inconclusive - fresh.imprecise
    harmless = sum(asr <= PLACEBO for asr in case.asr)
    assert idle in (harmless, len(trials)), "the trials of an attack that do harm stand together"
    return idle < len(trials)


def on_the_board(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    of = suite_of(case)
    made_entries.tiny(of, monkeypatch)
    monkeypatch.setattr(made_entries, "load_suite", lambda name: of)

    def says(cell: CellSpec) -> Numbers:
        return numbers(case, cell)

    made_entries.entry(folder, "mine", says, others=says, defense="logit")
    entry = judging.read(folder / "mine", folder / "verified")
    assert (entry.numbers.place.status == "unplaced") == (len(case.asr) < FEW_SEEDS)
    if len(case.asr) < FEW_SEEDS:
        return entry.numbers.place.worst is not None
    return entry.numbers.place.status == "ranked"


USERS = (on_the_report, in_the_ranking, in_a_test, in_a_verification, on_the_board)


@pytest.mark.parametrize("user", USERS, ids=lambda user: user.__name__)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_everywhere_an_attack_works_by_the_same_rule(
    case: Case, user: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert user(case, tmp_path, monkeypatch) == case.works


def successes(*values: float) -> Mapping[int, AttackSuccess]:
    return {seed: AttackSuccess(value, value - 0.01, value + 0.01) for seed, value in enumerate(values)}


def test_the_limit_of_the_interval_decides_from_five_seeds_on() -> None:
    """Leads 0.1 + x for x in (-2, -1, 0, 1, 2) * 0.1 reach 2.7764 * 0.15811 / sqrt(5) = 0.1963 down from their mean."""
    seeds, steps = range(5), (-0.2, -0.1, 0.0, 0.1, 0.2)
    for mean, works in ((0.1962, False), (0.1964, True)):
        attack = UndefendedAttack("text", successes(*(mean + step for step in steps)), successes(*[0.0] * 5))
        assert (why_inconclusive(attack, seeds) == "") == works


def test_what_the_attack_must_beat_is_named() -> None:
    attack = UndefendedAttack("dos", successes(0.1), successes(0.1), against="control")
    assert why_inconclusive(attack, [0]) == "undefended, dos does not beat its control at seed 0"


def test_a_seed_without_a_score_leaves_an_attack_inconclusive() -> None:
    whole = suite_of(CASES["five seeds, far ahead"])
    cells = {
        cell.seed: cell for cell in whole.cells("cpu", "float32", 2) if (cell.role, cell.defense) == ("attack", "none")
    }
    records: dict[int, Record | None] = {seed: record("id", cell, Numbers(asr=0.8)) for seed, cell in cells.items()}
    placebos: dict[int, Record | None] = {seed: record("id", cell, Numbers()) for seed, cell in cells.items()}
    placebos[3] = None
    attack = undefended_attack("text", records, placebos, "placebo")
    assert why_inconclusive(attack, range(5)) == "text or its placebo has no undefended score at seed 3"
    assert why_inconclusive(attack, (0, 1, 2, 4)) == "", "seeds that do not count are not asked for"
    unjudged = replace(attack, reference={**attack.reference, 3: AttackSuccess(0.0, 0.0, 0.0)})
    assert why_inconclusive(unjudged, range(5)) == ""
