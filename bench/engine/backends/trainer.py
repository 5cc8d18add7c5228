"""A swarm that a trainer plays: the trainer samples for honest nodes and learns; all between is the engine's."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Self

from thiefbench.attacks.base import Attack
from thiefbench.defenses.base import Defense
from thiefbench.engine.learning.cohort import ObserverCohort
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow, RoundRecord
from thiefbench.engine.spec import LearnerSpec, Role, SpecError, SwarmSpec
from thiefbench.engine.swarm import RoundPlan, Swarm
from thiefbench.engine.topology import Duty
from thiefbench.engine.transport import Offer, Received, receive
from thiefbench.engine.views.attacker import AttackerPolicy
from thiefbench.judges import judge_of
from thiefbench.tasks.base import Item, Sampling, Task

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
class TrainerVerdicts:
    """What a completion earns.

    Attributes:
        reward: the task's reward.
        action: of its verdict; "zero" as well where the transport refused it.
    """

    reward: float
    action: str

    def after(self, reward: float | None) -> float | None:
        """What the verdict makes of a reward; None, as TRL has it, says nothing and leaves the group."""
        if self.action == "drop" or reward is None:
            return None
        return reward if self.action == "accept" else 0.0


@dataclass(frozen=True)
class TrainerBatch:
    """A generation batch, ordered by group and place.

    Attributes:
        prompts: token ids of every completion's prompt.
        ids: token ids of every completion, EOS included where it ended; empty where nothing sound was submitted.
        logprobs: of these tokens, under the distribution they count as drawn from; None where the trainer's sampler
            reports none.
        rulings: what each earns.
        eos: the token that ends a completion.
    """

    prompts: list[list[int]]
    ids: list[list[int]]
    logprobs: list[list[float]] | None
    rulings: list[TrainerVerdicts]
    eos: int

    def for_trl(self) -> dict[str, Any]:
        """The keys that TRL asks of a rollout function."""
        made: dict[str, Any] = {"prompt_ids": self.prompts, "completion_ids": self.ids, "logprobs": self.logprobs}
        if not all(self.ids):  # TRL needs a token in every row; the mask sees to it that it is not learned
            made["completion_ids"] = [ids or [self.eos] for ids in self.ids]
            made["env_mask"] = [[1] * len(ids) or [0] for ids in self.ids]
            made["logprobs"] = self.logprobs and [row or [0.0] for row in self.logprobs]
        return made


class PlayedSwarm(Swarm):
    """A horizontal swarm inside a trainer; see `of`.

    Attributes:
        trainer: the `trl.GRPOTrainer`.
    """

    _learner = ObserverCohort
    trainer: Any
    _items: Sequence[Item] = ()
    _sampled: Sequence[Sequence[int]] = ()

    @classmethod
    def of(
        cls,
        trainer: Any,
        task: Task,
        attack: Attack,
        defense: Defense,
        *,
        nodes: int,
        malicious: int,
        seed: int,
        role: Role,
    ) -> Self:
        """The swarm of a `trl.GRPOTrainer`, whose model is read where it stands; arguments as of `TrainerSwarm`.

        Raises:
            SpecError: the trainer's settings do not fit.
            ModelError: the benchmark cannot read such a model.
        """
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
        if defense.judge is not None:
            judge = judge_of(defense.judge, str(model.device), "bfloat16" if trainer.args.bf16 else "float32")
        policy = Policy(model, trainer.processing_class)
        made = cls(spec, role, policy, task, attack, defense, seed, judge)
        made.trainer = trainer
        return made

    def play(self, number: int, items: Sequence[Item]) -> tuple[TrainerBatch, RoundRecord]:
        """Round `number` on the items of a generation batch, one per group.

        The trainer samples for every slot, the malicious ones too, so that honest completions are those of a run
        without malicious nodes.

        Raises:
            SpecError: the defense weighs tokens.
        """
        self.spec = replace(self.spec, prompts=len(items))
        prompts, sampled, logprobs = self._generated(items, self.spec.group)
        self._items, self._sampled = items, sampled
        with _at_rest(self.policy.model):
            record = self.round(number)
            if any(row.token_weights is not None for row in record.rows):
                raise SpecError(
                    f"the defense {self.cohort.defense.name} weighs single tokens, which TRL's loss does not take; "
                    'let it reject with "zero" or "drop"'
                )
            ids = [[*row.ids, *([self.policy.eos] if row.ended else [])] for row in record.rows]
            if logprobs is not None:
                logprobs = self._with_own(logprobs, items, ids)
        rulings = [TrainerVerdicts(row.reward, _action(row)) for row in record.rows]
        return TrainerBatch(prompts, ids, logprobs, rulings, self.policy.eos), record

    def answer(self, items: Sequence[Item], count: int) -> TrainerBatch:
        """`count` completions for each item by the trainer's sampler, rewarded and not inspected."""
        prompts, sampled, logprobs = self._generated(items, count)
        limit = self.spec.sampling.max_new_tokens
        received = receive(self.policy, [Offer(0, 0, 0, tuple(ids)) for ids in sampled], limit)
        answered = [item for item in items for _ in range(count)]
        rewards = self._rewards_of(answered, [got.completion for got in received])
        rulings = [TrainerVerdicts(reward, "accept") for reward in rewards]
        return TrainerBatch(prompts, sampled, logprobs, rulings, self.policy.eos)

    def measure(self, number: int, completions: int) -> RoundRecord:
        """As `evaluate`, with the model at rest."""
        with _at_rest(self.policy.model):
            return self.evaluate(number, completions)

    def _generated(
        self, items: Sequence[Item], count: int
    ) -> tuple[list[list[int]], list[list[int]], list[list[float]] | None]:
        """Prompts, completions and log-probs (of vLLM) of `count` answers to each item, as without a swarm.

        What the trainer would have called is a method without a public name; one parameter came late.
        """
        prompts = [self._prompt(item, self.cohort) for item in items for _ in range(count)]
        generate = self.trainer._generate_single_turn
        late = {"num_generations": count} if "num_generations" in inspect.signature(generate).parameters else {}
        sampled, logprobs = generate(prompts, None, {}, **late)
        return prompts, sampled, logprobs

    def _with_own(self, logprobs: list[list[float]], items: Sequence[Item], ids: list[list[int]]) -> list[list[float]]:
        """The sampler's log-probs, and the current policy's own where it did not make the completion.

        They are recomputed and never claimed, so that no importance ratio favours a submission.
        """
        foreign = [row for row, own in enumerate(ids) if own != list(self._sampled[row])]
        asked = [items[row // self.spec.group] for row in foreign]
        reader = AttackerPolicy(self.policy, self.task, self.spec.sampling, ())
        told = reader.token_logprobs(asked, [ids[row] for row in foreign])
        return [dict(zip(foreign, told, strict=True)).get(row, own) for row, own in enumerate(logprobs)]

    def _items_of_round(self, number: int, owed: Sequence[Duty]) -> list[Item]:
        return list(self._items)

    def _honest_offers(self, asked: RoundPlan, owed: Sequence[Duty]) -> list[Offer]:
        rows = [(duty, self._sampled[duty.group * self.spec.group + duty.index]) for duty in owed]
        return [Offer(duty.node, duty.group, duty.index, tuple(ids)) for duty, ids in rows]

    def _gathered(
        self, asked: RoundPlan, offers: Iterable[Offer], heard: Mapping[int, Received] = {}
    ) -> list[Received]:
        received = super()._gathered(asked, offers, heard)
        return [replace(got, seed=None) for got in received]  # one that only submissions had would give them away


def _check(trainer: Any, nodes: int) -> None:
    """See that TRL and the trainer's settings fit a swarm."""
    if tuple(int(number) for number in version("trl").split(".")[:2]) < OLDEST_TRL:
        raise SpecError(
            f"TRL {version('trl')} gives a dropped completion the reward 0; write pip install 'thiefbench[trl]'"
        )
    if trainer.accelerator.num_processes > 1:
        raise SpecError("a swarm inspects whole batches in one process; start the trainer with one process")
    if trainer.num_generations % nodes:
        raise SpecError(
            f"num_generations = {trainer.num_generations} is not divisible by nodes = {nodes}; "
            f"set num_generations to a multiple of {nodes}"
        )
    odd = [name for name, plain in _NEUTRAL.items() if getattr(trainer.args, name, None) not in plain]
    if odd:
        raise SpecError(
            f"a swarm knows a sampler's temperature, top_k and top_p alone; leave {', '.join(odd)} at the default"
        )


def _action(row: CompletionRow) -> str:
    """What becomes of a completion: what the transport refused earns nothing, whatever the verdict."""
    return "zero" if row.refused and row.action == "accept" else row.action


@contextmanager
def _at_rest(model: Any) -> Iterator[None]:
    """The model without dropout and without gradient checkpointing, which would run it without a cache."""
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)
