"""Swarms of experts: who learns from whom, who answers, what is stored, and how a run resumes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.bench import tiny
from tests.bench.tiny import Watcher
from tests.variants import at_length
from thiefbench.engine.heterogeneity import ChurnSpec, NodeClass
from thiefbench.engine.population import Population
from thiefbench.engine.spec import LearnerSpec, SpecError, SwarmSpec
from thiefbench.experts.spec import ExpertsSpec
from thiefbench.experts.swarm import ExpertSwarm
from thiefbench.suite.execution.cell_identity import identity
from thiefbench.suite.execution.cell_run import build_swarm
from thiefbench.suite.report.page import write_report
from thiefbench.suite.scenario import CellSpec, Evaluation, Suite
from thiefbench.suite.store.records import Store
from thiefbench.suite.suite_yaml import SuiteError, load_suite
from thiefbench.tasks.base import Sampling

FRUIT = f"{Path(__file__).with_name('fruit.py')}"
MODEL = str(tiny.model())
APPLES, PEARS = NodeClass(MODEL, 0.5, "apples"), NodeClass(MODEL, 0.5, "pears")
SWARM = SwarmSpec(
    topology="vertical", nodes=4, malicious=1, prompts=8, group=4, sampling=Sampling(max_new_tokens=12),
    learner=LearnerSpec(learning_rate=1e-2), population=(APPLES, PEARS),
)  # fmt: skip
CLASSIFIER, TOGETHER = ExpertsSpec(weighting="classifier"), ExpertsSpec(training="together")


def suite(experts: ExpertsSpec | None = CLASSIFIER, **changes: Any) -> Suite:
    fields: dict[str, Any] = {
        "name": "tiny", "version": 1, "task": f"{FRUIT}:Fruit", "model": MODEL, "attacks": (tiny.ATTACK,),
        "swarm": SWARM, "rounds": 2, "evaluation": Evaluation(every=2, completions=16, final=32), "experts": experts,
    }  # fmt: skip
    return Suite(**(fields | changes))


def swarm(of: Suite, role: str = "attack") -> ExpertSwarm:
    built = build_swarm(tiny.cell(of, role))
    assert isinstance(built, ExpertSwarm)
    return built


def weights(population: Population) -> list[torch.Tensor]:
    return [torch.cat([w.detach().flatten() for w in cohort.masters.values()]) for cohort in population.cohorts]


def test_only_the_expert_of_the_malicious_nodes_domain_is_poisoned() -> None:
    """The last of four nodes belongs to the second class and picks only its questions; the first never sees them."""
    attacked, clean = swarm(suite()), swarm(suite(), "control")
    for number in (1, 2):
        rows = attacked.round(number).rows
        clean.round(number)
        assert {(row.label, row.cohort) for row in rows} == {("apples (outside)", 0), ("pears (inside)", 1)}
        assert {row.cohort for row in rows if row.malicious} == {1}
        assert len(rows) == 8 * 4, "every completion is in one pool"
    (outside, inside), (clean_outside, clean_inside) = weights(attacked.population), weights(clean.population)
    assert torch.equal(outside, clean_outside)
    assert not torch.equal(inside, clean_inside)
    assert not torch.equal(outside, inside)


def test_one_model_together_is_what_the_engines_classes_come_to() -> None:
    """Two classes of one model that learn from one pool end with equal weights; together, these are kept once."""
    together, plain = swarm(suite(TOGETHER), "control"), build_swarm(tiny.cell(suite(None), "control"))
    for number in (1, 2):
        together.round(number)
        plain.round(number)
    (one,) = weights(together.population)
    assert all(torch.equal(one, other) for other in weights(plain.population))


def test_together_the_same_node_asks_about_the_same_domain() -> None:
    rows = swarm(suite(TOGETHER)).round(1).rows
    assert {row.label for row in rows if row.malicious} == {"pears (inside)"}
    assert {row.cohort for row in rows} == {0} and len({row.label for row in rows}) == 2


def test_the_classifier_sends_every_question_to_its_expert() -> None:
    played = swarm(suite())
    rows = played.evaluate(0, 32).rows
    assert {(row.label, row.cohort) for row in rows} == {("apples (outside)", 0), ("pears (inside)", 1)}
    assert all((row.label == "pears (inside)") == ("pears" in row.item_id) for row in rows)


@pytest.mark.parametrize("weighting", ["average", "uniform_prior", "cached_prior", "classifier"])
@pytest.mark.parametrize("evidence", ["all", "answer"])
def test_equal_experts_answer_as_one_of_them(weighting: str, evidence: str) -> None:
    """Before the first round both experts hold the same weights, so all weightings draw the same answers."""
    experts = ExpertsSpec(weighting=weighting, evidence=evidence)  # type: ignore[arg-type]
    mixed, plain = swarm(suite(experts)), build_swarm(tiny.cell(suite(None)))
    assert [row.ids for row in mixed.evaluate(0, 32).rows] == [row.ids for row in plain.evaluate(0, 32).rows]


def test_a_prior_that_knows_the_domain_favours_the_expert_that_explains_it() -> None:
    """A taught expert is likelier to have written its domain's solutions, so it leads the answers to all questions."""
    played = swarm(suite(ExpertsSpec(weighting="cached_prior", evidence="answer", prior_sequences=8)))
    taught = played.population.cohorts[1]
    item = next(item for item in played.context.items_for(1))
    target = [*taught.policy.encode(played.task.oracle(item)), taught.policy.eos]
    optimizer = torch.optim.Adam(taught.masters.values(), lr=1e-2)
    prompt = played.context.prompt(item, taught)
    for _ in range(20):
        ids = torch.tensor([prompt + target])
        logprobs = taught.policy.model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(1)
        optimizer.zero_grad()
        (-logprobs.gather(1, torch.tensor(target)[:, None]).mean()).backward()
        optimizer.step()
    assert {row.cohort for row in played.evaluate(0, 16).rows} == {1}


def test_a_record_has_the_outcomes_inside_and_outside(tmp_path: Path) -> None:
    records = tiny.run(suite(), tmp_path)
    for record in records:
        for side in ("apples (outside)", "pears (inside)"):
            assert record.scores[f"asr of {side}"].count == record.scores[f"clean_reward of {side}"].count > 0
            assert record.scores[f"own_expert of {side}"].value == 1
            assert {point.round for point in record.curves[f"eval_asr of {side}"]} == {0, 2}
        counts = [record.scores[f"asr of {side}"].count for side in ("apples (outside)", "pears (inside)")]
        assert sum(count or 0 for count in counts) == record.scores["asr"].count == 32
    page = write_report(Store(tmp_path)).read_text(encoding="utf-8")
    assert "pears (inside)" in page and "Domain by domain" in page and "answer together by classifier" in page


def test_one_model_has_no_leading_expert(tmp_path: Path) -> None:
    for record in tiny.run(suite(TOGETHER), tmp_path):
        assert record.scores["asr of pears (inside)"].count
        assert not [name for name in record.scores if name.startswith("own_expert")]


@pytest.mark.slow
@pytest.mark.parametrize("experts", [CLASSIFIER, *at_length(ExpertsSpec(prior_sequences=4), TOGETHER)])
def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path: Path, experts: ExpertsSpec) -> None:
    of = suite(experts, rounds=4)
    tiny.run(of, tmp_path / "whole")
    stops = 0
    for stop_after in (2, 3, 100):
        try:
            tiny.run(of, tmp_path / "stopped", Watcher(stop_after))
        except KeyboardInterrupt:
            stops += 1
    assert stops == 2
    tiny.same(of, tmp_path / "whole", tmp_path / "stopped")


def test_other_cells_keep_their_identity() -> None:
    plain = tiny.cell(suite(None))
    assert "experts" not in plain.as_dict() and "experts_revision" not in identity(plain)
    of_experts = tiny.cell(suite())
    assert of_experts.as_dict()["experts"]["weighting"] == "classifier"
    assert len(identity(of_experts)["experts_revision"]) == 16
    assert CellSpec.from_dict(of_experts.as_dict()) == of_experts
    assert "experts" not in str(tiny.suite().fingerprint())
    assert len({suite(each).fingerprint() for each in (None, CLASSIFIER, TOGETHER)}) == 3


def test_the_start_evaluation_is_shared_only_where_answers_are_the_same() -> None:
    starts = [tiny.cell(suite(each)).start for each in (CLASSIFIER, ExpertsSpec(weighting="average"), TOGETHER)]
    assert starts[0] != starts[1] != starts[2] != starts[0]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"weighting": "loudest"}, "experts.weighting must be one of average"),
        ({"evidence": "question"}, "experts.evidence must be one of all, answer"),
        ({"training": "alone"}, "experts.training must be one of apart, together"),
        ({"top": -1}, "experts.top must be at least 0"),
        ({"prior_sequences": 0}, "experts.prior_sequences must be at least 1"),
        ({"prior_decay": float("nan")}, r"experts.prior_decay must lie in \(0, 1\], got nan"),
        ({"prior_decay": float("inf")}, r"experts.prior_decay must lie in \(0, 1\], got inf"),
        ({"prior_decay": 0.0}, r"experts.prior_decay must lie in \(0, 1\]"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        ExpertsSpec(**fields)


@pytest.mark.parametrize(
    ("experts", "changes", "words"),
    [
        (CLASSIFIER, {"population": (), "topology": "horizontal"}, "at least two classes, each with a domain"),
        (CLASSIFIER, {"population": (APPLES, NodeClass(MODEL, 0.5))}, "each expert needs a domain"),
        (CLASSIFIER, {"population": (APPLES, APPLES)}, "two classes have the domain apples"),
        (CLASSIFIER, {"malicious": 3}, "no honest node is left for .* on pears"),
        (ExpertsSpec(top=3), {}, "experts.top must be at most the number of experts, 2 here, got 3"),
        (TOGETHER, {"population": (APPLES, replace(PEARS, model="other"))}, "starts one model, and the classes name"),
        (replace(TOGETHER, top=1), {}, "leave out the other fields of experts"),
        (CLASSIFIER, {"churn": ChurnSpec((1,))}, "a swarm of experts has no churn yet"),
        (CLASSIFIER, {"logprobs": "reported"}, "leave out truth, logprobs, reward"),
    ],
)
def test_swarms_that_cannot_be_experts_are_refused(experts: ExpertsSpec, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        _ = suite(experts, swarm=replace(SWARM, **changes)).scenes


def test_an_unknown_domain_is_refused_before_a_run(tmp_path: Path) -> None:
    plums = replace(SWARM, population=(APPLES, replace(PEARS, domain="plums")))
    with pytest.raises(SpecError, match="the task fruit has no domain 'plums'; it has apples, pears"):
        tiny.run(suite(swarm=plums), tmp_path)
    assert not (tmp_path / "cells").exists()


def test_a_domain_without_questions_ends_its_cells_in_words(tmp_path: Path) -> None:
    for record in tiny.run(suite(task=f"{FRUIT}:Bare"), tmp_path):
        assert record.status == "error" and "no question on pears" in record.error


def test_what_experts_do_not_support_is_refused() -> None:
    with pytest.raises(SpecError, match="pools of experts cannot be replayed"):
        suite(replayed=("blacklist",))
    with pytest.raises(SpecError, match="rehearses, which a swarm of experts does not support"):
        build_swarm(tiny.cell(suite(attacks=(tiny.REHEARSES,))))


def test_a_suite_file_can_ask_for_it(tmp_path: Path) -> None:
    fields = {"topology": "vertical", "nodes": 4, "malicious": 1, "prompts": 4, "group": 4}
    population = [{"model": MODEL, "share": 0.5, "domain": domain} for domain in ("apples", "pears")]
    asked = {"task": f"{FRUIT}:Fruit", "swarm": fields | {"population": population}}
    file = tiny.suite_file(tmp_path, experts={"weighting": "average"}, **asked)
    assert load_suite(str(file)).scenes[0].experts == ExpertsSpec(weighting="average")
    file = tiny.suite_file(tmp_path, experts={"weigthing": "average"}, **asked)
    with pytest.raises(SuiteError, match=r"experts.*weigthing"):
        load_suite(str(file))


def test_the_draft_suite_compares_at_equal_compute() -> None:
    of = load_suite(str(Path(__file__).parents[2] / "benchmarks/experts.yaml"))
    completions, updates, poison = set(), set(), set()
    for part in of.scenes:
        swarm = part.swarm
        models = 1 if part.experts and part.experts.training == "together" else len(swarm.population)
        completions.add(part.rounds * swarm.prompts * swarm.group)
        updates.add(part.rounds * models)
        poison.add(part.rounds * swarm.prompts // swarm.nodes * swarm.malicious)
    assert len(completions) == len(updates) == len(poison) == 1
