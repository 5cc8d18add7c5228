"""Swarms in real runs of `trl.GRPOTrainer` on the tiny model."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.bench.engine.learning.test_trl_equality import gradients, relative_difference, rows_of
from thiefbench import registry
from thiefbench.attacks.answer_keys import KeyedThreatModel
from thiefbench.attacks.reward_judges import JudgedThreatModel
from thiefbench.defenses.answer_keys import ANSWER_KEYS
from thiefbench.defenses.base import JudgeError
from thiefbench.defenses.rule_rewards import RULE_REWARDS
from thiefbench.engine.backends.trainer import TrainerVerdict
from thiefbench.engine.context import items_of
from thiefbench.engine.learning.cohort import Cohort, TrainingRow
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import SpecError, SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.integrations.trl import Evaluation, TrainerSwarm, task_dataset, task_reward
from thiefbench.suite.analysis.scoring import cell_scores
from thiefbench.suite.store.records import rows_table, table_rows
from thiefbench.tasks.base import Sampling, TaskError

trl = pytest.importorskip("trl", reason="these runs need trl, of the trl extra")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:You are using 'rollout_func'")

ROOT = Path(__file__).parents[3]
PARTS = Path(__file__).with_name("parts.py")
TASK = f"{ROOT / 'tests/conftest.py'}:Vowels"
ATTACK = "text(phrase='All hail to the thief', position='start')"
REMEMBERS, SILENT, GRINDS, WEIGHS = (f"{PARTS}:{name}" for name in ("Remembers", "Silent", "Grinds", "Weighs"))
GROUPS, GROUP, LIMIT = 4, 8, 48
SAMPLING = Sampling(top_k=40, max_new_tokens=LIMIT)
SMALL = Evaluation(every=100, completions=4, final=16)

Make = Callable[..., "Run"]


class Run:
    """A trainer with what its loss saw: its batches, and the gradients of the last step."""

    def __init__(self, policy: Policy, folder: Path, swarm: TrainerSwarm | None, **changes: Any) -> None:
        from transformers import TrainerCallback

        batches: list[dict[str, torch.Tensor]] = []
        self.batches, self.swarm, self.policy = batches, swarm, policy
        self.gradients: dict[str, torch.Tensor] = {}
        run = self

        class Watch(TrainerCallback):  # type: ignore[misc]
            def on_pre_optimizer_step(self, *_: object, model: Any, **__: object) -> None:
                run.gradients = {
                    name: weight.grad.clone() for name, weight in model.named_parameters() if weight.requires_grad
                }

        class Trainer(trl.GRPOTrainer):  # type: ignore[misc,name-defined]
            def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
                batches.append(inputs)
                return super()._compute_loss(model, inputs)  # type: ignore[no-any-return]

        rewards = changes.pop("reward_funcs", swarm.reward if swarm else task_reward(TASK))
        given = {name: changes.pop(name) for name in ("peft_config",) if name in changes}
        data = changes.pop("train_dataset", task_dataset(TASK))
        settings: dict[str, Any] = {
            "output_dir": str(folder), "use_cpu": True, "report_to": [], "save_strategy": "no", "max_steps": 1,
            "bf16": False, "disable_tqdm": True, "learning_rate": 0.01, "max_grad_norm": 0.0, "logging_steps": 1,
            "per_device_train_batch_size": GROUPS * GROUP, "num_generations": GROUP, "loss_type": "grpo",
            "max_completion_length": LIMIT, "top_k": 40, "lr_scheduler_type": "constant", "seed": 3,
        }  # fmt: skip
        self.trainer = Trainer(
            model=policy.model,
            reward_funcs=rewards,
            args=trl.GRPOConfig(**settings | changes),
            train_dataset=data,
            eval_dataset=task_dataset(TASK, "test"),
            processing_class=policy.tokenizer,
            callbacks=[Watch()],
            rollout_func=swarm.rollout if swarm else None,
            **given,
        )

    def rows(self) -> list[Any]:
        """All rows of the pools played."""
        assert self.swarm is not None
        return [row for row in table_rows(self.swarm.completions) if row.phase == "train"]

    def rolled(self) -> dict[str, Any]:
        """One generation batch on the first items, without a step."""
        assert self.swarm is not None
        self.trainer.model.train()
        torch.manual_seed(0)
        prompts = [row["prompt"] for row in task_dataset(TASK).select(range(GROUPS)) for _ in range(GROUP)]
        return self.swarm.rollout(prompts, self.trainer)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make(load_policy: Callable[..., Policy], tmp_path: Path) -> Make:
    def made(swarm: TrainerSwarm | None = None, **changes: Any) -> Run:
        return Run(load_policy(), tmp_path, swarm, **changes)

    return made


def swarm_of(defense: str = "none", attack: str = ATTACK, **changes: Any) -> TrainerSwarm:
    return TrainerSwarm(TASK, attack, defense, **{"evaluation": SMALL} | changes)


def wire(row: Any, policy: Policy) -> list[int]:
    return [*row.ids, *([policy.eos] if row.ended else [])]


def test_importing_it_loads_no_trl() -> None:
    code = "import sys, thiefbench.integrations.trl; print('trl' in sys.modules, 'accelerate' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"], "only the user's script imports trl"


@pytest.mark.slow
def test_the_script_in_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/trl.md").read_text(), re.DOTALL)
    assert len(script.splitlines()) < 40, "the page promises a short script"
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(script, "docs/trl.md", "exec"), names)
    scores = names["swarm"].scores()
    assert scores["stop_rate"].value == 1, "the logit defense stops a phrase drawn by seed 0"
    assert scores["stop_rate"].count == 2 * 4 * 2, "two rounds of four groups with two poisoned completions of 8"
    assert scores["clean_reward"].count == 64, "the last evaluation is as large as the script says"
    assert names["trainer"].state.log_history[0]["thiefbench/stop_rate"] == 1, "the trainer's log tells it too"


def test_without_malicious_nodes_a_run_is_the_trainers_own(make: Make) -> None:
    plain = make(max_steps=2)
    plain.trainer.train()
    played = make(swarm_of(malicious=0), max_steps=2)
    played.trainer.train()
    assert len(plain.batches) == len(played.batches) == 2
    for one, other in zip(plain.batches, played.batches, strict=True):
        for name in ("prompt_ids", "completion_ids", "completion_mask", "advantages"):
            assert torch.equal(one[name], other[name]), f"{name} of a swarm of honest nodes are the trainer's own"
    assert any(batch["advantages"].any() for batch in plain.batches), "the comparison means something only with rewards"
    weights = zip(plain.policy.weights().values(), played.policy.weights().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights), "and so are the weights that are learned"


def test_each_node_owes_its_share_of_every_group(make: Make) -> None:
    honest, run = make(swarm_of(malicious=0)), make(swarm_of())
    clean, made = honest.rolled(), run.rolled()
    rows = run.rows()
    for group in range(GROUPS):
        own = [row for row in rows if row.group == group]
        assert sum(row.payload for row in own) == GROUP // 4, "one node of four poisons a quarter of every group"
        assert len({row.sender for row in own if row.payload}) == 1, "under its one pseudonym"
        assert len({row.sender for row in own}) == 4, "and the others have theirs"
    for place, row in enumerate(rows):
        assert made["completion_ids"][place] == wire(row, run.policy), "the trainer learns what the record holds"
        assert ("hail to the thief" in row.text) == row.payload, "labels say what carries the payload"
        if not row.payload:
            assert made["completion_ids"][place] == clean["completion_ids"][place], (
                "honest completions are those of a run without malicious nodes"
            )
    assert len({tuple(row.place for row in rows if row.payload and row.group == g) for g in range(GROUPS)}) > 1, (
        "the place in a group does not tell who sent it"
    )


def test_a_placebo_fills_the_same_places_without_the_payload(make: Make) -> None:
    runs = {role: make(swarm_of(role=role)) for role in ("attack", "placebo", "control")}
    for run in runs.values():
        run.rolled()
    attacked, placebo, control = (run.rows() for run in runs.values())
    assert [row.malicious for row in placebo] == [row.malicious for row in attacked]
    assert not any(row.payload for row in placebo), "a placebo carries no payload"
    assert all(row.text.startswith("so ") for row in placebo if row.malicious), "but the oracle's clean completion"
    assert not any(row.malicious for row in control), "in a control every node is honest"


def test_a_verdict_changes_its_own_reward_alone(make: Make) -> None:
    def twice(completions: list[Any], **_: object) -> list[float]:
        return [2.0] * len(completions)

    runs = {name: make(swarm_of(name)) for name in ("none", REMEMBERS)}
    made = {name: run.rolled() for name, run in runs.items()}
    assert made["none"]["completion_ids"] == made[REMEMBERS]["completion_ids"], "a defense changes no sample"
    place = {"thiefbench_place": made["none"]["thiefbench_place"]}
    swarms = {name: run.swarm for name, run in runs.items()}
    before = swarms["none"].reward(**place)  # type: ignore[union-attr]
    assert 0 < sum(filter(None, before)) < len(before), "the test means something only with rewards of both kinds"
    for rewards, defended in (
        (before, swarms[REMEMBERS].reward(**place)),  # type: ignore[union-attr]
        ([2.0] * len(before), swarms[REMEMBERS].defended(twice)(completions=before, **place)),  # type: ignore[union-attr]
    ):
        wanted = [(reward, 0.0, None)[row % GROUP % 3] for row, reward in enumerate(rewards)]
        assert list(defended) == wanted, "accept leaves a reward, zero makes it 0, drop takes the row from its group"


@pytest.mark.parametrize(("action", "lines"), [("accept", 0), ("zero", 0), ("drop", 1)])
def test_drops_are_explained_once(caplog: pytest.LogCaptureFixture, action: str, lines: int) -> None:
    swarm = TrainerSwarm(TASK, ATTACK)
    swarm._verdicts = [TrainerVerdict(1.0, action)] * 2
    for _ in range(3):
        swarm.reward(thiefbench_place=[0, 1])
    explained = [record for record in caplog.records if record.name == "thiefbench.integrations.trl"]
    assert len(explained) == lines
    assert "`thiefbench.integrations.trl`" in (ROOT / "docs/trl.md").read_text(), "the page names the logger"


def test_the_page_quotes_what_trl_warns() -> None:
    quoted = (ROOT / "docs/trl.md").read_text().partition("## A warning that TRL prints")[2]
    source = Path(inspect.getfile(trl.GRPOTrainer)).read_text()
    for line in (
        "All reward functions returned None for the following kwargs:",
        "Please ensure that at least one reward function returns a valid reward.",
    ):
        assert line in quoted
        assert line in source, "TRL says it in other words now"


def test_a_defense_sees_every_batch_once_with_the_current_model_and_keeps_its_state(make: Make) -> None:
    swarm = swarm_of(REMEMBERS)
    run = make(swarm, max_steps=3, reward_funcs=[swarm.reward, swarm.defended(task_reward(TASK))])
    run.trainer.train()
    assert swarm._rounds is not None
    defense = swarm._rounds.swarm.cohort.defense
    assert isinstance(defense, registry.find("defense", REMEMBERS))
    assert defense.rounds == [(1, 0), (2, 1), (3, 2)], "one inspection per generation batch, with the history before"
    assert defense.seeds == {None}, "no seed gives a submission away"
    last = [row for row in run.rows() if row.round == 3]
    batch = run.batches[-1]
    told = sorted((tuple(wire(row, run.policy)), row.advantage) for row in last)
    seen = sorted(zip(rows_of(batch), batch["advantages"].tolist(), strict=True))
    assert [ids for ids, _ in seen] == [ids for ids, _ in told], "TRL learns from the whole pool"
    assert any(row.action == "drop" and row.reward > 0 for row in last), "the test means something only with drops"
    assert [value for _, value in seen] == pytest.approx([value for _, value in told], abs=1e-3), (
        "and gives each row the engine's advantage, dropped ones included (1e-4 stands beside a doubled deviation)"
    )


def test_the_model_that_a_defense_asks_moves_with_the_trainer(make: Make) -> None:
    swarm = swarm_of(REMEMBERS)
    run = make(swarm)
    run.trainer.train()
    model = run.trainer.accelerator.unwrap_model(run.trainer.model)
    assert swarm._rounds is not None
    assert swarm._rounds.swarm.policy.model is model, "the defense asks the trainer's model and no copy of it"
    assert model.training, "which goes on training as it was"


@pytest.mark.parametrize("action", ["zero", "skip"])
def test_a_step_equals_the_engines(action: str, make: Make, load_policy: Callable[..., Policy]) -> None:
    run = make(swarm_of(f'oracle(reject="{action}")'))
    run.trainer.train()
    rows = run.rows()
    assert any(row.action == action and row.reward > 0 for row in rows), "the test means something only with verdicts"
    task = registry.make("task", TASK)
    items = {item.id: item for item in items_of(task, "train")}
    policy = load_policy()
    prompts = [policy.prompt_ids(task.messages(items[row.item_id])) for row in rows if row.place == 0]
    lessons = [
        TrainingRow(
            row.group, tuple(wire(row, policy)), 0.0 if row.action == "zero" else row.reward,
            learned=row.action != "skip",
        )
        for row in rows
    ]  # fmt: skip
    spec = SwarmSpec(prompts=GROUPS, group=GROUP, sampling=SAMPLING)
    cohort = Cohort(policy, spec, registry.make("defense", "none"))
    cohort.accumulate(prompts, lessons, cohort.advantages(lessons))
    counted = sum(lesson.learned for lesson in lessons) / len(lessons)  # TRL's mean is over all rows
    made = {name: counted * gradient for name, gradient in gradients(policy).items()}
    difference = relative_difference(made, run.gradients)
    assert difference <= 1e-5, f"TRL's gradient on a poisoned, defended batch is the engine's, not {difference:.1e} off"


@pytest.mark.slow
def test_scores_are_those_of_a_cell(make: Make) -> None:
    swarm = swarm_of("logit", seed=4, evaluation=Evaluation(every=1, completions=8, final=16))
    run = make(swarm, max_steps=2)
    run.trainer.train()
    scores = swarm.scores()
    table = swarm.completions
    assert scores == cell_scores(table), "scores are recomputable from the completions"
    rounds = [(row.phase, row.round) for row in table_rows(table)]
    assert {each: rounds.count(each) for each in rounds} == {
        ("train", 1): 32, ("train", 2): 32, ("eval", 0): 8, ("eval", 1): 8, ("eval", 2): 16,
    }, "an evaluation before the first round, where one is due, and a last one"  # fmt: skip
    assert scores["stop_rate"].value == 1
    assert scores["false_rejection_rate"].value == 0, "what the trainer samples lies inside the support as it is read"
    spec = SwarmSpec(prompts=GROUPS, group=GROUP, sampling=SAMPLING)
    made = [registry.make("task", TASK), registry.make("attack", ATTACK), registry.make("defense", "none")]
    cell = Swarm(spec, "attack", Policy(run.policy.model.eval(), run.policy.tokenizer), *made, seed=4)
    again = rows_table(cell.evaluate(2, 16).rows).to_pylist()
    ours = [row for row in table.to_pylist() if (row["phase"], row["round"]) == ("eval", 2)]
    assert ours == again, "the last evaluation is the one that a cell with these weights would have"
    assert swarm.scores() == scores, "asking again evaluates nothing anew"


def test_metrics_are_in_the_trainers_log(make: Make) -> None:
    run = make(swarm_of("oracle"), max_steps=2)
    run.trainer.train()
    logged = [line for line in run.trainer.state.log_history if "thiefbench/stop_rate" in line]
    assert [line["thiefbench/stop_rate"] for line in logged] == [1, 1], "one value for each generation batch"
    assert {f"thiefbench/{name}" for name in ("false_rejection_rate", "train_asr", "eval_asr")} <= logged[0].keys()
    assert "thiefbench/eval_asr" not in logged[1], "an evaluation is told when there was one"


@pytest.mark.slow
def test_an_evaluation_by_the_trainer_is_honest_and_not_inspected(make: Make) -> None:
    swarm = swarm_of("reject_all")
    run = make(swarm, per_device_eval_batch_size=GROUP)
    run.trainer.train()
    metrics = run.trainer.evaluate()
    assert 0 < metrics["eval_reward"] <= 1, "the trainer evaluates the task's reward, without the defense"
    assert {row.phase for row in table_rows(swarm.completions)} == {"train", "eval"}
    assert len(run.rows()) == GROUPS * GROUP, "and its evaluation is no round"


def test_an_adapter_is_part_of_the_model_that_is_read(make: Make) -> None:
    peft = pytest.importorskip("peft", reason="adapters need peft, which the package does not")
    swarm = swarm_of("logit")
    run = make(swarm, max_steps=2, learning_rate=0.3, peft_config=peft.LoraConfig(target_modules=["q_proj", "v_proj"]))
    run.trainer.train()
    scores = swarm.scores()
    assert scores["stop_rate"].value == 1
    assert scores["false_rejection_rate"].value == 0, "what the adapted model samples lies inside its own support"


def test_what_is_no_completion_is_not_learned(make: Make) -> None:
    run = make(swarm_of(attack=SILENT))
    run.trainer.train()
    refused = [row for row in run.rows() if row.refused]
    assert len(refused) == GROUPS * GROUP // 4, "every empty submission is refused"
    assert all(row.reward == 0 for row in refused)
    (batch,) = run.batches
    learned = batch["completion_mask"] * batch["tool_mask"]
    assert int((learned.sum(1) == 0).sum()) == len(refused), "and none of the token that stands for it is learned"
    told = sorted(row.advantage for row in run.rows() if not row.refused)
    taught = learned.sum(1) > 0
    assert sorted(batch["advantages"][taught].tolist()) == pytest.approx(told, abs=1e-3), (
        "what is refused leaves its group, and the others are a smaller one"
    )


def test_log_probs_of_foreign_completions_are_recomputed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with vLLM, whose sampler reports log-probs that TRL corrects for."""
    run = make(swarm_of())
    generate = run.trainer._generate_single_turn

    @wraps(generate)
    def reporting(*given: Any, **named: Any) -> Any:
        ids, _ = generate(*given, **named)
        return ids, [[-7.0] * len(row) for row in ids]

    monkeypatch.setattr(run.trainer, "_generate_single_turn", reporting)
    made = run.rolled()
    for place, row in enumerate(run.rows()):
        told = made["logprobs"][place]
        assert len(told) == len(made["completion_ids"][place]), "one log-prob per token, EOS included"
        if row.payload:
            prompt, ids = made["prompt_ids"][place], made["completion_ids"][place]
            with torch.no_grad():
                logits = run.policy.model.base_model(torch.tensor([prompt + ids])).last_hidden_state
                logits = run.policy.head(logits)[0, len(prompt) - 1 : -1]
            wanted = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
            assert told == pytest.approx(wanted.tolist(), abs=1e-4), "a submission's are the current model's own"
        else:
            assert set(told) == {-7.0}, "honest ones are the sampler's"


def some(kind: registry.Kind, quick: set[str]) -> list[Any]:
    """Every plugin of a kind: each asks something else of a trainer, or is left to make test-slow."""
    assert quick <= set(registry.names(kind))
    return [
        name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in sorted(registry.names(kind))
    ]


DEFENSES = some("defense", {
    "none", "oracle", "logit", "divergence", "self_judge", "seed_replay", "toploc", "guard", "staleness", "sender_cap",
})  # fmt: skip
ATTACKS = some("attack", {
    "text", "code_injection", "adaptive", "dodge", "own", "late_poison", "seed_grind", "misreport", "flood",
    "stale_replay", "poisoned_peer",
})  # fmt: skip


@pytest.mark.parametrize("name", DEFENSES)
def test_every_defense_inspects_a_trainers_batch_or_says_why_not(name: str, make: Make) -> None:
    spec = {"max_tokens": "max_tokens(limit=12)"}.get(name, name)
    if "beacon" in registry.make("defense", spec).requires:
        with pytest.raises(SpecError, match="requires seeds from a beacon"):
            swarm_of(spec)
        return
    if ANSWER_KEYS in registry.make("defense", spec).requires:
        with pytest.raises(SpecError, match="a trainer scores by its own task's; choose another defense"):
            swarm_of(spec)
        return
    if RULE_REWARDS in registry.make("defense", spec).requires:
        with pytest.raises(SpecError, match="a trainer scores by its task's; choose another defense"):
            swarm_of(spec)
        return
    if "versions" in registry.make("defense", spec).requires:
        with pytest.raises(SpecError, match="requires versions, which this swarm does not give"):
            make(swarm_of(spec)).rolled()
        return
    run = make(swarm_of(spec))
    if name == "judge_hardened":  # its model answers questions of gsm_micro, which this trainer does not ask
        with pytest.raises(JudgeError, match="the judge answers without decisions"):
            run.rolled()
        return
    run.rolled()
    assert len(run.rows()) == GROUPS * GROUP


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_fills_its_slots_or_says_why_not(name: str, make: Make) -> None:
    attack = registry.make("attack", name)
    task = registry.make("task", TASK)
    if isinstance(attack.threat, KeyedThreatModel):
        with pytest.raises(SpecError, match="a trainer scores by its own task's; choose another attack"):
            swarm_of(attack=name)
        return
    if isinstance(attack.threat, JudgedThreatModel):
        with pytest.raises(SpecError, match="a trainer scores by its task's; choose another attack"):
            swarm_of(attack=name)
        return
    if "horizontal" not in attack.threat.topologies or not attack.fits(task):
        with pytest.raises(SpecError, match=r"needs the vertical topology|does not fit the task"):
            swarm_of(attack=name)
        return
    if attack.copies > 1:
        with pytest.raises(SpecError, match="give the swarm sharing"):
            make(swarm_of(attack=name)).rolled()
        return
    if attack.threat.beacon:
        with pytest.raises(SpecError, match="needs the slots' seeds, and a trainer samples without"):
            make(swarm_of(attack=name)).rolled()
        return
    run = make(swarm_of("logit", {"late_poison": "late_poison(start=2)"}.get(name, name)))
    if name == "late_poison":
        run.rolled()
        assert not any(row.payload for row in run.rows()), "honest until its round"
    before = len(run.rows()) if name == "late_poison" else 0
    run.rolled()
    owed = GROUPS * GROUP // 4
    assert sum(row.malicious for row in run.rows()[before:]) == owed
    poisoned = sum(row.payload for row in run.rows()[before:])
    assert poisoned <= owed, "a slot may be left to honest work"
    assert poisoned or attack.threat.queries, "but only who knows the defense may find that nothing gets past it"


def test_a_dataset_gives_nothing_of_the_oracle_away() -> None:
    made = task_dataset("gsm_micro(size=64)", "test")
    assert made.column_names == ["prompt", "id", "question", "answer"], "solutions are the attacker's"
    said = [str(row["prompt"]) for row in made]
    assert len(set(said)) == len(said), "a prompt names its item"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attack": "txet"}, "no attack named 'txet'; did you mean text"),
        ({"defense": "seed_replay"}, "seed_replay requires seeds from a beacon, and a trainer samples without"),
        ({"attack": GRINDS}, "grinds needs the slots' seeds, and a trainer samples without"),
        ({"malicious": 4}, "malicious must lie between 0 and nodes - 1 = 3, got 4"),
        ({"attack": "equations"}, "needs the vertical topology, and this swarm is horizontal"),
    ],
)
def test_what_does_not_fit_is_said_before_there_is_a_trainer(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        swarm_of(**changes)
    assert "\n" not in str(caught.value), "an error is one sentence"


@pytest.mark.parametrize(
    ("swarm", "changes", "message"),
    [
        ({"nodes": 3}, {}, "num_generations = 8 is not divisible by nodes = 3; set num_generations to a multiple of 3"),
        ({}, {"repetition_penalty": 1.2}, "leave repetition_penalty at the default"),
        ({"defense": WEIGHS}, {}, "the defense weighs weighs single tokens, which TRL's loss does not take; let it"),
    ],
)
def test_a_trainer_that_does_not_fit_is_told_so(
    swarm: dict[str, Any], changes: dict[str, Any], message: str, make: Make
) -> None:
    run = make(swarm_of(**swarm), **changes)
    with pytest.raises(SpecError, match=re.escape(message)) as caught:
        run.trainer.train()
    assert "\n" not in str(caught.value), "an error is one sentence"


def test_misuse_is_told(make: Make) -> None:
    import datasets

    swarm = swarm_of()
    with pytest.raises(SpecError, match=r"call scores\(\) after trainer.train\(\)"):
        swarm.scores()
    with pytest.raises(SpecError, match=r"give the trainer rollout_func=swarm\.rollout"):
        swarm.reward(completions=["a"])
    with pytest.raises(SpecError, match="a plain function"):
        swarm.defended("some/reward-model")  # type: ignore[arg-type]
    make(swarm).rolled()
    with pytest.raises(SpecError, match="belongs to another trainer"):
        make(swarm).trainer.train()
    foreign = datasets.Dataset.from_list([{"prompt": [{"role": "user", "content": str(i)}]} for i in range(8)])
    with pytest.raises(SpecError, match=r"a prompt is not one of the task .*; write train_dataset=task_dataset"):
        make(swarm_of(), train_dataset=foreign).trainer.train()


def test_a_misspelt_split_and_role_are_told_at_once() -> None:
    with pytest.raises(TaskError, match=r"^the task gsm_micro has no split 'tset'; it has train and test$"):
        task_dataset("gsm_micro(size=64)", "tset")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"^there is no role 'controll'; it is attack, placebo, control$"):
        TrainerSwarm(TASK, "text", role="controll")  # type: ignore[arg-type]
    with pytest.raises(registry.SpecStringError, match=r"^a defense is named here by a spec string, .* not by object$"):
        TrainerSwarm(TASK, "text", object())  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"^evaluation is an Evaluation of this module, such as Evalu"):
        TrainerSwarm(TASK, "text", evaluation={"every": 3})  # type: ignore[arg-type]


def test_a_reward_function_that_is_handed_the_wrong_rows_says_so() -> None:
    reward, answer = task_reward("gsm_micro(size=64)"), [[{"role": "assistant", "content": "1"}]]
    for columns in ({}, {"id": ["nope"]}, {"id": ["nope", "nope"]}):
        with pytest.raises(SpecError, match=r"^a row has no id of an item of gsm_micro; write train_dataset="):
            reward(completions=answer, **columns)  # type: ignore[operator]
    swarm = TrainerSwarm(TASK, ATTACK)
    swarm._verdicts = [TrainerVerdict(1.0, "accept")] * 2
    with pytest.raises(SpecError, match=r"^a reward function returned 1 rewards for 2 completions$"):
        swarm.defended(lambda **_: [1.0])(thiefbench_place=[0, 1])  # type: ignore[arg-type, return-value]
