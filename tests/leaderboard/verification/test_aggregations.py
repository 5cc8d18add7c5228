"""Aggregations on the leaderboard: they are submitted, published, verified and shown where nodes exchange weights."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from tests.bench.averaging.test_averaging import suite as averaging_suite
from tests.leaderboard import made_entries
from tests.leaderboard.tiny_entries import CHEATS, NUMERICS, Made, copied, made, resigned
from tests.leaderboard.tiny_entries import suite as completions_suite
from thiefbench import registry
from thiefbench.leaderboard import submit
from thiefbench.leaderboard.cell_scores import OF_COMPLETIONS, CellScores, trimmed
from thiefbench.leaderboard.checking.check_rule import RuleSubject, check_rule
from thiefbench.leaderboard.defense_kinds import check_fits, kind_named, kind_of
from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.isolation.isolated import DefenseError
from thiefbench.leaderboard.isolation.isolated_aggregation import IsolatedAggregation
from thiefbench.leaderboard.isolation.limits import AGGREGATION_CAPS
from thiefbench.leaderboard.publishing import publish
from thiefbench.leaderboard.site.entry_page import shown_entry
from thiefbench.leaderboard.site.judging import read
from thiefbench.leaderboard.site.writing import write_site
from thiefbench.leaderboard.verification.verdict import Verification
from thiefbench.leaderboard.verification.verify import VerifyOptions, verify
from thiefbench.suite.analysis.exchanges import exchange_curves, exchange_scores, exchanges_table, stored_exchanges
from thiefbench.suite.scenario import Suite
from thiefbench.suite.store.records import file_sha256
from thiefbench.suite.store.tables import TableLimit
from thiefbench.tasks.sandbox import SandboxUnavailable
from thiefbench.testing.contracts.aggregation import view_of_round

RULES = Path(__file__).parents[1] / "rules.py"
CLIPPING = "centered_clipping"


def suite() -> Suite:
    """Five cells at one seed, each with two exchanges in pairs."""
    return averaging_suite(placebo=True, utility=True, seeds=(0,))


@pytest.fixture(scope="module")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """An entry of a built-in aggregation, whose suite counts as released while these tests run."""
    with pytest.MonkeyPatch.context() as patch:
        yield made(tmp_path_factory.mktemp("clipping"), CLIPPING, patch, of=suite())


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """An entry of the anchor that knows who is malicious."""
    with pytest.MonkeyPatch.context() as patch:
        yield made(tmp_path_factory.mktemp("oracle"), "oracle", patch, of=suite(), baseline=True)


@pytest.fixture(scope="module")
def of_user(tmp_path_factory: pytest.TempPathFactory, built_in: Made) -> Iterator[Made]:
    """An entry of a user's file, measured against the same shared cells, which are published before."""
    folder = tmp_path_factory.mktemp("nearby")
    store = built_in.folder.parents[1] / "store"
    publish(suite(), store, folder / "shared")
    with pytest.MonkeyPatch.context() as patch:
        yield made(folder, f"{RULES}:Nearby(least=-0.5)", patch, of=suite(), store=store, shared=folder / "shared")


@pytest.fixture(scope="module")
def jail() -> Iterator[None]:
    """A working sandbox with torch, whose worker stays warm."""
    try:
        warm = IsolatedAggregation(f"{RULES}:Nearby")
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


def test_an_entry_says_what_was_made_of_vectors_and_nothing_of_completions(built_in: Made) -> None:
    own = [cell for cell in built_in.entry.cells if cell.defense == CLIPPING]
    assert {cell.role for cell in own} == {"attack", "control"}
    for cell in own:
        assert {"vector_stop_rate", "vector_false_clip_rate", "exchange_bytes"} <= cell.scores.keys()
    assert all(not set(OF_COMPLETIONS) & cell.scores.keys() for cell in built_in.entry.cells)
    assert all(cell.exchanges_sha256 for cell in built_in.entry.cells)
    assert "exchanges_sha256" not in built_in.entry.manifest.machine


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
    rates = [cell.scores["vector_false_rejection_rate"][0] for cell in built_in.entry.own]
    shown_rate = judged.numbers.false_rejection
    assert shown_rate is not None
    assert shown_rate.value == max(rate for rate in rates if rate is not None), "of vectors, and not of completions"
    shown = {one["title"] for one in shown_entry(judged)["maps"]}
    assert {"Vectors stopped", "Honest vectors rejected"} <= shown
    assert not {"Stop rate", "False rejection"} & shown
    written = write_site(tmp_path / "site", built_in.folder.parent, tmp_path, built_in.shared)
    assert written.broken == ()
    (board,) = written.suites
    assert [row.row.defense for row in board.rows if row.own] == ["mine"]
    assert "Vectors stopped" in next((tmp_path / "site").rglob("mine*.html")).read_text()


def forged(of: Made, folder: Path, rescored: bool, of_malicious: bool = False, **changes: Any) -> Made:
    """A copy whose own attacked cell says something else of its first honest vector, with everything signed again.

    With `of_malicious`, of the first vector from a malicious node.

    `rescored` makes the record's scores and curves fit.
    """
    store = copied(of, folder / "store")

    def edited(cell: CellScores) -> CellScores:
        if (cell.role, cell.defense) != ("attack", of.entry.manifest.defense):
            return cell
        directory = store.cell(cell.cell_id)
        rows = stored_exchanges(directory, TableLimit())
        first = next(place for place, row in enumerate(rows) if row.malicious == of_malicious)
        rows[first] = replace(rows[first], **changes)
        record = directory.read()
        assert record is not None
        digest = directory.write_exchanges(exchanges_table(rows))
        edits: dict[str, Any] = {"provenance": record.provenance | {"exchanges_sha256": digest}}
        if rescored:
            edits["scores"] = record.scores | exchange_scores(rows)
            edits["curves"] = record.curves | exchange_curves(rows)
        record = record.model_copy(update=edits)
        directory.write(record)
        drift = {name: score for name, score in cell.scores.items() if name in ("drift", "divergence")}
        again = trimmed(record, cell.part, True, file_sha256(directory.record_path))
        return again.model_copy(update={"scores": again.scores | drift})

    return resigned(of, folder, store, [edited(cell) for cell in of.entry.cells])


@pytest.mark.parametrize(
    ("changes", "rescored", "reason"),
    [
        ({"action": "reject"}, False, "vector_false_rejection_rate does not follow from its completions"),
        ({"sender": 0, "receiver": 0}, True, "its exchanges are not those of its rounds"),
        ({"malicious": None}, False, "is incomplete: a vector has no malicious"),
        ({"action": "melt"}, True, "an aggregation gives no verdict 'melt'"),
        ({"bytes": 12}, True, "a vector of 12 bytes"),
        ({"action": "refused"}, True, "an honest node's vector is never refused"),
    ],
)
def test_exchanges_that_no_run_leaves_are_rejected(
    built_in: Made, tmp_path: Path, changes: dict[str, Any], rescored: bool, reason: str
) -> None:
    found = verified(forged(built_in, tmp_path, rescored, **changes))
    assert found.verdict == "rejected"
    assert reason in found.reasons[0], found.reasons


@pytest.mark.slow
def test_a_forged_verdict_is_found_where_the_cell_is_run_again(built_in: Made, tmp_path: Path) -> None:
    own = forged(built_in, tmp_path, True, action="reject", reason="it looked odd")
    assert verified(own).verdict == "rescored", "vectors are not stored, so nothing else can tell"
    found = verified(own, reruns=1)
    assert found.verdict == "rejected"
    assert "its exchanges differ from number 1 on" in found.reasons[0]


def test_an_archive_without_what_was_exchanged_is_rejected(built_in: Made, tmp_path: Path) -> None:
    store = copied(built_in, tmp_path / "store")
    cells = [cell.model_copy(update={"exchanges_sha256": ""}) for cell in built_in.entry.cells]
    found = verified(resigned(built_in, tmp_path, store, cells))
    assert found.verdict == "rejected"
    assert "exchanges_sha256" in found.reasons[0]


def test_a_table_of_other_columns_is_no_table_of_exchanges(built_in: Made, tmp_path: Path) -> None:
    store = copied(built_in, tmp_path / "store")
    cell = built_in.entry.cells[0]
    path = store.cell(cell.cell_id).exchanges_path
    pq.write_table(pq.read_table(path).drop(["bytes"]), path)
    cells = [cell.model_copy(update={"exchanges_sha256": file_sha256(path)}), *built_in.entry.cells[1:]]
    found = verified(resigned(built_in, tmp_path, store, cells))
    assert "does not have the columns of stored exchanges: bytes" in found.reasons[0]


# --- the oracle ---


@pytest.mark.slow
def test_the_oracles_cells_rise_like_any_others(oracle: Made) -> None:
    attacked = [cell for cell in oracle.entry.cells if (cell.role, cell.defense) == ("attack", "oracle")]
    assert attacked and all(cell.scores["vector_stop_rate"][0] == 1 for cell in attacked)
    assert all(cell.scores["vector_false_rejection_rate"][0] == 0 for cell in attacked)
    found = verified(oracle, reruns=1)
    assert found.reruns and all(each.equal for each in found.reruns), (found.verdict, found.reasons, found.flags)


@pytest.mark.parametrize(
    ("malicious", "changes"),
    [
        (True, {"action": "accept", "reason": ""}),
        (False, {"action": "reject", "reason": "labelled as malicious"}),
        (True, {"reason": "it looked odd"}),
    ],
)
def test_an_oracle_that_does_not_follow_the_labels_is_rejected(
    oracle: Made, tmp_path: Path, malicious: bool, changes: dict[str, Any]
) -> None:
    found = verified(forged(oracle, tmp_path, True, malicious, **changes))
    assert found.verdict == "rejected"
    assert "the oracle rejects exactly what malicious nodes send" in found.reasons[0], found.reasons


# --- users' files ---


@pytest.mark.slow
def test_a_users_file_is_measured_against_published_cells_and_runs_again_in_the_sandbox(
    of_user: Made, jail: None
) -> None:
    assert len(of_user.entry.published) == 3, "control, placebo and undefended"
    assert of_user.entry.manifest.defense == "defense/rules.py:Nearby(least=-0.5)"
    found = verified(of_user, reruns=1)
    assert {(each.kind, each.equal) for each in found.reruns} == {("own", True)}, found.reasons
    assert found.flags == ()


def test_in_the_sandbox_it_gives_what_it_gives_here(jail: None) -> None:
    isolated, here = IsolatedAggregation(f"{RULES}:Nearby"), registry.make("defense", f"{RULES}:Nearby")
    for seed in range(2):
        one, other = (rule.aggregate(view_of_round(5, seed)) for rule in (isolated, here))
        assert torch.equal(one.vector, other.vector)
        assert one.verdicts == other.verdicts
    assert copy.deepcopy(isolated).state() == isolated.state() == {"seen": 2}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("nothing", "aggregate gave None, which is not an Aggregate"),
        ("no vector", "a vector is a float32 tensor, not NoneType"),
        ("short", r"gave an aggregate a vector of float32 and shape \(23,\), not float32 and \(24,\)"),
        ("double", "a vector is a float32 tensor, not float64"),
        ("nan", "gave an aggregate a vector with numbers that are not finite"),
        ("silent", "gave 4 verdicts for 5 vectors"),
        ("unsure", "gave a verdict whose score is not a finite number"),
        ("invents", "gave a verdict 'melt'"),
        ("asks", "more than 100 questions in an exchange"),
        ("asks of nothing", r"a question for the reward of a vector of float32 and shape \(23,\)"),
        ("writes", "it changed a vector of its view"),
        ("reads", "hostile.py"),
        ("connects", "failed in aggregate"),
        ("leaves", "ended its own process in aggregate"),
    ],
)
def test_what_is_no_result_is_one_sentence(jail: None, how: str, message: str) -> None:
    guest = IsolatedAggregation(f"{RULES}:Faulty(how={how!r})")
    with pytest.raises(DefenseError, match=message):
        guest.aggregate(view_of_round(5))
    with pytest.raises(DefenseError, match=message):
        guest.aggregate(view_of_round(5))


def test_a_defense_against_completions_is_no_aggregation(jail: None) -> None:
    with pytest.raises(registry.SpecStringError, match="there is no aggregation named 'blacklist'"):
        IsolatedAggregation("blacklist")
    with pytest.raises(DefenseError, match=r"Hears is not a subclass of .*Aggregation"):
        IsolatedAggregation(f"{CHEATS}:Hears")


def test_time_is_limited(jail: None) -> None:
    caps = replace(AGGREGATION_CAPS, questions=10**9, service_seconds=0.0)
    with pytest.raises(DefenseError, match="answers took more than 0 seconds"):
        IsolatedAggregation(f"{RULES}:Faulty(how='asks')", caps).aggregate(view_of_round(2))


# --- the check ---


@pytest.mark.slow
def test_the_check_asks_the_rules_of_the_contract(jail: None) -> None:
    assert {finding.status for finding in check_rule(RuleSubject(f"{RULES}:Nearby", "aggregation"))} == {"ok"}


@pytest.mark.parametrize("unsafe", [False, True])
def test_the_check_says_which_rule_is_broken(jail: None, unsafe: bool) -> None:
    findings = list(check_rule(RuleSubject(f"{RULES}:Faulty(how='short')", "aggregation", unsafe)))
    assert findings[-1].question == "one vector and one verdict per vector"
    assert findings[-1].status == "FAILED"
    assert "shape" in findings[-1].detail


def test_an_aggregation_is_recognised_without_being_loaded(tmp_path: Path) -> None:
    other = tmp_path / "filter.py"
    other.write_text("from thiefbench.defenses.base import Defense\nraise RuntimeError('loaded')\n")
    mine = tmp_path / "mine.py"
    mine.write_text("from thiefbench.defenses.aggregation.base import Aggregation\nraise RuntimeError('loaded')\n")
    assert kind_named(f"{mine}:Rule") == kind_named("krum(f=1)") == "aggregation"
    assert kind_named(f"{other}:Filter") == kind_named("logit") == "defense"


# --- which suite takes what ---


def test_a_suite_takes_what_defends_its_exchanges() -> None:
    weights, completions = suite(), completions_suite()
    krum, logit, none = (registry.make("defense", name) for name in ("krum", "logit", "none"))
    check_fits(weights, krum, "krum")
    check_fits(weights, none, "none")
    check_fits(weights, registry.make("defense", "oracle"), "oracle")
    check_fits(completions, logit, "logit")
    with pytest.raises(EntryError, match="logit inspects completions; submit an aggregation"):
        check_fits(weights, logit, "logit")
    with pytest.raises(EntryError, match=r"krum is an aggregation.*write --suite averaging-v1"):
        check_fits(completions, krum, "krum")
    parts = tuple(replace(part, name=f"p{number}") for number, part in enumerate((*weights.scenes, *weights.scenes)))
    both = replace(weights, averaging=None, parts=(parts[0], replace(parts[1], averaging=None)))
    with pytest.raises(EntryError, match="no defense fits both"):
        kind_of(both)


def test_submit_refuses_it_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_entries.tiny(suite(), monkeypatch)
    credits = submit.credits_of("Mine", "A. Author", "")
    with pytest.raises(EntryError, match="nodes exchange weights, and logit inspects completions"):
        submit.prepare("logit", credits, suite(), NUMERICS, tmp_path / "store", tmp_path / "entries")
    assert submit.released("averaging-v1").title == "averaging-v1"


@pytest.mark.slow
def test_a_published_cell_of_such_a_suite_keeps_the_hash_of_its_exchanges(of_user: Made) -> None:
    for path in (of_user.shared / suite().title / "cells").iterdir():
        record = json.loads(gzip.decompress(path.read_bytes()))["record"]
        assert len(record["provenance"]["exchanges_sha256"]) == 64
