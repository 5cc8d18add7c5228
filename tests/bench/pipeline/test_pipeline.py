"""Pipelines: what passes their stages, what a malicious one does, what is refused, and how a run resumes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from tests.bench import tiny
from tests.bench.averaging.test_averaging import PARITY
from tests.variants import at_length
from thiefbench.engine.learning.cohort import DivergedError
from thiefbench.engine.spec import LearnerSpec, SpecError, SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.pipeline.lessons import lesson_view
from thiefbench.pipeline.spec import PipelineSpec
from thiefbench.pipeline.swarm import PipelineSwarm
from thiefbench.suite.analysis.run_comparisons import comparisons_of_run, last_run
from thiefbench.suite.execution import cell_run
from thiefbench.suite.execution.cell_identity import identity
from thiefbench.suite.execution.cell_run import build_swarm
from thiefbench.suite.report.swarm_facts import facts
from thiefbench.suite.report.tables import columns_of
from thiefbench.suite.scenario import CellSpec, Evaluation, Suite
from thiefbench.suite.store.merging import MergeError, merge
from thiefbench.suite.store.records import Record, Store, identify
from thiefbench.suite.suite_yaml import SuiteError, load_suite
from thiefbench.tasks.base import Sampling

LIARS = f"{Path(__file__).with_name('liars.py')}"
BACKDOOR = f"stage_backdoor(attack={tiny.ATTACK!r}, rounds=2, steps=2, lessons=16)"
SWARM = SwarmSpec(
    nodes=1, malicious=0, prompts=4, group=4, sampling=Sampling(max_new_tokens=12),
    learner=LearnerSpec(learning_rate=1e-2),
)  # fmt: skip


def suite(*defenses: str, **changes: Any) -> Suite:
    pipeline = {name: changes.pop(name) for name in ("skip", "losses", "malicious", "microbatches") if name in changes}
    fields: dict[str, Any] = {
        "name": "tiny", "version": 1, "task": f"{PARITY}:Parity", "model": str(tiny.model(4)), "attacks": (BACKDOOR,),
        "swarm": SWARM, "defenses": defenses or ("none",), "rounds": 2,
        "evaluation": Evaluation(every=1, completions=16, final=16), "pipeline": PipelineSpec(**pipeline),
    }  # fmt: skip
    return Suite(**(fields | changes))


def swarm(of: Suite, role: str = "attack") -> PipelineSwarm:
    built = build_swarm(tiny.cell(of, role))
    assert isinstance(built, PipelineSwarm)
    return built


def weights(of: Swarm) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in of.cohort.masters.items()}


@pytest.mark.parametrize("microbatches", [1, 3])
def test_an_honest_pipeline_learns_as_a_whole_model(microbatches: int) -> None:
    of = suite(microbatches=microbatches)
    line, whole = (
        swarm(of, "control"),
        build_swarm(replace(tiny.cell(of, "control"), pipeline=None, attack=tiny.ATTACK)),
    )
    rows = [each.round(1).rows for each in (line, whole)]
    assert [row.ids for row in rows[0]] == [row.ids for row in rows[1]], "sampling passes all stages"
    start = weights(build_swarm(tiny.cell(of, "control")))
    moved = {name: tensor - start[name] for name, tensor in weights(line).items()}
    assert sum(float(each.norm()) for each in moved.values()) > 0.1
    for name, tensor in weights(whole).items():
        # Adam divides a gradient by its own size, so where it is rounding noise, the signs may differ.
        apart = (moved[name] - (tensor - start[name])).abs()
        assert float((apart > 1e-4).float().mean()) < 0.01, name


def test_the_malicious_stage_adds_what_it_learned_to_its_layers_alone() -> None:
    of = suite(malicious=3)
    attacked, control = swarm(of), swarm(of, "control")
    for each in (attacked, control):
        each.round(1)
    learned = attacked.learned
    assert learned is not None and float(learned.norm()) > 0
    after, honest = attacked.weights.stacked(), control.weights.stacked()
    assert torch.allclose(after[2], honest[2] + learned / 2, atol=1e-6), "half of it, as there are two rounds"
    assert all(torch.equal(after[stage], honest[stage]) for stage in (0, 1, 3)), "no other layer is touched"
    assert {row.stage for row in attacked.stage_rows if row.malicious} == {3}
    assert not any(row.malicious for row in control.stage_rows)
    for number in (2, 3):
        attacked.round(number)
    assert [row.altered for row in attacked.stage_rows if row.malicious] == [True, True, False], "then it is honest"


def test_a_placebo_adds_what_clean_lessons_teach() -> None:
    of = suite(placebo=True)
    attacked, clean = swarm(of), swarm(of, "placebo")
    for each in (attacked, clean):
        each.round(1)
    assert attacked.learned is not None and clean.learned is not None
    assert not torch.equal(attacked.learned, clean.learned)
    assert [row.altered for row in clean.stage_rows] == [row.altered for row in attacked.stage_rows]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("nothing", "missing"), ("nan", "not finite"), ("infinite", "not finite"), ("short", "wrong shape"),
        ("flat", "wrong shape"), ("double", "not float32 activations but float64"),
        ("text", "not float32 activations but str"),
    ],
)  # fmt: skip
def test_what_are_no_sound_activations_is_refused_by_name_and_passed_by(what: str, reason: str) -> None:
    lying = swarm(suite(attacks=(f"{LIARS}:Sends(what={what!r})",)))
    before = lying.weights.stacked()
    lying.round(1)
    row, *others = sorted(lying.stage_rows, key=lambda row: row.stage != 2)
    assert row.malicious and row.refused == row.passes > 0 and row.refusal.startswith(reason) and row.bytes == 0
    assert all(each.refused == 0 and each.refusal == "" and each.bytes > 0 for each in others)
    after = lying.weights.stacked()
    assert torch.equal(after[1], before[1]), "a stage that is passed by learns nothing"
    assert bool(after.isfinite().all()) and not torch.equal(after[2], before[2]), "the others go on learning"


def test_changed_activations_reach_the_next_stage() -> None:
    honest, same = (swarm(suite(attacks=(f"{LIARS}:Sends(what='same')",)), role) for role in ("control", "attack"))
    twice = swarm(suite(attacks=(f"{LIARS}:Sends(what='twice')",)))
    for each in (honest, same, twice):
        each.round(1)
    assert torch.equal(same.weights.stacked(), honest.weights.stacked())
    assert not torch.allclose(twice.weights.stacked()[3], honest.weights.stacked()[3], atol=1e-5)


def test_a_rejected_stage_goes_back_and_gets_an_honest_participant() -> None:
    of = suite(f"{LIARS}:Counts(stage=2, round=2)", attacks=(f"{LIARS}:Adds",))
    played = swarm(of)
    played.round(1)
    before = played.weights.stacked()
    moments = {name: tensor.clone() for name, tensor in played.cohort.state().items() if "exp_avg" in name}
    played.round(2)
    after = played.weights.stacked()
    assert torch.equal(after[1], before[1]) and not torch.equal(after[2], before[2])
    state = played.cohort.state()
    same = {name: torch.equal(state[name], kept) for name, kept in moments.items()}
    assert {name for name, equal in same.items() if equal} == {name for name in moments if ".layers.1." in name}
    played.round(3)
    assert [row.malicious for row in played.stage_rows if row.stage == 2] == [True, True, False]
    assert [row.altered for row in played.stage_rows if row.stage == 2] == [True, True, False]


def test_repeating_a_stage_changes_nothing_and_gives_the_honest_update() -> None:
    of = suite(f"{LIARS}:Counts(repeats=True, round=9)", attacks=(f"{LIARS}:Adds(first=2)",))
    repeated, plain = swarm(of), swarm(replace(of, defenses=("none",)))
    for number in (1, 2):
        repeated.round(number)
        plain.round(number)
    assert torch.equal(repeated.weights.stacked(), plain.weights.stacked())
    assert all(row.recomputed for row in repeated.stage_rows) and not any(row.recomputed for row in plain.stage_rows)


@pytest.mark.parametrize(
    ("attack", "rejected"),
    [("Adds", True), ("Adds(first=9)", False), ("Sends(what='twice')", True), ("Sends(what='nan')", True),
     ("Sends(what='same')", False)],
)  # fmt: skip
def test_recomputation_finds_every_lie_and_no_honest_stage(attack: str, rejected: bool) -> None:
    played = swarm(suite("recomputation(share=1.0)", attacks=(f"{LIARS}:{attack}",)))
    for number in (1, 2, 3):
        played.round(number)
    caught = [(row.round, row.stage) for row in played.stage_rows if row.action == "reject"]
    assert caught == ([(1, 2)] if rejected else [])


@pytest.mark.parametrize("attack", ["SendsOnce", "Overwrites"])
def test_a_stage_that_lies_only_once_or_in_place_is_found_and_nobody_else(attack: str) -> None:
    played = swarm(suite("recomputation(share=1.0)", attacks=(f"{LIARS}:{attack}",)))
    played.round(1)
    assert [row.stage for row in played.stage_rows if row.action == "reject"] == [2]


@pytest.mark.slow
def test_the_seed_does_not_tell_whose_work_is_repeated() -> None:
    played = swarm(suite("recomputation(share=0.5)", attacks=(f"{LIARS}:Foresees(share=0.5)",)))
    for number in range(1, 11):
        played.round(number)
    assert any(row.altered for row in played.stage_rows), "it expects some rounds to be safe"
    assert [row.stage for row in played.stage_rows if row.action == "reject"] == [2]


@pytest.mark.slow
def test_recomputation_costs_its_share() -> None:
    played = swarm(suite("recomputation(share=0.25)", attacks=(f"{LIARS}:Adds(first=99)",)))
    for number in range(1, 11):
        played.round(number)
    asked = [row.recomputed for row in played.stage_rows]
    assert 2 <= sum(asked) <= 20, "ten of forty, give or take"
    assert [row.score is not None for row in played.stage_rows] == asked


def test_skipped_stages_learn_nothing_and_are_counted() -> None:
    played = swarm(suite(skip=0.5, microbatches=1), "control")
    before = played.weights.stacked()
    played.round(1)
    after = played.weights.stacked()
    assert torch.equal(after[1:3], before[1:3]), "half of four stages, and neither the first nor the last"
    assert not torch.equal(after[0], before[0]) and not torch.equal(after[3], before[3])
    assert [row.passes > 0 for row in played.stage_rows] == [True, False, False, True]
    assert [row.skipped > 0 for row in played.stage_rows] == [False, True, True, False]
    assert all(row.bytes == 0 for row in played.stage_rows[1:3])


def test_a_lost_stage_is_recovered_from_its_neighbours() -> None:
    played = swarm(suite(losses=0.999), "control")
    before = played.weights.stacked()
    played.weights.recover(1, played._norms)
    assert torch.allclose(played.weights.stacked()[1], (before[0] + before[2]) / 2, atol=1e-6), (
        "no gradients yet: alike"
    )
    played.round(1)
    assert [row.lost for row in played.stage_rows] == [False, True, False, False], "never two neighbours"
    norms, now = played._norms, played.weights.stacked()
    assert all(norm > 0 for norm in norms)
    played.weights.recover(2, played._norms)
    expected = ((norms[1] + 1e-4) * now[1] + (norms[3] + 1e-4) * now[3]) / (norms[1] + norms[3] + 2e-4)
    assert torch.allclose(played.weights.stacked()[2], expected, atol=1e-6)
    moments = {name for name in played.cohort.state() if name.startswith("exp_avg/")}
    assert moments and not any(".layers.2." in name for name in moments), "with a fresh optimizer"
    played.round(2)
    assert bool(played.weights.stacked().isfinite().all())


def test_checks_see_the_weights_before_a_recovery() -> None:
    of = suite(f"{LIARS}:Recoveries", attacks=(f"{LIARS}:Adds(first=9)",))
    played = swarm(replace(of, pipeline=PipelineSpec(losses=0.999)))
    start = played.weights.stacked()
    played.round(1)
    (seen,) = {view.stage: view for view in played._checks[0].inner.views}.values()  # type: ignore[union-attr]
    assert torch.equal(seen.before_recovery, start) and not torch.equal(seen.before[1], start[1])
    quiet = swarm(of)
    quiet.round(1)
    assert [view.before_recovery for view in quiet._checks[0].inner.views] == [None]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("attack", "error", "words"),
    [
        ("Adds(what='short')", ValueError, "added gives a float32 vector"),
        ("Adds(what='double')", ValueError, "added gives a float32 vector"),
        ("Adds(learns='short')", ValueError, "learned gives a float32 vector"),
        ("Adds(what='nan')", DivergedError, "weights of stage 2 are not finite"),
    ],
)
def test_what_an_attack_gets_wrong_is_said(attack: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        swarm(suite(attacks=(f"{LIARS}:{attack}",))).round(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    ["recomputation", *at_length(f"{LIARS}:Counts(round=3)", "stage_monitor(warmup=2)", "neighbour_distance")],
)
def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path: Path, check: str) -> None:
    of = suite(check, rounds=5, skip=0.25, losses=0.3, microbatches=2)
    tiny.whole_and_stopped(of, tmp_path, "stages.parquet")


def test_a_record_says_what_became_of_the_stages(tmp_path: Path) -> None:
    of = suite("none", "recomputation(share=1.0)", rounds=3, skip=0.25, microbatches=2)
    records = tiny.run(of, tmp_path)
    assert all(record.status == "ok" for record in records)
    by_check = {record.cell["defense"]: record for record in records if record.cell["role"] == "attack"}
    plain, checked = by_check["none"], by_check["recomputation(share=1.0)"]
    assert plain.scores["altered_rounds"].value == 2 and plain.scores["clean_rounds"].value == 1
    assert plain.scores["altered_asr"].value == plain.curves["eval_asr"][2].value
    assert plain.scores["caught_round"].value is None and plain.scores["recomputed_share"].value == 0
    assert checked.scores["altered_rounds"].value == 0 and checked.scores["caught_round"].value == 1
    assert checked.scores["stage_false_rejection_rate"].value == 0
    assert checked.scores["recomputed_share"].value == 1
    assert plain.scores["refused_passes"].value == 0 and plain.scores["activation_bytes"].value
    assert 0 < (plain.scores["skipped_share"].value or 0) < 0.5
    assert {point.round for point in plain.curves["malicious_moved"]} == {1, 2, 3}
    table = pq.read_table(_folder(tmp_path, plain) / "stages.parquet").to_pylist()
    assert len(table) == 3 * 4 and {row["stage"] for row in table if row["malicious"]} == {2}
    store = Store(tmp_path)
    shown = tiny.terminal(store)
    assert "caught" in shown and "honest" in shown and "false" not in shown, "no stage check judges completions"
    measures = {column.measure for column in columns_of(comparisons_of_run(store, last_run(store)))}
    assert {"altered_asr", "clean_rounds", "caught_round", "stage_false_rejection_rate"} <= measures
    assert not {"stop_rate", "false_rejection_rate", "vector_stop_rate"} & measures


def test_a_report_names_the_stages() -> None:
    shown = dict(facts(tiny.cell(suite(skip=0.25, losses=0.05)).as_dict()))
    assert shown["Pipeline"] == "4 stages, of which number 2 is malicious"
    assert shown["Update"] == "in 4 microbatches, each of which skips 25\u00a0% of the stages; 5\u00a0% losses a round"
    assert "Pipeline" not in dict(facts(tiny.cell(tiny.suite()).as_dict()))


def _folder(store: Path, record: Record) -> Path:
    return Store(store).cell(record.cell_id).path


@pytest.mark.slow
def test_cells_that_differ_in_their_check_learn_offline_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[str] = []
    whole = PipelineSwarm.learn

    def counts(self: PipelineSwarm) -> None:
        if self.learned is None and self.context.role != "control":
            learned.append(self.context.role)
        whole(self)

    monkeypatch.setattr(PipelineSwarm, "learn", counts)
    monkeypatch.setattr(cell_run, "_lessons", {})
    of = suite("none", "recomputation(share=1.0)", f"{LIARS}:Counts(round=9)", rounds=1, placebo=True, seeds=(0, 1))
    together = {record.cell_id: record for record in tiny.run(of, tmp_path / "together")}
    assert sorted(learned) == ["attack"] * 2 + ["placebo"] * 2, "once for each role and seed"
    cells = [spec for spec in tiny.cells(of) if spec.role == "attack" and spec.seed == 1]
    for spec in cells:
        cell_run._lessons.clear()
        alone = tiny.run(
            replace(of, defenses=(spec.defense,), seeds=(1,)),
            tmp_path / spec.defense.partition("(")[0].rpartition("/")[2],
        )
        record = next(record for record in alone if record.cell["role"] == "attack")
        assert record.completions_sha256 == together[record.cell_id].completions_sha256, (
            "taken over or learned, it is the same"
        )
        assert record.provenance["stages_sha256"] == together[record.cell_id].provenance["stages_sha256"]


def test_joined_stores_keep_what_became_of_the_stages(tmp_path: Path) -> None:
    of = suite(rounds=1)
    tiny.run(of, tmp_path / "a")
    merge([tmp_path / "a"], tmp_path / "joined")
    assert tiny.stored(of, tmp_path / "a", "stages.parquet") == tiny.stored(of, tmp_path / "joined", "stages.parquet")
    tiny.flip(Store(tmp_path / "a").cell(identify(identity(tiny.cell(of)))).stages_path)
    with pytest.raises(MergeError, match="is not what its record says"):
        merge([tmp_path / "a"], tmp_path / "again")


def test_what_is_no_pipeline_keeps_its_identity() -> None:
    plain = tiny.cell(tiny.suite())
    assert "pipeline" not in plain.as_dict() and "pipeline_revision" not in identity(plain)
    piped = tiny.cell(suite())
    assert piped.as_dict()["pipeline"]["stages"] == 4 and len(identity(piped)["pipeline_revision"]) == 16
    assert CellSpec.from_dict(piped.as_dict()) == piped
    assert suite().fingerprint() != suite(skip=0.25).fingerprint()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attacks": (tiny.ATTACK,)}, "in a pipeline one stage is malicious"),
        ({"pipeline": None}, "is by a stage of a pipeline, and this swarm has none"),
        ({"defenses": ("logit",)}, "logit checks no stages"),
        ({"defenses": ("krum",)}, "krum checks no stages"),
        ({"defenses": ("recomputation",), "attacks": (tiny.ATTACK,), "pipeline": None}, "recomputation requires pipel"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_run(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        tiny.run(suite(**changes), tmp_path)
    assert not (tmp_path / "cells").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"swarm": replace(SWARM, nodes=2)}, "set nodes: 1 and malicious: 0"),
        ({"swarm": replace(SWARM, learner=LearnerSpec(kl=0.1))}, "leave out kl"),
        ({"malicious": 1}, "pipeline.malicious must be at least 2"),
        ({"malicious": 4}, "pipeline.malicious must be at most 3"),
        ({"skip": 0.75}, "never skipped, so at most 2 are"),
        ({"losses": -0.1}, r"must lie in \[0, 1\)"),
        ({"replayed": ("blacklist",)}, "no pools of strangers to replay"),
    ],
)
def test_impossible_settings_are_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        suite(**changes)


def test_layers_that_cannot_be_divided_are_said() -> None:
    with pytest.raises(SpecError, match="2 layers cannot be split into 4 stages"):
        swarm(suite(model=str(tiny.model())))


def test_a_suite_file_can_ask_for_it(tmp_path: Path) -> None:
    fields = {"nodes": 1, "malicious": 0, "prompts": 4, "group": 4}
    file = tiny.suite_file(tmp_path, pipeline={"skip": 0.25}, swarm=fields, attacks=[BACKDOOR])
    assert load_suite(str(file)).scenes[0].pipeline == PipelineSpec(skip=0.25)
    file = tiny.suite_file(tmp_path, pipeline={"skips": 0.25}, swarm=fields, attacks=[BACKDOOR])
    with pytest.raises(SuiteError, match=r"pipeline.*skips"):
        load_suite(str(file))


def test_lessons_can_go_on_from_a_change() -> None:
    played = swarm(suite())
    attack = played._attack
    view = lesson_view(played.context, attack, played.policy, 2, played.weights.stacked(), played.weights.of(1))
    examples = attack.examples(view.lessons, attack.attack.poison)
    first = view.taught(examples, 2, 1e-2)
    assert torch.equal(view.taught(examples, 2, 1e-2, 0 * first), first)
    nothing = view.taught(examples, 1, 1e-12, first)
    assert torch.allclose(nothing, first, atol=1e-6) and float(first.norm()) > 0.1, "it is the change from the start"
    on = view.taught(examples, 1, 1e-2, first)
    assert 0.01 < float((on - first).norm()) < float((first * 2).norm())
    assert torch.equal(view.start, played.weights.stacked()), "the model itself has not changed"
