"""Isolated attacks on weights and pipelines send what they send in process, and hostile ones are told off by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.bench import tiny
from tests.bench.averaging.test_averaging import suite as averaging_suite
from tests.bench.pipeline.test_pipeline import suite as pipeline_suite
from tests.variants import at_length
from thiefbench import registry, trust
from thiefbench.averaging.swarm import AveragingSwarm
from thiefbench.leaderboard.attacking.cells import fitting_parts
from thiefbench.leaderboard.attacking.running import AttackFactory, run_attack_cell
from thiefbench.leaderboard.isolation.isolated_attack import AttackError, IsolatedAttack
from thiefbench.leaderboard.isolation.isolated_tensor_attacks import (
    IsolatedStageAttack,
    IsolatedWeightAttack,
    _message_in,
    isolated_attack,
)
from thiefbench.leaderboard.isolation.sandbox_paths import attack_kind
from thiefbench.leaderboard.isolation.wire import Malformed
from thiefbench.pipeline.swarm import PipelineSwarm
from thiefbench.registry import SpecStringError
from thiefbench.suite.execution import checkpoints
from thiefbench.suite.execution.cell_identity import RegistryFactory
from thiefbench.suite.execution.cell_run import build_swarm
from thiefbench.suite.execution.checkpoints import CellInProgress
from thiefbench.suite.scenario import Suite
from thiefbench.suite.store.records import Store
from thiefbench.suite.suite_yaml import load_suite
from thiefbench.tasks.sandbox import SandboxUnavailable

HERE = Path(__file__).parent.parent
WEIGHTS, STAGES = HERE / "tensor_attacks.py", HERE / "pipeline_attacks.py"
EXAMPLE = HERE.parent / "examples" / "my_weight_attack.py"
STAGE_EXAMPLE = EXAMPLE.with_name("my_stage_attack.py")
TEXT = tiny.ATTACK


@pytest.fixture(scope="module", autouse=True)
def _jail() -> Iterator[None]:
    """Warm workers: one ends with its last attack."""
    try:
        warm = [isolated_attack(spec) for spec in ("boosted", f"{WEIGHTS}:Pushes", f"{STAGES}:Adds")]
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with trust.plugins():
        yield
    for each in warm:
        each.close()


def of_weights(attack: str, **changes: object) -> Suite:
    return averaging_suite(attacks=(attack,), placebo=True, method=changes.pop("method", "diloco"), **changes)  # type: ignore[arg-type]


def played(
    of: Suite, role: str = "attack", hash_seed: int = 0, isolated: bool = True
) -> tuple[AveragingSwarm | PipelineSwarm, IsolatedAttack | None]:
    """The suite's swarm after two rounds, and its isolated attack."""
    cell = tiny.cell(of, role)
    factory = AttackFactory(
        cell.attack, cell.attack, "", make_guest=lambda spec: isolated_attack(spec, None, hash_seed)
    )
    swarm = build_swarm(cell, maker=factory if isolated else RegistryFactory())
    assert isinstance(swarm, AveragingSwarm | PipelineSwarm)
    for number in (1, 2):
        swarm.round(number)
    return swarm, factory.made


def results(swarm: AveragingSwarm | PipelineSwarm) -> tuple[list[object], torch.Tensor, list[object]]:
    """What was exchanged, the weights in the end, and the outcomes of answers."""
    rows = swarm.exchanges if isinstance(swarm, AveragingSwarm) else swarm.stage_rows
    weights = torch.cat([each.masters[name].reshape(-1) for each in swarm.population.cohorts for name in each.masters])
    return list(rows), weights.detach(), [(row.ids, row.outcome) for row in swarm.evaluate(2, 8).rows]


def check_equal(of: Suite, role: str) -> IsolatedAttack | None:
    """See that the isolated attack does what it does in process; returns it."""
    swarm, attack = played(of, role)
    (rows, weights, answers), (rows_inside, weights_inside, inside) = (
        results(each) for each in (swarm, played(of, role, isolated=False)[0])
    )
    assert rows == rows_inside
    assert torch.equal(weights, weights_inside)
    assert answers == inside
    return attack


# --- the same as in process ---


@pytest.mark.parametrize(
    ("attack", "method"),
    [
        (f"{WEIGHTS}:Pushes", "diloco"),
        (f"{HERE / 'tuned_attack.py'}:Tuned(attack={TEXT!r})", "diloco"),
        *at_length(
            (f"{EXAMPLE}:Leaning(attack={TEXT!r})", "diloco"),
            (f"boosted(attack={TEXT!r}, steps=2)", "noloco"),
            (f"bounded(attack={TEXT!r}, steps=2)", "diloco"),
            (f"alie(attack={TEXT!r})", "diloco"),
        ),
    ],
)
def test_an_attack_on_weights_sends_what_it_sends_in_process(attack: str, method: str) -> None:
    of = of_weights(attack, method=method)
    made = check_equal(of, "attack")
    assert isinstance(made, IsolatedWeightAttack)
    check_equal(of, "placebo")


def test_a_stage_that_adds_zeros_sends_nothing() -> None:
    _, attack = played(pipeline_suite(placebo=True, attacks=(f"{STAGES}:AddsZeros",)))
    assert attack is not None
    assert [cost.sent for cost in attack.costs.values()] == [0, 0, 0], "before round 1 and in two rounds"


@pytest.mark.parametrize(
    "attack",
    [
        f"{STAGES}:Adds",
        *at_length(
            f"{STAGE_EXAMPLE}:Sudden(attack={TEXT!r})",
            f"stage_backdoor(attack={TEXT!r}, rounds=2, steps=2, lessons=16)",
            f"disguised_backdoor(attack={TEXT!r}, steps=2, lessons=16)",
        ),
    ],
)
def test_an_attack_on_a_pipeline_does_what_it_does_in_process(attack: str) -> None:
    of = pipeline_suite(placebo=True, attacks=(attack,))
    made = check_equal(of, "attack")
    assert isinstance(made, IsolatedStageAttack)
    check_equal(of, "placebo")


def test_what_is_used_is_counted() -> None:
    _, pushes = played(of_weights(f"{WEIGHTS}:Pushes"))
    assert pushes is not None
    assert [(cost.sent, cost.steps, cost.samples) for cost in pushes.costs.values()] == [(1, 2, 2)] * 2
    _, adds = played(pipeline_suite(placebo=True, attacks=(f"{STAGES}:Adds",)))
    assert adds is not None
    sent = {number: (cost.sent, cost.steps) for number, cost in adds.costs.items()}
    assert sent == {0: (0, 4), 1: (2, 0), 2: (1, 0)}, "it lies in the first pass of each round, and adds in the first"


def test_what_is_used_is_noted_before_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a kill between the two would lose a round's cost."""
    noted, original = [], CellInProgress.checkpoint

    def seen(run: CellInProgress) -> None:
        noted.append((run.done, json.loads((run.directory.path / "asked.json").read_text())))
        original(run)

    monkeypatch.setattr(CellInProgress, "checkpoint", seen)
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", -1)
    cell = tiny.cell(of_weights(f"{WEIGHTS}:Pushes"), "attack")
    run_attack_cell(cell, Store(tmp_path), AttackFactory(cell.attack, cell.attack, ""), lambda done, total: None)
    assert [done for done, _ in noted][:2] == [1, 2]
    for done, costs in noted:
        assert [costs[str(number)]["sent"] for number in range(1, done + 1)] == [1] * done


def test_another_hash_seed_is_seen() -> None:
    of = of_weights(f"{WEIGHTS}:Faulty(how='hashes')")
    one, other = (results(played(of, hash_seed=seed)[0])[1] for seed in (0, 1))
    assert not torch.equal(one, other)


# --- what is wrong ---


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("text", "a vector is a float32 tensor, not str"),
        ("double", "a vector is a float32 tensor, not float64"),
        ("stacked", "a vector has the shape (size,), not (1, "),
        ("none at all", "gave 0 vectors for 1 malicious node; send returns one"),
        ("asks", "more than 100 questions"),
        ("asks for nothing", "Faulty is not a model that view.lessons.policy has taught"),
        ("reads", "FileNotFoundError"),
    ],
)
def test_what_is_no_vector_is_told(how: str, why: str) -> None:
    with pytest.raises(AttackError) as error:
        played(of_weights(f"{WEIGHTS}:Faulty(how={how!r})"))
    assert why in str(error.value)


def test_a_shape_that_no_tensor_has_is_told() -> None:
    """A guest may send what its library would not."""
    empty = np.zeros(0, np.float32)
    for shape, why in (([2**64, 0], "not of the shape"), ([2**63, 0], "not of the shape"), ([1] * 9, "more than 8")):
        with pytest.raises(Malformed, match=why):
            _message_in({"shape": shape, "arrays": [empty]})


def test_what_ends_the_training_is_the_attack_s_fault(tmp_path: Path) -> None:
    of = pipeline_suite(placebo=True, attacks=(f"{STAGES}:Faulty(how='adds much')",))
    cell = tiny.cell(of, "attack")
    with pytest.raises(
        AttackError, match="beside the attack faulty, the training ends: the weights of stage 2 are not f"
    ):
        run_attack_cell(cell, Store(tmp_path), AttackFactory(cell.attack, cell.attack, ""), lambda done, total: None)


@pytest.mark.parametrize(
    ("spec", "inner"),
    [
        ("boosted(attack='boosted')", "boosted is built around boosted"),
        ("stage_backdoor(attack='boosted')", "stage_backdoor is built around boosted"),
        ("late_poison(attack='boosted')", "late_poison is built around boosted"),
    ],
)
def test_inside_is_an_attack_on_completions(spec: str, inner: str) -> None:
    with pytest.raises(AttackError, match=inner):
        isolated_attack(spec)


@pytest.mark.parametrize("how", ["short", "not a number", "missing"])
def test_vectors_that_honest_nodes_refuse_are_refused_as_in_process(how: str) -> None:
    check_equal(of_weights(f"{WEIGHTS}:Faulty(how={how!r})"), "attack")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("learns little", "and shape ("),
        ("learns nothing", "not NoneType"),
        ("learns no number", "numbers that are not finite"),
        ("learns doubles", "not float64"),
        ("teaches long", "steps"),
        ("teaches from elsewhere", "a vector of float32 and shape (3,)"),
        ("adds little", "a vector of float32 and shape (5,)"),
        ("sends text", "sent gives a float32 tensor or None, not str"),
    ],
)
def test_what_is_no_tensor_of_a_stage_is_told(how: str, why: str) -> None:
    with pytest.raises(AttackError) as error:
        played(pipeline_suite(placebo=True, attacks=(f"{STAGES}:Faulty(how={how!r})",)))
    assert why in str(error.value)


@pytest.mark.parametrize("how", ["sends nothing", "sends little"])
def test_activations_that_are_refused_are_refused_as_in_process(how: str) -> None:
    check_equal(pipeline_suite(placebo=True, attacks=(f"{STAGES}:Faulty(how={how!r})",)), "attack")


# --- which kind it is ---


def test_the_kind_is_read_off_name_or_source(tmp_path: Path) -> None:
    assert attack_kind("text") == "attack"
    assert attack_kind("boosted(attack='text')") == "weight_attack"
    assert attack_kind("disguised_backdoor") == "stage_attack"
    assert attack_kind(f"{WEIGHTS}:Pushes") == "weight_attack"
    assert attack_kind(f"{HERE / 'hums.py'}:Hums") == "attack"
    mentions = tmp_path / "mentions.py"
    mentions.write_text('"""Not thiefbench.attacks.exchange."""\n' + (HERE / "hums.py").read_text())
    assert attack_kind(f"{mentions}:Hums") == "attack"
    ways = (
        "import thiefbench.attacks.exchange.base as e",
        "from thiefbench.attacks import exchange as e",
        "import thiefbench.attacks as a\n\ne = a.exchange.base",
        "from thiefbench import attacks\n\ne = attacks.exchange.base",
        "import importlib\n\ne = importlib.import_module('thiefbench.attacks.exchange.base')",
        "import thiefbench.attacks.exchange.base as e\n\nthis is not valid Python",
    )
    for way in ways:
        mentions.write_text(f"{way}\n\n\nclass Own(e.WeightAttack):\n    pass\n")
        assert attack_kind(f"{mentions}:Own") == "weight_attack", way
    both = tmp_path / "both.py"
    both.write_text(WEIGHTS.read_text() + STAGES.read_text())
    with pytest.raises(SpecStringError, match="write them into separate files"):
        attack_kind(f"{both}:Pushes")


def test_an_attack_that_its_file_hides_is_refused(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden.py"
    hidden.write_text(
        "from importlib import import_module\n\n"
        "base = import_module('thiefbench.attacks.' + 'exchange.base')\n\n\n"
        "class Hidden(base.WeightAttack):\n"
        "    name = 'hidden'\n\n"
        "    def __init__(self, attack: base.Attack | str = 'text') -> None:\n"
        "        super().__init__(attack)\n\n"
        "    def send(self, view):\n"
        "        return []\n"
    )
    with pytest.raises(
        AttackError, match="is an attack on exchanged weights, and its files import what an attack on com"
    ):
        isolated_attack(f"{hidden}:Hidden(attack='text')")


@pytest.mark.parametrize(
    ("attack", "suite", "why"),
    [
        ("boosted", "trial", "it is an attack on exchanged weights, and nodes exchange completions there"),
        (
            "boosted",
            "pipeline-v1",
            "an attack on exchanged weights, and the node is a pipeline there; write a StageAtt",
        ),
        ("stage_backdoor", "averaging-v1", "it is an attack on a pipeline, and nodes exchange weights there"),
        ("stage_backdoor", "trial", "it is an attack on a pipeline, and nodes exchange completions there"),
        (
            "text",
            "averaging-v1",
            "it is an attack on completions, and nodes exchange weights there; write a WeightAtta",
        ),
        ("text", "pipeline-v1", "it is an attack on completions, and the node is a pipeline there"),
    ],
)
def test_an_attack_fits_only_the_suites_of_its_kind(attack: str, suite: str, why: str) -> None:
    fitting, said = fitting_parts(load_suite(suite), registry.make("attack", attack))
    assert fitting == []
    assert why in said
    assert ("put it into one" in said) == (attack == "text")


@pytest.mark.parametrize(("attack", "suite"), [("boosted", "averaging-v1"), ("disguised_backdoor", "pipeline-v1")])
def test_an_attack_fits_the_suites_of_its_kind(attack: str, suite: str) -> None:
    of = load_suite(suite)
    assert fitting_parts(of, registry.make("attack", attack)) == ([part.name for part in of.scenes], "")
