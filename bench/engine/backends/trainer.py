"""A swarm inside a trainer: the trainer samples for honest nodes and learns; the engine does the rest."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from thiefbench.attacks.base import Attack
from thiefbench.defenses.base import Defense
from thiefbench.defenses.skipping import SKIP
from thiefbench.engine.backends.local import LocalBackend
from thiefbench.engine.colluders import Colluders
from thiefbench.engine.context import SwarmContext
from thiefbench.engine.learning.cohort import Cohort, ObserverCohort
from thiefbench.engine.model.policy import Dtype, Policy
from thiefbench.engine.round_plan import MaliciousWork, RoundPlan
from thiefbench.engine.round_record import CompletionRow, RoundRecord
from thiefbench.engine.spec import LearnerSpec, Role, SpecError, SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.engine.topology import Assignment
from thiefbench.engine.transport import Offer, Received, receive
from thiefbench.engine.views.attacker import AttackerPolicy
from thiefbench.engine.views.defender import Judge
from thiefbench.tasks.base import Completion, Item, Sampling, Task

# From this version on, a reward of None takes a completion out of its group.
OLDEST_TRL = (1, 8)
# Trainer settings that change prompts or the sampler's distribution in a way the benchmark's view of the model does not
# follow, and the values with which they change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (1.0,),
    "min_p": (None, 0.0),
    "generation_kwargs": (None, {}),
    "chat_template_kwargs": (None, {}),
}


@dataclass(frozen=True)
class TrainerVerdict:
    """A completion's reward and verdict.

    Attributes:
        reward: the task's reward.
        action: the verdict's; "drop" if the completion was refused.
    """

    reward: float
    action: str

    def after(self, reward: float | None) -> float | None:
        """The reward after the verdict; with None, TRL leaves the completion out of its group."""
        if self.action == "drop" or reward is None:
            return None
        return 0.0 if self.action == "zero" else reward


@dataclass(frozen=True)
class TrainerBatch:
    """A generation batch, ordered by group and index.

    Attributes:
        prompts: token ids of every completion's prompt.
        ids: token ids of every completion, EOS included where it ended; empty if nothing valid was submitted.
        logprobs: of these tokens, under the distribution from which they count as drawn; None if the trainer's sampler
            reports none.
        verdicts: each completion's reward and verdict.
        eos: the token that ends a completion.
    """

    prompts: list[list[int]]
    ids: list[list[int]]
    logprobs: list[list[float]] | None
    verdicts: list[TrainerVerdict]
    eos: int

    def for_trl(self) -> dict[str, Any]:
        """The keys that TRL requires from a rollout function."""
        columns: dict[str, Any] = {"prompt_ids": self.prompts, "completion_ids": self.ids, "logprobs": self.logprobs}
        # The mask keeps tokens from being learned, while the row's reward still counts in its group.
        learned = [int(verdict.action != SKIP) for verdict in self.verdicts]
        if not all(self.ids):  # TRL needs a token in every row
            columns["completion_ids"] = [ids or [self.eos] for ids in self.ids]
            columns["logprobs"] = self.logprobs and [row or [0.0] for row in self.logprobs]
        if not (all(self.ids) and all(learned)):
            columns["env_mask"] = [[each] * len(ids) or [0] for ids, each in zip(self.ids, learned, strict=True)]
        return columns


class TrainerRounds:
    """A horizontal swarm whose rounds are the generation batches of a trainer.

    Args:
        trainer: a `trl.GRPOTrainer`, whose model is used in place.
        task, attack, defense, nodes, malicious, seed, role: as of `thiefbench.integrations.trl.TrainerSwarm`.
        judge_on: (device, dtype) -> the judge that the defense asks; None if it asks none.

    Attributes:
        trainer: the same.
        swarm: between sampling and learning, which are the trainer's, everything is this swarm's.

    Raises:
        SpecError: the trainer's settings are not supported.
        ModelError: the benchmark does not support such a model.
    """

    def __init__(
        self,
        trainer: Any,
        task: Task,
        attack: Attack,
        defense: Defense,
        *,
        nodes: int,
        malicious: int,
        seed: int,
        role: Role,
        judge_on: Callable[[str, Dtype], Judge] | None = None,
    ) -> None:
        _check(trainer, nodes)
        model = trainer.accelerator.unwrap_model(trainer.model)
        if hasattr(model, "get_base_model"):  # PEFT's: adapters stand inside the base model's layers
            model = model.get_base_model()
        if model.config._attn_implementation != "sdpa":
            raise SpecError(
                f"the model uses {model.config._attn_implementation} attention, and a swarm reads it with sdpa; "
                "load it with attn_implementation='sdpa'"
            )
        spec = SwarmSpec(
            nodes=nodes,
            malicious=malicious,
            group=trainer.num_generations,
            sampling=Sampling(
                temperature=trainer.temperature,
                top_k=trainer.top_k or 0,
                top_p=trainer.top_p,
                max_new_tokens=trainer.max_completion_length,
            ),
            learner=LearnerSpec(scale_rewards=trainer.scale_rewards != "none"),
            seeds="announced",
        )
        judge = None
        if judge_on is not None:
            judge = judge_on(str(model.device), "bfloat16" if trainer.args.bf16 else "float32")
        policy = Policy(model, trainer.processing_class)
        self.trainer, self._backend = trainer, TrainerBackend()
        self.swarm = Swarm(spec, role, policy, task, attack, defense, seed, judge, self._backend)

    def play(self, number: int, items: Sequence[Item]) -> tuple[TrainerBatch, RoundRecord]:
        """Round `number` on the items of a generation batch, one per group.

        The trainer samples for every slot, the malicious ones too, so that honest completions are those of a run
        without malicious nodes.

        Raises:
            SpecError: the defense weights tokens.
        """
        swarm, group = self.swarm, self.swarm.spec.group
        swarm.context.spec = replace(swarm.spec, prompts=len(items))  # a trainer's last batch may be a smaller one
        prompts, sampled, logprobs = self._generated(items, group)
        self._backend.take(items, sampled)
        with _at_rest(swarm.policy.model):
            record = swarm.round(number)
            if any(row.token_weights is not None for row in record.rows):
                raise SpecError(
                    f"the defense {swarm.cohort.defense.name} weighs single tokens, which TRL's loss does not take; "
                    'let it reject with "zero", "drop" or "skip"'
                )
            ids = [[*row.ids, *([swarm.policy.eos] if row.ended else [])] for row in record.rows]
            if logprobs is not None:
                answered = [item for item in items for _ in range(group)]
                logprobs = self._completed(logprobs, answered, sampled, ids)
        verdicts = [TrainerVerdict(row.reward, _action(row)) for row in record.rows]
        return TrainerBatch(prompts, ids, logprobs, verdicts, swarm.policy.eos), record

    def answer(self, items: Sequence[Item], count: int) -> TrainerBatch:
        """`count` completions for each item by the trainer's sampler, with rewards and without inspection."""
        policy, limit = self.swarm.policy, self.swarm.spec.sampling.max_new_tokens
        prompts, sampled, logprobs = self._generated(items, count)
        received = receive(policy, [Offer(0, 0, 0, tuple(ids)) for ids in sampled], limit)
        answered = [item for item in items for _ in range(count)]
        rewards = self._backend.rewards(answered, [arrival.completion for arrival in received])
        verdicts = [TrainerVerdict(reward, "accept") for reward in rewards]
        return TrainerBatch(prompts, sampled, logprobs, verdicts, policy.eos)

    def evaluate(self, number: int, completions: int) -> RoundRecord:
        """Like `Swarm.evaluate`, with the model in evaluation mode."""
        with _at_rest(self.swarm.policy.model):
            return self.swarm.evaluate(number, completions)

    def _generated(
        self, items: Sequence[Item], count: int
    ) -> tuple[list[list[int]], list[list[int]], list[list[float]] | None]:
        """Prompts, completions and log-probs (of vLLM) of `count` answers to each item, as without a swarm.

        What the trainer would have called is a method without a public name; one parameter came late.
        """
        prompts = [self.swarm.context.prompt(item, self.swarm.cohort) for item in items for _ in range(count)]
        generate = self.trainer._generate_single_turn
        late = {"num_generations": count} if "num_generations" in inspect.signature(generate).parameters else {}
        sampled, logprobs = generate(prompts, None, {}, **late)
        return prompts, sampled, logprobs

    def _completed(
        self,
        logprobs: Sequence[list[float]],
        items: Sequence[Item],
        sampled: Sequence[Sequence[int]],
        ids: Sequence[list[int]],
    ) -> list[list[float]]:
        """The sampler's log-probs, and the current policy's where the sampler did not make the completion.

        They are recomputed, not claimed by senders, so that no importance ratio favours a submission.
        """
        foreign = [row for row, sent in enumerate(ids) if sent != list(sampled[row])]
        policy = AttackerPolicy(self.swarm.policy, self.swarm.task, self.swarm.spec.sampling, ())
        recomputed = policy.token_logprobs([items[row] for row in foreign], [ids[row] for row in foreign])
        replaced = dict(zip(foreign, recomputed, strict=True))
        return [replaced.get(row, own) for row, own in enumerate(logprobs)]


class TrainerBackend:
    """Takes honest completions from a trainer, which also learns (a `RoundBackend`); see `TrainerRounds`."""

    cohort_class = ObserverCohort
    context: SwarmContext

    def __init__(self) -> None:
        self._items: Sequence[Item] = ()
        self._sampled: Sequence[Sequence[int]] = ()
        self._local = LocalBackend()

    def attach(self, context: SwarmContext) -> None:
        """Take the swarm's parts."""
        self.context = context
        self._local.attach(context)
        self._colluders = Colluders(context, self)

    def take(self, items: Sequence[Item], sampled: Sequence[Sequence[int]]) -> None:
        """Use these in the next round.

        Args:
            items: one per group.
            sampled: token ids of the trainer's completions for all slots, ordered by group and index.
        """
        self._items, self._sampled = items, sampled

    def items(self, number: int, assignments: Sequence[Assignment]) -> list[Item]:
        """Those of the trainer's batch."""
        return list(self._items)

    def honest_work(self, plan: RoundPlan, assignments: Sequence[Assignment]) -> list[Offer]:
        """The trainer's completions for these slots."""
        rows = [assignment.group * self.context.spec.group + assignment.index for assignment in assignments]
        return [
            Offer(assignment.node, assignment.group, assignment.index, tuple(self._sampled[row]))
            for assignment, row in zip(assignments, rows, strict=True)
        ]

    def malicious_work(
        self, plan: RoundPlan, assignments: Sequence[Assignment], honest: Sequence[Offer]
    ) -> MaliciousWork:
        """The attack submits."""
        return self._colluders.work(plan, assignments, honest)

    def receive(
        self, plan: RoundPlan, offers: Sequence[Offer], known: Mapping[int, Received] | None = None
    ) -> list[Received]:
        """As in one process, but without seeds: honest completions have none, so a seed would reveal a submission."""
        return [replace(arrival, seed=None) for arrival in self._local.receive(plan, offers, known)]

    def rewards(self, items: Sequence[Item], completions: Sequence[Completion]) -> list[float]:
        """As the task has it."""
        return self._local.rewards(items, completions)

    def answers(self, phase: str, items: Sequence[Item], first: int, cohorts: Sequence[Cohort]) -> list[Completion]:
        """By the engine's own sampler, which leaves the trainer's random state alone."""
        return self._local.answers(phase, items, first, cohorts)


def _check(trainer: Any, nodes: int) -> None:
    """Check that TRL and the trainer's settings support a swarm."""
    if tuple(int(number) for number in version("trl").split(".")[:2]) < OLDEST_TRL:
        raise SpecError(
            f"TRL {version('trl')} gives a dropped completion the reward 0; write pip install '.[trl]' in a checkout"
        )
    if trainer.accelerator.num_processes > 1:
        raise SpecError("a swarm inspects whole batches in one process; start the trainer with one process")
    if trainer.num_generations % nodes:
        raise SpecError(
            f"num_generations = {trainer.num_generations} is not divisible by nodes = {nodes}; "
            f"set num_generations to a multiple of {nodes}"
        )
    unsupported = [name for name, plain in _NEUTRAL.items() if getattr(trainer.args, name, None) not in plain]
    if unsupported:
        raise SpecError(
            f"of a sampler's settings a swarm knows only temperature, top_k and top_p; leave "
            f"{', '.join(unsupported)} at the default"
        )


def _action(row: CompletionRow) -> str:
    """The verdict on a completion; a refused one leaves its group, whatever the defense says."""
    return "drop" if row.refused else row.action


@contextmanager
def _at_rest(model: Any) -> Iterator[None]:
    """The model without dropout and without gradient checkpointing, which would run it without a cache."""
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)
