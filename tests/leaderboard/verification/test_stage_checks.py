"""Stage checks on the leaderboard: they are submitted, published, verified and shown where the node is a pipeline."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.bench import tiny
from tests.bench.averaging.test_averaging import suite as averaging_suite
from tests.bench.pipeline.test_pipeline import suite as pipeline_suite
from tests.leaderboard import made_entries
from tests.leaderboard.tiny_entries import CHEATS, NUMERICS, Made, copied, made, resigned
from tests.leaderboard.tiny_entries import suite as completions_suite
from thiefbench import registry
from thiefbench.defenses.stages.base import StageView
from thiefbench.errors import UsageError
from thiefbench.leaderboard import submit
from thiefbench.leaderboard.cell_scores import OF_COMPLETIONS, CellScores, trimmed
from thiefbench.leaderboard.checking.check_rule import RuleSubject, check_rule
from thiefbench.leaderboard.defense_kinds import check_fits, kind_named, kind_of
from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.isolation.isolated import DefenseError
from thiefbench.leaderboard.isolation.isolated_stage_check import IsolatedStageCheck
from thiefbench.leaderboard.isolation.limits import STAGE_CHECK_CAPS
from thiefbench.leaderboard.publishing import publish
from thiefbench.leaderboard.site.entry_page import shown_entry
from thiefbench.leaderboard.site.judging import read
from thiefbench.leaderboard.site.writing import write_site
from thiefbench.leaderboard.verification.pipelines import StagesError, check_stages
from thiefbench.leaderboard.verification.verdict import Verification
from thiefbench.leaderboard.verification.verify import VerifyOptions, verify
from thiefbench.pipeline.report import StageRow
from thiefbench.suite.analysis.stages import stage_curves, stage_scores, stages_table, stored_stages
from thiefbench.suite.scenario import Suite
from thiefbench.suite.store.records import file_sha256
from thiefbench.suite.store.tables import TableLimit
from thiefbench.tasks.sandbox import SandboxUnavailable
from thiefbench.testing.contracts.stage_check import views_of_run

RULES = Path(__file__).parents[1] / "stage_rules.py"
MONITOR = "recomputation(share=0.5)"


def suite(**changes: Any) -> Suite:
    """Five cells at one seed, of two rounds each, in which stages are skipped and lost."""
    return pipeline_suite(placebo=True, utility=True, seeds=(0,), **({"skip": 0.25, "losses": 0.3} | changes))


@pytest.fixture(scope="module")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """An entry of a built-in stage check, whose suite counts as released while these tests run."""
    with pytest.MonkeyPatch.context() as patch:
        yield made(tmp_path_factory.mktemp("recomputation"), MONITOR, patch, of=suite())


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """An entry of the anchor that knows which stage is malicious."""
    with pytest.MonkeyPatch.context() as patch:
        yield made(tmp_path_factory.mktemp("oracle"), "oracle", patch, of=suite(), baseline=True)


@pytest.fixture(scope="module")
def of_user(tmp_path_factory: pytest.TempPathFactory, built_in: Made) -> Iterator[Made]:
    """An entry of a user's file, measured against the same shared cells, which are published before."""
    folder = tmp_path_factory.mktemp("steady")
    store = built_in.folder.parents[1] / "store"
    publish(suite(), store, folder / "shared")
    with pytest.MonkeyPatch.context() as patch:
        yield made(folder, f"{RULES}:Steady(share=1.0)", patch, of=suite(), store=store, shared=folder / "shared")


@pytest.fixture(scope="module")
def jail() -> Iterator[None]:
    """A working sandbox with torch, whose worker stays warm."""
    try:
        warm = IsolatedStageCheck(f"{RULES}:Steady")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield
    warm.close()


def verified(of: Made, **asked: Any) -> Verification:
    options = {"archive": of.archive, "reruns": 0, "fresh": 0, "shared": of.shared, "secret": b"s" * 32} | asked
    return verify(
        of.folder, VerifyOptions(**options), lambda finding: None, lambda what: lambda done, total: None, list
    )


# --- built-in ones ---


def test_an_entry_says_what_became_of_stages_and_nothing_of_completions(built_in: Made) -> None:
    own = [cell for cell in built_in.entry.cells if cell.defense == MONITOR]
    assert {cell.role for cell in own} == {"attack", "control"}
    for cell in own:
        assert {"stage_false_rejection_rate", "recomputed_share", "altered_rounds"} <= cell.scores.keys()
    assert all(not set(OF_COMPLETIONS) & cell.scores.keys() for cell in built_in.entry.cells)
    assert all(cell.stages_sha256 and not cell.exchanges_sha256 for cell in built_in.entry.cells)
    assert "stages_sha256" not in built_in.entry.manifest.machine


def test_its_scores_follow_from_its_archive(built_in: Made) -> None:
    found = verified(built_in)
    assert (found.verdict, found.reasons) == ("rescored", ("no cell was run again",))


@pytest.mark.slow
def test_a_comparison_run_again_is_bit_equal(built_in: Made) -> None:
    found = verified(built_in, reruns=1)
    assert {each.kind for each in found.reruns} == {"own", "undefended", "placebo", "control"}
    assert all(each.equal for each in found.reruns), found.reasons


def test_its_row_and_its_page_show_what_applies(built_in: Made, tmp_path: Path) -> None:
    judged = read(built_in.folder, tmp_path)
    rates = [cell.scores["stage_false_rejection_rate"][0] for cell in built_in.entry.own]
    shown_rate = judged.numbers.false_rejection
    assert shown_rate is not None
    assert shown_rate.value == max(rate for rate in rates if rate is not None), "of stages, and not of completions"
    shown = {one["title"] for one in shown_entry(judged)["maps"]}
    assert {"Honest stages rejected", "Work repeated"} <= shown
    assert not {"Stop rate", "False rejection", "Vectors stopped"} & shown
    written = write_site(tmp_path / "site", built_in.folder.parent, tmp_path, built_in.shared)
    assert written.broken == ()
    (board,) = written.suites
    assert [row.row.defense for row in board.rows if row.own] == ["mine"]
    assert "Honest stages rejected" in next((tmp_path / "site").rglob("mine*.html")).read_text()


def forged(of: Made, folder: Path, rescored: bool, place: int = 0, role: str = "attack", **changes: Any) -> Made:
    """A copy whose own cell says something else of one stage in one round, with everything signed again.

    Args:
        of: a true entry.
        folder: to be made.
        rescored: whether the record's scores and curves are made to fit.
        place: of the row.
        role: of the cell.
        changes: to the row.
    """
    store = copied(of, folder / "store")

    def edited(cell: CellScores) -> CellScores:
        if (cell.role, cell.defense) != (role, of.entry.manifest.defense):
            return cell
        directory = store.cell(cell.cell_id)
        rows = stored_stages(directory, TableLimit())
        rows[place] = replace(rows[place], **changes)
        record = directory.read()
        assert record is not None
        digest = directory.write_stages(stages_table(rows))
        edits: dict[str, Any] = {"provenance": record.provenance | {"stages_sha256": digest}}
        if rescored:
            edits["scores"] = record.scores | stage_scores(rows, record.curves["eval_asr"])
            edits["curves"] = record.curves | stage_curves(rows)
        record = record.model_copy(update=edits)
        directory.write(record)
        drift = {name: score for name, score in cell.scores.items() if name in ("drift", "divergence")}
        again = trimmed(record, cell.part, True, file_sha256(directory.record_path))
        return again.model_copy(update={"scores": again.scores | drift})

    return resigned(of, folder, store, [edited(cell) for cell in of.entry.cells])


@pytest.mark.parametrize(
    ("changes", "rescored", "reason"),
    [
        ({"action": "reject"}, False, "stage_false_rejection_rate does not follow from its completions"),
        ({"stage": 4}, True, "its stages are not those of its rounds"),
        ({"malicious": None}, False, "is incomplete: a stage has no malicious"),
        ({"malicious": True}, True, "other labels than its seed gives"),
        ({"lost": True}, True, "other labels than its seed gives"),
        ({"action": "melt"}, True, "a stage check gives no verdict 'melt'"),
        ({"altered": True}, True, "an honest stage that changed its weights"),
        ({"refused": 1}, True, "only a malicious stage's activations are refused"),
        ({"refused": -1}, False, "refused_passes does not follow from its completions"),
        ({"bytes": -1}, True, "a count that no run gives"),
        ({"passes": 9}, True, "another number of passes"),
        ({"skipped": 1, "passes": 0}, True, "passes that skipped a stage which none skips"),
        ({"moved": float("inf")}, False, "moved"),
        ({"score": float("inf")}, True, "a score that is not finite"),
        ({"reason": "x" * 501}, True, "a reason of more than 500 characters"),
        ({"refusal": "missing"}, True, "only a malicious stage's activations are refused"),
        ({"bytes": 0}, True, "other bytes than the passes that it sent have"),
    ],
)
def test_stages_that_no_run_leaves_are_rejected(
    built_in: Made, tmp_path: Path, changes: dict[str, Any], rescored: bool, reason: str
) -> None:
    found = verified(forged(built_in, tmp_path, rescored, **changes))
    assert found.verdict == "rejected"
    assert reason in found.reasons[0], found.reasons


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda row: {"passes": row.passes + row.skipped, "skipped": 0, "bytes": 1}, "of the stages skip every pass"),
        (lambda row: {"passes": 50 * row.passes, "skipped": 50 * row.skipped}, "more passes than the completions"),
        (lambda row: {"bytes": row.bytes + (row.stage == 4)}, "other bytes than the passes"),
    ],
)
def test_counts_of_all_stages_that_no_run_leaves_are_rejected(
    built_in: Made, change: Callable[[StageRow], dict[str, Any]], reason: str
) -> None:
    store = copied(built_in, built_in.folder.parent / reason.replace(" ", "-"))
    own = next(each for each in built_in.entry.cells if (each.role, each.defense) == ("attack", MONITOR))
    rows = stored_stages(store.cell(own.cell_id), TableLimit())
    spec = replace(tiny.cell(suite()), defense=MONITOR)
    learned = dict.fromkeys((1, 2), 16)
    check_stages(spec, rows, learned)
    with pytest.raises(StagesError, match=reason):
        check_stages(spec, [replace(row, **change(row)) for row in rows], learned)


def test_a_forged_verdict_is_found_where_the_cell_is_run_again(built_in: Made, tmp_path: Path) -> None:
    own = forged(built_in, tmp_path, True, place=4, score=0.5, reason="it looked odd")
    assert verified(own).verdict == "rescored", "weights are not stored, so nothing else can tell"
    found = verified(own, reruns=1)
    assert found.verdict == "rejected"
    assert "its stages differ from round 2 on, stage 1" in found.reasons[0]


def test_an_archive_without_its_stages_is_rejected(built_in: Made, tmp_path: Path) -> None:
    store = copied(built_in, tmp_path / "store")
    cells = [cell.model_copy(update={"stages_sha256": ""}) for cell in built_in.entry.cells]
    found = verified(resigned(built_in, tmp_path, store, cells))
    assert found.verdict == "rejected"
    assert "stages_sha256" in found.reasons[0]


def test_a_table_of_other_columns_is_no_table_of_stages(built_in: Made, tmp_path: Path) -> None:
    store = copied(built_in, tmp_path / "store")
    cell = built_in.entry.cells[0]
    path = store.cell(cell.cell_id).stages_path
    pq.write_table(pq.read_table(path).drop(["bytes"]), path)
    cells = [cell.model_copy(update={"stages_sha256": file_sha256(path)}), *built_in.entry.cells[1:]]
    found = verified(resigned(built_in, tmp_path, store, cells))
    assert "does not have the columns of stored stages: bytes" in found.reasons[0]


# --- the oracle ---


@pytest.mark.slow
def test_the_oracle_replaces_the_malicious_stage_and_its_cells_rise_like_any_others(oracle: Made) -> None:
    (attacked,) = [cell for cell in oracle.entry.cells if (cell.role, cell.defense) == ("attack", "oracle")]
    assert attacked.scores["caught_round"][0] == 1
    assert attacked.scores["altered_rounds"][0] == attacked.scores["stage_false_rejection_rate"][0] == 0
    found = verified(oracle, reruns=1)
    assert found.reruns and all(each.equal for each in found.reruns), (found.verdict, found.reasons, found.flags)


@pytest.mark.parametrize(
    ("place", "changes"),
    [
        (1, {"action": "accept", "reason": ""}),
        (0, {"action": "reject", "reason": "labelled as malicious"}),
        (1, {"reason": "it looked odd"}),
        (0, {"score": 0.5}),
        (0, {"recomputed": True}),
    ],
)
def test_an_oracle_that_does_not_follow_the_labels_is_rejected(
    oracle: Made, tmp_path: Path, place: int, changes: dict[str, Any]
) -> None:
    found = verified(forged(oracle, tmp_path, True, place, **changes))
    assert found.verdict == "rejected"
    assert re.search("the oracle (rejects exactly the malicious stage|gives no score)", found.reasons[0]), found.reasons


def test_a_cell_without_a_check_has_no_verdicts() -> None:
    of = suite()
    spec = tiny.cell(of, "control")
    plain = StageRow(1, 1, False, False, False, 4, 0, 0, "", "accept", None, "", False, 0.1, 9)
    rows = [replace(plain, round=number, stage=stage) for number in (1, 2) for stage in (1, 2, 3, 4)]
    bare = replace(spec, pipeline=replace(of.pipeline, losses=0.0, skip=0.0))  # type: ignore[type-var]
    check_stages(bare, rows)
    with pytest.raises(StagesError, match="round 1, stage 1: a verdict, but there is no stage check"):
        check_stages(bare, [replace(rows[0], score=0.0), *rows[1:]])


# --- users' files ---


@pytest.mark.slow
def test_a_users_file_is_measured_against_published_cells_and_runs_again_in_the_sandbox(
    of_user: Made, jail: None
) -> None:
    assert len(of_user.entry.published) == 3, "control, placebo and undefended"
    assert of_user.entry.manifest.defense == "defense/stage_rules.py:Steady(share=1.0)"
    found = verified(of_user, reruns=1, fresh=1)
    own = {(each.kind, each.equal) for each in found.reruns if each.kind == "own" and each.seed == 0}
    assert own == {("own", True)}, found.reasons
    assert found.flags == ()


def test_in_the_sandbox_it_gives_what_it_gives_here(jail: None) -> None:
    isolated, here = IsolatedStageCheck(f"{RULES}:Steady"), registry.make("defense", f"{RULES}:Steady")
    given = [[check.check(view) for view in seen()] for check in (isolated, here)]
    assert given[0] == given[1]
    assert copy.deepcopy(isolated).state() == isolated.state() == {"seen": 6}


def seen() -> list[StageView]:
    """Rounds of one stage: usual ones, one in which it is silent, and one after it was recovered."""
    views = list(views_of_run(6))
    views[2] = replace(views[2], received=None, sent=None, gradient=None)
    views[4] = replace(views[4], before_recovery=views[4].before + 1)
    return views


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("nothing", "check gave None, which is not a StageVerdict"),
        ("unsure", "gave a verdict whose score is not a finite number"),
        ("invents", "gave a verdict 'melt'; it is one of accept, reject"),
        ("talks", "gave a verdict whose reason is not text of at most 500 characters"),
        ("halves", "gave a verdict whose reason is not text"),
        ("asks", "more than 10 questions about a stage's round"),
        ("writes", "it changed a tensor of its view"),
        ("reads", "hostile.py"),
        ("connects", "failed in check"),
        ("leaves", "ended its own process in check"),
    ],
)
def test_what_is_no_verdict_is_one_sentence(jail: None, how: str, message: str) -> None:
    guest = IsolatedStageCheck(f"{RULES}:Faulty(how={how!r})")
    view = next(views_of_run(1))
    for _ in range(2):
        with pytest.raises(DefenseError, match=message):
            guest.check(view)


def test_a_check_that_fails_in_a_cell_is_the_cells_error(tmp_path: Path, jail: None) -> None:
    findings = list(check_rule(RuleSubject(f"{RULES}:Faulty(how='leaves')", "stage_check")))
    assert findings[-1].question == "a verdict on every stage in every round"
    assert "ended its own process" in findings[-1].detail


def test_a_defense_against_completions_is_no_stage_check(jail: None) -> None:
    with pytest.raises(registry.SpecStringError, match="there is no stage_check named 'blacklist'"):
        IsolatedStageCheck("blacklist")
    with pytest.raises(DefenseError, match=r"Hears is not a subclass of .*StageCheck"):
        IsolatedStageCheck(f"{CHEATS}:Hears")


def test_time_is_limited(jail: None) -> None:
    caps = replace(STAGE_CHECK_CAPS, questions=10**9, service_seconds=0.0)
    with pytest.raises(DefenseError, match="answers took more than 0 seconds"):
        IsolatedStageCheck(f"{RULES}:Faulty(how='asks')", caps).check(next(views_of_run(1)))


# --- the check ---


@pytest.mark.slow
@pytest.mark.parametrize("spec", [f"{RULES}:Steady", "stage_monitor", "recomputation", "neighbour_distance"])
def test_the_check_asks_the_rules_of_the_contract(jail: None, spec: str) -> None:
    findings = list(check_rule(RuleSubject(spec, "stage_check")))
    assert {finding.status for finding in findings} == {"ok"}, findings
    assert "s of at most 60 s for a stage among 4" in findings[-1].detail


@pytest.mark.parametrize("unsafe", [False, True])
def test_the_check_says_which_rule_is_broken(jail: None, unsafe: bool) -> None:
    findings = list(check_rule(RuleSubject(f"{RULES}:Faulty(how='invents')", "stage_check", unsafe)))
    assert findings[-1].question == "a verdict on every stage in every round"
    assert findings[-1].status == "FAILED"


def test_a_stage_check_is_recognised_without_being_loaded(tmp_path: Path) -> None:
    mine, both = tmp_path / "mine.py", tmp_path / "both.py"
    line = "from thiefbench.defenses.stages.base import StageCheck\n"
    mine.write_text(f"{line}raise RuntimeError('loaded')\n")
    both.write_text(f"{line}from thiefbench.defenses.aggregation.base import Aggregation\n")
    assert kind_named(f"{mine}:Rule") == kind_named("stage_monitor(decay=0.5)") == "stage_check"
    with pytest.raises(UsageError, match="has aggregations and stage checks"):
        kind_named(f"{both}:Rule")
    with pytest.raises(UsageError, match="stage checks do not compose"):
        kind_named("stage_monitor+recomputation")


# --- which suite takes what ---


def test_a_suite_takes_what_checks_its_stages() -> None:
    line, weights, completions = suite(), averaging_suite(), completions_suite()
    monitor, logit, krum, none = (registry.make("defense", n) for n in ("stage_monitor", "logit", "krum", "none"))
    assert (kind_of(line), kind_of(weights), kind_of(completions)) == ("stage_check", "aggregation", "defense")
    check_fits(line, monitor, "stage_monitor")
    check_fits(line, none, "none")
    check_fits(line, registry.make("defense", "oracle"), "oracle")
    with pytest.raises(EntryError, match=r"pipeline of stages, and logit inspects completions; submit a stage check"):
        check_fits(line, logit, "logit")
    with pytest.raises(EntryError, match=r"krum is an aggregation.*write --suite averaging-v1"):
        check_fits(line, krum, "krum")
    for other in (weights, completions):
        with pytest.raises(EntryError, match=r"stage_monitor is a stage check.*write --suite pipeline-v1"):
            check_fits(other, monitor, "stage_monitor")


def test_submit_refuses_what_does_not_fit_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_entries.tiny(suite(), monkeypatch)
    credits = submit.credits_of("Mine", "A. Author", "")
    with pytest.raises(EntryError, match="logit inspects completions; submit a stage check"):
        submit.prepare("logit", credits, suite(), NUMERICS, tmp_path / "store", tmp_path / "entries")
    assert submit.released("pipeline-v1").title == "pipeline-v1"
    assert "the repeated work" in submit.caps(suite())


@pytest.mark.parametrize("unsafe", [False, True])
@pytest.mark.parametrize(
    ("requires", "said"),
    [
        ("frozenset()", 'a stage check requires "pipeline"'),
        ("frozenset({'pipeline', 'judge'})", "it requires judge, which no swarm of its kind gives; remove that"),
    ],
)
def test_the_check_reads_what_it_requires(tmp_path: Path, jail: None, unsafe: bool, requires: str, said: str) -> None:
    file = tmp_path / "wants.py"
    file.write_text(
        "from thiefbench.defenses.stages.base import StageCheck, StageVerdict\n\n\nclass Wants(StageCheck):\n"
        f"    name = 'wants'\n    requires = {requires}\n\n    def check(self, view):\n"
        "        return StageVerdict('accept')\n"
    )
    findings = list(check_rule(RuleSubject(f"{file}:Wants", "stage_check", unsafe)))
    assert (findings[-1].question, findings[-1].status) == ("can be constructed from its spec string, twice", "FAILED")
    assert findings[-1].detail.startswith(said)
