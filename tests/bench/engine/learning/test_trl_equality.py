"""Our loss against TRL's: a real GRPOTrainer takes a real step on the same completions and rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from thiefbench.defenses.anchors import AcceptAll
from thiefbench.engine.learning.cohort import Cohort, TrainingRow
from thiefbench.engine.learning.grpo import LEARNERS, Batch, row_means
from thiefbench.engine.model.forward_cache import CompletionKey, ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import LearnerSpec, LossType, SwarmSpec

trl = pytest.importorskip("trl", reason="the comparison needs trl, of the zoo extra")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:You are using 'rollout_func'")

TOLERANCE = 1e-5
EPSILON = 0.2
ScaleRewards = Literal["group", "none"]
Gradients = dict[str, torch.Tensor]
Run = Callable[..., "Reference"]

combinations = pytest.mark.parametrize("scale_rewards", ["group", "none"])
shared = pytest.mark.parametrize(
    ("loss", "named"),
    [("grpo", "grpo"), ("dr_grpo", "dr_grpo"), ("dapo", "dapo"), ("dapo", "bnpo"), ("gspo", "gspo")],
)
# How TRL is told of a loss, where its name alone does not say it.
TRL_NAMES: dict[str, dict[str, object]] = {
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 2.0},  # the cap itself, which on-policy has to lie above 1
}


@dataclass(frozen=True)
class Reference:
    """A GRPOTrainer after one step: its loss, its gradients before the optimizer, and the batch that its loss saw."""

    trainer: Any
    loss: float
    gradients: Gradients
    inputs: dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def reference(
    load_policy: Callable[..., Policy],
    prompts: list[list[int]],
    pool: list[TrainingRow],
    spec: SwarmSpec,
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    """Run `GRPOTrainer.train` for one step on the pool, whose completions it takes as its own rollouts."""
    import datasets
    from transformers import TrainerCallback

    def rollout(names: list[str], trainer: object) -> dict[str, list[list[int]] | None]:
        """The pool's rows of each group, in the order that the trainer asks for groups."""
        rows = [pool[int(name) * spec.group + i % spec.group] for i, name in enumerate(names)]
        return {
            "prompt_ids": [prompts[row.prompt] for row in rows],
            "completion_ids": [list(row.targets) for row in rows],
            "logprobs": None,
        }

    def reward(prompts: list[str], **_: object) -> list[float]:
        return [pool[int(name) * spec.group + i % spec.group].reward for i, name in enumerate(prompts)]

    @cache
    def run(loss: str, scale_rewards: ScaleRewards, temperature: float = 1.0) -> Reference:
        policy = load_policy()
        seen: dict[str, Any] = {}

        class Watch(TrainerCallback):  # type: ignore[misc]
            def on_pre_optimizer_step(self, *_: object, model: Any, **__: object) -> None:
                seen["gradients"] = {name: weight.grad.clone() for name, weight in model.named_parameters()}

        class Trainer(trl.GRPOTrainer):  # type: ignore[misc,name-defined]
            def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
                seen["inputs"] = inputs
                return super()._compute_loss(model, inputs)  # type: ignore[no-any-return]

        rows = spec.prompts * spec.group
        config = trl.GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("trl")), use_cpu=True, report_to=[], save_strategy="no", max_steps=1,
            bf16=False, gradient_checkpointing=False, disable_tqdm=True, learning_rate=0.0, max_grad_norm=0.0,
            per_device_train_batch_size=rows, num_generations=spec.group, scale_rewards=scale_rewards,
            max_completion_length=spec.sampling.max_new_tokens, beta=0.0, epsilon=EPSILON, temperature=temperature,
            **TRL_NAMES.get(loss, {"loss_type": loss}),
        )  # fmt: skip
        trainer = Trainer(
            model=policy.model,
            reward_funcs=reward,
            args=config,
            train_dataset=datasets.Dataset.from_list([{"prompt": str(i)} for i in range(spec.prompts)]),
            processing_class=policy.tokenizer,
            callbacks=[Watch()],
            rollout_func=rollout,
        )
        result = trainer.train()
        return Reference(trainer, result.training_loss, seen["gradients"], seen["inputs"])

    return run


def test_trl_still_scales_rewards_by_default_as_we_do(tmp_path: Path) -> None:
    assert trl.GRPOConfig(str(tmp_path), use_cpu=True, bf16=False).scale_rewards in ("group", True)
    assert LearnerSpec().scale_rewards


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        ("grpo", "grpo"),
        ("dr_grpo", "dr_grpo"),
        ("dapo", "dapo"),
        ("dapo", "bnpo"),
        ("cispo", "cispo"),
        ("gspo", "gspo"),
    ],
)
@pytest.mark.parametrize(("scale_rewards", "temperature"), [("group", 1.0), ("none", 1.0), ("group", 0.7)])
def test_a_step_equals_trl(
    loss: LossType,
    named: str,
    scale_rewards: ScaleRewards,
    temperature: float,
    reference: Run,
    load_policy: Callable[..., Policy],
    prompts: list[list[int]],
    pool: list[TrainingRow],
    spec: SwarmSpec,
) -> None:
    """On-policy, advantages included: our whole `Cohort.accumulate` against TRL's whole training step."""
    theirs = reference(named, scale_rewards, temperature)
    learner = LearnerSpec(loss=loss, scale_rewards=scale_rewards == "group", epsilon=EPSILON)
    sampling = replace(spec.sampling, temperature=temperature)
    cohort = Cohort(load_policy(), replace(spec, learner=learner, sampling=sampling), AcceptAll())
    value = cohort.accumulate(prompts[: spec.prompts], pool, cohort.advantages(pool))
    difference = relative_difference(gradients(cohort.policy), theirs.gradients)
    print(f"{loss}, TRL's {named}, scale_rewards={scale_rewards}, temperature={temperature}: {difference:.1e}")
    assert difference <= TOLERANCE, (
        f"the {loss} gradient must be that of TRL's {named} to {TOLERANCE}, and is {difference:.1e} off"
    )
    assert value == pytest.approx(theirs.loss, rel=1e-5, abs=1e-6), f"the {loss} loss must be TRL's"
    if loss in ("grpo", "gspo"):
        assert value == pytest.approx(0, abs=1e-6), "on-policy these losses are 0: ratios are 1, advantages sum to 0"


@combinations
def test_advantages_equal_trl(
    scale_rewards: ScaleRewards,
    reference: Run,
    load_policy: Callable[..., Policy],
    pool: list[TrainingRow],
    spec: SwarmSpec,
) -> None:
    learner = LearnerSpec(scale_rewards=scale_rewards == "group")
    ours = Cohort(load_policy(), replace(spec, learner=learner), AcceptAll()).advantages(pool)
    seen = reference("grpo", scale_rewards).inputs
    theirs = dict(zip(rows_of(seen), seen["advantages"].tolist(), strict=True))
    assert len(theirs) == len(pool), "the pool's rows must be distinct to be told apart in TRL's shuffled batch"
    for lesson, advantage in zip(pool, ours, strict=True):
        assert advantage == pytest.approx(theirs[lesson.targets], abs=1e-6), "(r - mean) / (sample std + 1e-4)"


@dataclass(frozen=True)
class OffPolicy:
    """TRL's loss of a batch whose generator was another model, its gradients, and the same batch for our learners."""

    loss: float
    gradients: Gradients
    inputs: dict[str, torch.Tensor]
    batch: Batch
    cache: ForwardCache


OffPolicyRun = Callable[..., OffPolicy]


@pytest.fixture
def off_policy(
    load_policy: Callable[..., Policy],
    prompts: list[list[int]],
    pool: list[TrainingRow],
    spec: SwarmSpec,
    monkeypatch: pytest.MonkeyPatch,
) -> OffPolicyRun:
    """Old log-probs half a nat away: TRL's `_compute_loss` on its own batch."""

    def run(theirs: Reference, policy: Policy, kl: float, high: float, delta: float | None = None) -> OffPolicy:
        trainer, inputs = theirs.trainer, dict(theirs.inputs)
        shape = inputs["completion_ids"].shape
        generator = torch.Generator().manual_seed(4)
        shift = 0.5 * torch.randn(shape, generator=generator) + 0.3 * torch.randn(shape[0], 1, generator=generator)
        with torch.no_grad():
            current, *_ = trainer._get_per_token_logps_and_entropies(
                trainer.model,
                torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
                torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
                shape[1],
            )
        inputs["old_per_token_logps"] = current + shift
        inputs["ref_per_token_logps"] = current - 2 * shift.roll(1, 0)
        monkeypatch.setattr(trainer, "beta", kl)
        monkeypatch.setattr(trainer, "epsilon_high", high)
        monkeypatch.setattr(trainer.args, "delta", delta)
        monkeypatch.setattr(trainer.args, "use_bias_correction_kl", False, raising=False)  # newer than equation 4
        trainer.model.train()
        trainer.model.zero_grad()
        their_loss = trainer._compute_loss(trainer.model, inputs)
        their_loss.backward()
        rows = rows_of(inputs)
        group = {lesson.targets: lesson.prompt for lesson in pool}
        answers = [(group[row], row) for row in rows]
        cache = ForwardCache(policy, prompts[: spec.prompts], answers)
        batch = batch_of(cache, answers, inputs, spec)
        if kl:
            batch = replace(batch, reference_logprobs=inputs["ref_per_token_logps"], kl=kl)
        made = {name: weight.grad for name, weight in trainer.model.named_parameters()}
        return OffPolicy(their_loss.item(), made, inputs, batch, cache)

    return run


def assert_learner_equals(theirs: OffPolicy, policy: Policy, learner: LearnerSpec, what: str) -> None:
    """Value and gradient of our learner on the batch are TRL's."""
    our_loss = LEARNERS[learner.loss](theirs.batch, learner)
    our_loss.backward()  # type: ignore[no-untyped-call]
    theirs.cache.backward()
    difference = relative_difference(gradients(policy), theirs.gradients)
    print(f"{what}: {difference:.1e}")
    assert our_loss.item() == pytest.approx(theirs.loss, rel=1e-5), f"{what}: the loss must be TRL's"
    assert difference <= TOLERANCE, f"{what}: the gradient must be TRL's to {TOLERANCE}, and is {difference:.1e} off"


@shared
@combinations
@pytest.mark.parametrize(
    ("kl", "high", "delta"), [(0.0, None, None), (0.1, None, None), (0.0, 0.28, None), (0.0, None, 1.3)]
)
def test_clipped_loss_and_gradient_equal_trl(
    kl: float,
    high: float | None,
    delta: float | None,
    loss: LossType,
    named: str,
    scale_rewards: ScaleRewards,
    reference: Run,
    off_policy: OffPolicyRun,
    load_policy: Callable[..., Policy],
) -> None:
    policy = load_policy()
    theirs = off_policy(reference(named, scale_rewards), policy, kl, high or EPSILON, delta)
    batch = theirs.batch
    log_ratio = (batch.logprobs - theirs.inputs["old_per_token_logps"]).detach()
    ratio = (row_means(log_ratio, batch.mask)[:, None].expand(log_ratio.shape) if loss == "gspo" else log_ratio).exp()
    advantages, real = batch.advantages[:, None], batch.mask.bool()
    above = real & (ratio > 1 + (high or EPSILON)) & (advantages > 0)
    below = real & (ratio < 1 - EPSILON) & (advantages < 0)
    clipped_sides = [above, below]
    if delta:
        clipped_sides.append(real & (ratio > delta) & (advantages < 0))
    for clipped in clipped_sides:
        share = float(clipped.sum() / real.sum())
        assert 0.02 < share < 0.5, f"the comparison means something only while some tokens clip, not {share:.0%}"
    learner = LearnerSpec(loss=loss, epsilon=EPSILON, epsilon_high=high, delta=delta)
    counts = f"{int(above.sum())} tokens clipped above, {int(below.sum())} below"
    what = f"clipped {loss}, TRL's {named}, {scale_rewards}, kl={kl}, high={high}, delta={delta}, {counts}"
    assert_learner_equals(theirs, policy, learner, what)


@combinations
@pytest.mark.parametrize(("kl", "cap"), [(0.0, 1.2), (0.1, 1.2), (0.0, 2.0)])
def test_capped_weights_of_cispo_equal_trl(
    kl: float,
    cap: float,
    scale_rewards: ScaleRewards,
    reference: Run,
    off_policy: OffPolicyRun,
    load_policy: Callable[..., Policy],
) -> None:
    """TRL's `epsilon_high` is for cispo the cap itself, and not the distance from 1."""
    policy = load_policy()
    theirs = off_policy(reference("cispo", scale_rewards), policy, kl, cap)
    real = theirs.batch.mask.bool()
    ratio = (theirs.batch.logprobs.detach() - theirs.inputs["old_per_token_logps"]).exp()
    share = float((real & (ratio > cap)).sum() / real.sum())
    assert 0.02 < share < 0.5, f"the comparison means something only while some weights are capped, not {share:.0%}"
    learner = LearnerSpec(loss="cispo", ratio_cap=cap)
    assert_learner_equals(theirs, policy, learner, f"cispo, {scale_rewards}, kl={kl}, cap={cap}, {share:.0%} capped")


def batch_of(
    reading: ForwardCache, answers: Sequence[CompletionKey], inputs: dict[str, torch.Tensor], spec: SwarmSpec
) -> Batch:
    """The learner's batch in TRL's row order, with log-probs from the forward pass that shares prompts."""
    mask = inputs["completion_mask"].float()
    made: dict[CompletionKey, torch.Tensor] = {}
    for chunk in reading.chunks(answers):
        made |= dict(zip(chunk.answers, chunk.logprobs(1.0).split(chunk.counts), strict=True))
    logprobs = [torch.cat([made[answer], torch.zeros(mask.shape[1] - len(answer[1]))]) for answer in answers]
    return Batch(
        logprobs=torch.stack(logprobs),
        old_logprobs=inputs["old_per_token_logps"],
        mask=mask,
        token_weights=torch.ones_like(mask),
        advantages=inputs["advantages"],
        pool_rows=len(answers),
        max_length=spec.sampling.max_new_tokens,
        pool_tokens=int(mask.sum()),
    )


def rows_of(inputs: dict[str, torch.Tensor]) -> list[tuple[int, ...]]:
    return [
        tuple(ids[: int(mask.sum())].tolist())
        for ids, mask in zip(inputs["completion_ids"], inputs["completion_mask"], strict=True)
    ]


def gradients(policy: Policy) -> Gradients:
    return {name: weight.grad for name, weight in policy.model.named_parameters()}


def relative_difference(ours: Gradients, theirs: Gradients) -> float:
    assert ours.keys() == theirs.keys()
    apart = sum((ours[name].double() - theirs[name].double()).square().sum() for name in theirs)
    whole = sum(gradient.double().square().sum() for gradient in theirs.values())
    assert whole > 0
    return float((apart / whole) ** 0.5)
