"""Swarms that exchange weights: who adopts what, what is refused, what is stored, and how a run resumes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from tests.bench import tiny
from tests.variants import at_length
from thiefbench.averaging.spec import AveragingSpec
from thiefbench.averaging.swarm import AveragingSwarm, flat
from thiefbench.engine.spec import LearnerSpec, SpecError, SwarmSpec
from thiefbench.suite.analysis.run_comparisons import comparisons_of_run, last_run
from thiefbench.suite.execution.aggregations import pseudonym
from thiefbench.suite.execution.cell_identity import identity
from thiefbench.suite.execution.cell_run import build_swarm
from thiefbench.suite.report.plots import draw_all
from thiefbench.suite.report.tables import columns_of
from thiefbench.suite.scenario import CellSpec, Evaluation, Suite
from thiefbench.suite.store.merging import MergeError, merge
from thiefbench.suite.store.records import Record, Store, identify
from thiefbench.tasks.base import Sampling

PARITY = f"{Path(__file__).with_name('parity.py')}"
FLIP = f"sign_flip(attack={tiny.ATTACK!r})"
SWARM = SwarmSpec(
    topology="vertical", nodes=4, malicious=1, prompts=8, group=4, sampling=Sampling(max_new_tokens=12),
    learner=LearnerSpec(learning_rate=1e-2),
)  # fmt: skip


def suite(*defenses: str, method: str = "noloco", every: int = 1, **changes: Any) -> Suite:
    fields: dict[str, Any] = {
        "name": "tiny", "version": 1, "task": f"{PARITY}:Parity", "model": str(tiny.model()), "attacks": (FLIP,),
        "swarm": SWARM, "defenses": defenses or ("none",), "rounds": 2,
        "evaluation": Evaluation(every=2, completions=16, final=16),
        "averaging": AveragingSpec(method, every=every, held_out=8),  # type: ignore[arg-type]
    }  # fmt: skip
    return Suite(**(fields | changes))


def swarm(of: Suite, role: str = "attack") -> AveragingSwarm:
    built = build_swarm(tiny.cell(of, role))
    assert isinstance(built, AveragingSwarm)
    return built


def weights(of: AveragingSwarm) -> list[torch.Tensor]:
    return [flat(cohort.masters) for cohort in of.population.cohorts]


@pytest.mark.parametrize("method", ["mean", "diloco"])
def test_without_an_attack_all_nodes_hold_equal_weights_after_an_exchange(method: str) -> None:
    played = swarm(suite(method=method, every=2), "control")
    start = weights(played)
    played.round(1)
    apart = weights(played)
    assert len({tuple(each[:200].tolist()) for each in apart}) == 4, "every node learns from its own groups"
    played.round(2)
    first, *others = weights(played)
    assert all(torch.allclose(first, each, atol=1e-6) for each in others)
    assert not torch.allclose(first, start[0], atol=1e-4), "and they have learned"


def test_pairs_move_together_in_noloco() -> None:
    played = swarm(suite(), "control")
    played.round(1)
    partner = {row.receiver: row.sender for row in played.exchanges}
    after = weights(played)
    assert all(partner[partner[node]] == node for node in partner), "partners read each other"
    for node, other in partner.items():
        # Their slow weights were equal before, so both have stepped by the same mean.
        assert torch.allclose(after[node], after[other], atol=1e-6)
    played.round(2)
    assert {row.receiver: row.sender for row in played.exchanges if row.exchange == 2} != partner, "pairs are redrawn"


def test_a_flipped_mean_stops_learning_where_the_plain_mean_is_taken() -> None:
    """Three honest vectors and three times their mean with the opposite sign cancel each other."""
    of = suite(method="mean", attacks=(f"sign_flip(attack={tiny.ATTACK!r}, scale=3.0)",))
    played = swarm(of)
    start = weights(played)
    played.round(1)
    assert all(torch.allclose(each, start[0], atol=1e-6) for each in weights(played))
    placebo = swarm(replace(of, placebo=True), "placebo")
    placebo.round(1)
    assert not torch.allclose(weights(placebo)[0], start[0], atol=1e-4), "clean nodes in their place help"


@pytest.mark.parametrize(
    ("what", "reason", "size"),
    [
        ("nothing", "missing", 0), ("nan", "not finite", 4), ("infinite", "not finite", 4),
        ("short", "wrong shape", 4), ("table", "wrong shape", 4), ("double", "not a float32 vector but float64", 8),
        ("text", "not a float32 vector but str", 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["mean", "noloco"])
def test_what_is_no_sound_vector_is_refused_by_name_and_never_averaged(
    method: str, what: str, reason: str, size: int
) -> None:
    attacked = swarm(suite(method=method, attacks=(f"{PARITY}:Sends(what={what!r})",)))
    attacked.round(1)
    refused = [row for row in attacked.exchanges if row.malicious]
    assert refused and all(row.action == "refused" and row.reason.startswith(reason) for row in refused)
    assert all((row.bytes > 0) == (size > 0) for row in refused), "what came was received all the same"
    assert all(bool(each.isfinite().all()) for each in weights(attacked))
    sound = [row for row in attacked.exchanges if not row.malicious]
    assert all(row.action == "accept" for row in sound)


@pytest.mark.slow
def test_weights_that_overflow_end_the_cell_in_words(tmp_path: Path) -> None:
    """Each number of the aggregate is finite; a step along it is not."""
    averaging = AveragingSpec("diloco", every=1, outer_lr=2.0)
    records = tiny.run(suite(f"{PARITY}:Broken(how='huge')", averaging=averaging), tmp_path)
    broken = next(record for record in records if record.cell["role"] == "attack")
    assert broken.status == "error" and "not finite any more after an exchange" in broken.error


@pytest.mark.slow
@pytest.mark.parametrize("method", ["diloco", *at_length("mean", "noloco")])
@pytest.mark.parametrize("rule", [f"{PARITY}:Broken", *at_length("none")])
def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path: Path, method: str, rule: str) -> None:
    of = suite(rule, method=method, every=2, rounds=5)
    tiny.whole_and_stopped(of, tmp_path, "exchanges.parquet")


def test_a_record_says_what_was_exchanged(tmp_path: Path) -> None:
    of = suite("none", f"{PARITY}:Broken", method="diloco")
    records = tiny.run(of, tmp_path)
    by_rule = {record.cell["defense"]: record for record in records if record.cell["role"] == "attack"}
    parameters = sum(weight.numel() for weight in build_swarm(tiny.cell(of)).policy.weights().values())
    plain, broken = by_rule["none"], by_rule[f"{PARITY}:Broken"]
    assert plain.scores["vector_stop_rate"].value == 0 and plain.scores["vector_stop_rate"].count == 6
    assert broken.scores["vector_stop_rate"].value == broken.scores["vector_false_rejection_rate"].value == 1
    assert plain.scores["refused_vectors"].value == 0
    assert plain.scores["exchange_bytes"].value == 3 * 4 * parameters, "three senders, four bytes a number"
    assert plain.seconds["exchange"] > 0
    assert {point.round for point in plain.curves["malicious_length"]} == {1, 2}
    table = pq.read_table(_folder(tmp_path, plain) / "exchanges.parquet").to_pylist()
    assert len(table) == 2 * 3 * 3, "two exchanges, three honest receivers, three senders each"
    assert {row["sender"] for row in table if row["malicious"]} == {3}


@pytest.mark.slow
def test_tables_show_what_became_of_vectors_where_nobody_judges_completions(tmp_path: Path) -> None:
    tiny.run(suite("none", f"{PARITY}:Broken", method="diloco"), tmp_path)
    store = Store(tmp_path)
    shown = tiny.terminal(store)
    assert "vectors" in shown and "honest" in shown and "false" not in shown
    comparisons = comparisons_of_run(store, last_run(store))
    measures = [column.measure for column in columns_of(comparisons)]
    assert {"vector_stop_rate", "vector_false_rejection_rate"} <= set(measures)
    assert not {"stop_rate", "false_rejection_rate", "masked_rate", "caught_round"} & set(measures)
    broken = comparisons[0].line(f"{PARITY}:Broken")
    assert broken is not None
    assert [score.value for score in broken.scores("vector_false_rejection_rate")] == [1.0]
    assert {plot.name for plot in draw_all(comparisons[0], "", png=False)} == {"asr", "reward"}


def _folder(store: Path, record: Record) -> Path:
    return Store(store).cell(record.cell_id).path


def test_joined_stores_keep_what_was_exchanged(tmp_path: Path) -> None:
    of = suite(method="diloco", rounds=1)
    tiny.run(of, tmp_path / "a")
    merge([tmp_path / "a"], tmp_path / "joined")
    assert tiny.stored(of, tmp_path / "a", "exchanges.parquet") == tiny.stored(
        of, tmp_path / "joined", "exchanges.parquet"
    )
    damaged = Store(tmp_path / "a").cell(identify(identity(tiny.cell(of)))).exchanges_path
    tiny.flip(damaged)
    with pytest.raises(MergeError, match="is not what its record says"):
        merge([tmp_path / "a"], tmp_path / "again")


def test_a_halved_exchange_of_noloco_sends_two_vectors_once() -> None:
    played = swarm(suite())
    played.round(1)
    parameters = len(weights(played)[0])
    assert {row.bytes for row in played.exchanges} == {2 * 4 * parameters}
    assert len(played.exchanges) == 3, "one partner each"


def test_what_exchanges_completions_keeps_its_identity() -> None:
    plain = tiny.cell(suite(averaging=None, attacks=(tiny.ATTACK,)))
    assert "averaging" not in plain.as_dict() and "averaging_revision" not in identity(plain)
    averaging = tiny.cell(suite())
    assert averaging.as_dict()["averaging"]["method"] == "noloco"
    assert len(identity(averaging)["averaging_revision"]) == 16
    assert CellSpec.from_dict(averaging.as_dict()) == averaging
    assert "averaging" not in str(tiny.suite().fingerprint()) and suite().fingerprint() != suite(every=2).fingerprint()


@pytest.mark.parametrize("rule", ["held_out(measure='reward')", "held_out", "krum", "norm_bound(rule='krum')"])
def test_a_held_out_check_leaves_weights_and_draws_as_they_were(rule: str) -> None:
    """Whatever a rule asks, the next round is played with the weights that were adopted."""
    played = swarm(suite(rule, method="mean"))
    played.round(1)
    for node, state in enumerate(played._states):
        assert torch.equal(weights(played)[node], state.slow)
    assert len(played.exchanges) == 9
    again = swarm(suite(rule, method="mean"))
    again.round(1)
    assert again.exchanges == played.exchanges, "equal runs give equal verdicts"


@pytest.mark.parametrize(
    ("rule", "words"),
    [("short", "wrong shape"), ("nan", "not finite"), ("silent", "2 verdicts for 3 vectors")],
)
def test_what_an_aggregation_gets_wrong_is_said(rule: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        swarm(suite(f"{PARITY}:Broken(how={rule!r})", method="mean")).round(1)


@pytest.mark.parametrize("method", ["mean", "diloco", "noloco"])
def test_the_oracle_averages_what_honest_nodes_sent(method: str) -> None:
    """Attacked, it is a plain mean that never saw the malicious vectors; without malicious senders, the plain mean."""
    of = suite("oracle", method=method)
    played = swarm(of)
    played.round(1)
    assert played.exchanges
    for row in played.exchanges:
        expected = ("reject", "labelled as malicious") if row.malicious else ("accept", "")
        assert (row.action, row.reason) == expected
    missing = swarm(replace(of, defenses=("none",), attacks=(f"{PARITY}:Sends(what='nothing')",)))
    missing.round(1)
    pairs = zip(weights(played), weights(missing), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs), "as if nothing had come"
    flipped = swarm(replace(of, defenses=("none",)))
    flipped.round(1)
    pairs = zip(weights(played), weights(flipped), strict=True)
    assert not all(torch.equal(one, other) for one, other in pairs), "and the attack does something otherwise"


@pytest.mark.parametrize("method", ["mean", "diloco", "noloco"])
def test_the_oracle_is_the_plain_mean_where_nobody_is_malicious(method: str) -> None:
    plain, seeing = (
        swarm(suite(method=method), "control"),
        swarm(suite("oracle", method=method, utility=True), "control"),
    )
    for number in (1, 2):
        plain.round(number)
        seeing.round(number)
    assert plain.exchanges == seeing.exchanges and {row.action for row in plain.exchanges} == {"accept"}
    assert all(torch.equal(one, other) for one, other in zip(weights(plain), weights(seeing), strict=True))


def test_the_oracle_of_vectors_counts_in_its_cells_identity() -> None:
    """Its own class inspects completions, so the mean that stands for it has to count apart."""
    of = suite("oracle")
    plain, seeing = (identity(tiny.cell(replace(of, defenses=(name,)))) for name in ("none", "oracle"))
    assert "oracle_revision" not in plain and len(seeing["oracle_revision"]) == 16
    completions = tiny.cell(replace(of, averaging=None, attacks=(tiny.ATTACK,)))
    assert "oracle_revision" not in identity(completions)


def test_pseudonyms_are_those_of_the_swarm() -> None:
    played = swarm(suite())
    assert [pseudonym(0, node) for node in range(4)] == [played._pseudonym(node) for node in range(4)]


def test_an_attack_that_sends_too_much_is_told() -> None:
    with pytest.raises(ValueError, match="sent 2 vectors for 1 malicious nodes"):
        swarm(suite(attacks=(f"{PARITY}:Miscounts",))).round(1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attacks": (tiny.ATTACK,)}, "sends completions, and in this swarm nodes exchange weights"),
        ({"attacks": (FLIP,), "averaging": None}, "sends weights, and in this swarm nodes exchange completions"),
        ({"defenses": ("logit",)}, "logit inspects completions.*`thiefbench list aggregations`.*, none or oracle"),
        ({"defenses": ("krum",), "attacks": (tiny.ATTACK,), "averaging": None}, "krum requires averaging"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_run(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        tiny.run(suite(**changes), tmp_path)
    assert not (tmp_path / "cells").exists()


def test_such_suites_replay_nothing() -> None:
    with pytest.raises(SpecError, match="no pools can be replayed"):
        suite(replayed=("blacklist",))


def test_a_suite_file_can_ask_for_it(tmp_path: Path) -> None:
    from thiefbench.suite.suite_yaml import SuiteError, load_suite

    swarm_fields = {"topology": "vertical", "nodes": 2, "malicious": 1, "prompts": 4, "group": 4}
    file = tiny.suite_file(tmp_path, averaging={"method": "diloco", "every": 3}, swarm=swarm_fields, attacks=[FLIP])
    assert load_suite(str(file)).scenes[0].averaging == AveragingSpec("diloco", every=3)
    file = tiny.suite_file(tmp_path, averaging={"method": "diloco", "steps": 3}, swarm=swarm_fields, attacks=[FLIP])
    with pytest.raises(SuiteError, match=r"averaging.*steps"):
        load_suite(str(file))


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "krum", "--suite", "trial", "--name", "K", "--authors", "A. Author", "--threads", "1", "--store"),
        pytest.param(("check", "krum+mean"), marks=pytest.mark.slow),
    ],
)
def test_the_leaderboard_says_where_they_belong(words: tuple[str, ...], tmp_path: Path) -> None:
    done = tiny.command("leaderboard", *words, *([str(tmp_path)] if words[-1] == "--store" else []))
    _, said = done.communicate()
    assert done.returncode == 2
    expected = {
        "submit": "krum is an aggregation, for swarms in which nodes exchange weights, and in trial-v1 nodes exchange",
        "check": "aggregations do not compose",
    }
    assert expected[words[0]] in " ".join(said.split())
