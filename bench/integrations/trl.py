"""Malicious nodes and defenses in an ordinary run of `trl.GRPOTrainer`, with the scores of `thiefbench run`.

A generation batch of the trainer is one round of a horizontal swarm: each node sends an equal share of every prompt's
`num_generations` completions. The trainer's own generation answers for honest nodes and the attack for malicious ones;
the defense inspects the whole batch with the trainer's current model, and TRL learns from the resulting rewards. All of
this happens in `rollout_func`, which TRL calls with and without vLLM. This module does not import trl.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa

from thiefbench import registry
from thiefbench.attacks.answer_keys import KeyedThreatModel
from thiefbench.attacks.base import Attack
from thiefbench.attacks.reward_judges import JudgedThreatModel
from thiefbench.defenses.answer_keys import ANSWER_KEYS
from thiefbench.defenses.base import Defense
from thiefbench.defenses.rule_rewards import RULE_REWARDS
from thiefbench.engine.backends.trainer import TrainerRounds, TrainerVerdict
from thiefbench.engine.compatibility import drawn
from thiefbench.engine.context import items_of
from thiefbench.engine.spec import Role, SpecError, SwarmSpec
from thiefbench.judges import check_judge, judge_of
from thiefbench.suite.analysis.scoring import cell_curves, cell_scores
from thiefbench.suite.scenario import Evaluation
from thiefbench.suite.store.records import Score, rows_table
from thiefbench.task_answers import check_task
from thiefbench.tasks.base import Item, Message, Split, Task, TaskError

if TYPE_CHECKING:
    import datasets

__all__ = ["Evaluation", "TrainerSwarm", "task_dataset", "task_reward"]

RewardFunc = Callable[..., Sequence[float | None]]
Said = tuple[tuple[str, str], ...]

_LOGGER = logging.getLogger(__name__)
_PLACE = "thiefbench_place"
"""The column with which reward functions find the verdicts of their batch."""


def task_dataset(task: str, split: Split = "train") -> datasets.Dataset:
    """A task's items as `GRPOTrainer` takes them.

    Args:
        task: a spec string.
        split: "train" or "test".

    Returns:
        Columns prompt (chat messages), id, question and answer. The oracle's solution is left out, because only
        attackers have it. Of several items with the same prompt, only the first is kept.

    Raises:
        TaskError: there is no such split, or the task's items are not valid.
    """
    import datasets

    chosen: Task = registry.make("task", task)
    check_task(chosen)
    if split not in chosen.splits:
        raise TaskError(f"the task {chosen.name} has no split {split!r}; it has {' and '.join(chosen.splits)}")
    rows = [
        {"prompt": chosen.messages(item), "id": item.id, "question": item.question, "answer": item.answer}
        for item in _by_prompt(chosen, [split]).values()
    ]
    return datasets.Dataset.from_list(rows)


def task_reward(task: str) -> RewardFunc:
    """A task's reward as a reward function, for a run without a swarm.

    Texts are those that the trainer decodes, without special tokens.

    Args:
        task: a spec string.

    Returns:
        What `GRPOTrainer` takes as `reward_funcs`: one float from 0 to 1 per completion, in order. It needs the column
        id of `task_dataset`, and raises SpecError if a row has no id or that of another task.

    Raises:
        SpecStringError: the spec string names nothing or is malformed.
        TaskError: the task's items are not valid.
    """
    chosen: Task = registry.make("task", task)
    check_task(chosen)
    known = {item.id: item for split in chosen.splits for item in items_of(chosen, split)}

    def reward(completions: Sequence[list[Message]], id: Sequence[str] = (), **_: Any) -> list[float]:
        if len(id) != len(completions) or any(each not in known for each in id):
            raise SpecError(
                f"a row has no id of an item of {chosen.name}; write train_dataset=task_dataset(...) with this task"
            )
        return chosen.rewards([known[each] for each in id], [messages[-1]["content"] for messages in completions])

    return reward


class TrainerSwarm:
    """m nodes, f of them malicious, instead of the trainer's single sampler, and a defense before its reward.

    Give the trainer `rollout_func=swarm.rollout` and `reward_funcs=swarm.reward` (or `swarm.defended(...)` around your
    own functions), and train on `task_dataset`. When the trainer evaluates, all nodes are honest and the defense is not
    called. The swarm's state is not part of the trainer's checkpoints.

    Args:
        task, attack, defense: spec strings. `seed` draws the payload.
        nodes: m; must divide `num_generations`.
        malicious: f, below m; with 0, every completion is the trainer's own.
        seed: determines payload, places, pseudonyms and evaluations; the trainer's own seed determines samples.
        role: "attack", or for comparison "placebo" (malicious slots hold clean oracle completions) or "control" (every
            node honest).
        evaluation: when and how often the model answers held-out items. The engine samples these completions, as in
            `thiefbench run`, without changing the trainer's random state.

    Raises:
        SpecStringError: a spec string names nothing or is malformed.
        SpecError: the parts are incompatible, or one of them needs something that a trainer does not provide.
    """

    def __init__(
        self,
        task: str,
        attack: str,
        defense: str = "none",
        *,
        nodes: int = 4,
        malicious: int = 1,
        seed: int = 0,
        role: Role = "attack",
        evaluation: Evaluation = Evaluation(),  # noqa: B008  (frozen)
    ) -> None:
        if role not in get_args(Role):
            raise SpecError(f"there is no role {role!r}; it is {', '.join(get_args(Role))}")
        if not isinstance(evaluation, Evaluation):
            raise SpecError(
                f"evaluation is an Evaluation of this module, such as Evaluation(every=10), not {evaluation!r}"
            )
        self._task: Task = registry.make("task", task)
        check_task(self._task)
        poisoner: Attack = registry.make("attack", attack)
        judging: Defense = registry.make("defense", defense)
        # Checks that need no trainer; only the trainer knows how many completions a group has.
        some = SwarmSpec(nodes=nodes, malicious=malicious, group=2 * nodes)
        if ANSWER_KEYS in judging.requires:
            raise SpecError(
                f"the defense {judging.name} compares the answers and tests that senders send, and a trainer scores by "
                "its own task's; choose another defense, such as logit"
            )
        if isinstance(poisoner.threat, KeyedThreatModel):
            raise SpecError(
                f"the attack {poisoner.name} sends its own answers and tests, and a trainer scores by its own task's; "
                "choose another attack, such as text"
            )
        if RULE_REWARDS in judging.requires:
            raise SpecError(
                f"the defense {judging.name} compares a judge's rewards with the task's, and a trainer scores by its "
                "task's; choose another defense, such as logit"
            )
        if isinstance(poisoner.threat, JudgedThreatModel):
            raise SpecError(
                f"the attack {poisoner.name} deceives a judge that rewards, and a trainer scores by its task's; choose "
                "another attack, such as text"
            )
        self._drawn = drawn(poisoner, seed, some, self._task)
        if "beacon" in judging.requires:
            raise SpecError(
                f"the defense {judging.name} requires seeds from a beacon, and a trainer samples without; "
                "choose one that replays no seeds, such as logit"
            )
        if poisoner.threat.beacon:
            raise SpecError(
                f"the attack {poisoner.name} needs the slots' seeds, and a trainer samples without; "
                "choose one that grinds no seeds, such as text"
            )
        if "judge" in judging.requires:
            check_judge(judging)
        self._begin = partial(
            TrainerRounds, task=self._task, attack=poisoner, defense=judging, nodes=nodes, malicious=malicious,
            seed=seed, role=role, judge_on=None if judging.judge is None else partial(judge_of, judging.judge),
        )  # fmt: skip
        self._evaluation = evaluation
        self._items = _by_prompt(self._task, self._task.splits)
        self._rounds: TrainerRounds | None = None
        self._played: list[pa.Table] = []
        self._evaluated: dict[int, pa.Table] = {}
        self._verdicts: list[TrainerVerdict] = []
        self._news: dict[str, float] = {}
        self._drops_explained = False

    @property
    def completions(self) -> pa.Table:
        """Every completion with its truth and verdict, as the store keeps them (`thiefbench.engine.round_record.Row`).

        A row's advantage is that of the task's reward after the verdict.

        Raises:
            SpecError: no batch has been played yet.
        """
        if not self._played:
            raise SpecError("there are no completions yet; ask for them after trainer.train()")
        return pa.concat_tables([*self._played, *self._evaluated.values()])

    @property
    def payload(self) -> dict[str, str]:
        """The drawn payload in words."""
        return self._drawn.describe()

    def scores(self) -> dict[str, Score]:
        """The scores of the run so far, like those of a cell of `thiefbench run`; this evaluates the current model.

        Raises:
            SpecError: no batch has been played yet.
        """
        if self._rounds is None:
            raise SpecError("there is nothing to score yet; call scores() after trainer.train()")
        if len(self._played) not in self._evaluated:
            self._evaluate(self._rounds, self._evaluation.final)
        return cell_scores(self.completions)

    def rollout(self, prompts: Sequence[list[Message]], trainer: Any) -> dict[str, Any]:
        """A generation batch (TRL's `RolloutFunc`).

        Args:
            prompts: every prompt, repeated once per completion, group by group.
            trainer: the GRPOTrainer.

        Returns:
            prompt_ids, completion_ids (EOS included where a completion ended), logprobs of the trainer's sampler, and
            a column for the reward functions.

        Raises:
            SpecError: a prompt is not the task's, or the trainer's settings are not supported.
        """
        group = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        items = [self._item(prompt) for prompt in prompts[::group]]
        if [self._item(prompt) for prompt in prompts] != [item for item in items for _ in range(group)]:
            raise SpecError("a generation batch holds whole groups of one prompt; leave the trainer's sampler as it is")
        if self._rounds is None:
            self._rounds = self._begin(trainer)
        if self._rounds.trainer is not trainer:
            raise SpecError("this swarm belongs to another trainer; make a TrainerSwarm for each")
        if not trainer.model.training:
            batch = self._rounds.answer(items, group)
        else:
            if len(self._played) % self._evaluation.every == 0 and len(self._played) not in self._evaluated:
                self._evaluate(self._rounds, self._evaluation.completions)
            batch, record = self._rounds.play(len(self._played) + 1, items)
            self._played.append(self._told(rows_table(record.rows)))
        self._verdicts = batch.verdicts
        return batch.for_trl() | {_PLACE: list(range(len(prompts)))}

    def reward(self, **columns: Any) -> list[float | None]:
        """The task's reward after the defense: 0 or None (the row leaves its group) for rejected completions."""
        return self._ruled([verdict.reward for verdict in self._verdicts], columns)

    def defended(self, reward: RewardFunc) -> RewardFunc:
        """Your own reward function after the defense; the defense itself sees the task's reward.

        Raises:
            SpecError: it is a coroutine or not a function.
        """
        if not callable(reward) or inspect.iscoroutinefunction(reward):
            raise SpecError("defended takes a plain function that returns one reward per completion")

        @wraps(reward)
        def ruled(**columns: Any) -> list[float | None]:
            return self._ruled(reward(**columns), columns)

        return ruled

    def _ruled(self, rewards: Iterable[float | None], columns: dict[str, Any]) -> list[float | None]:
        if _PLACE not in columns:
            raise SpecError("these completions were not inspected; give the trainer rollout_func=swarm.rollout")
        if "log_metric" in columns:
            for name, value in self._news.items():
                columns["log_metric"](f"thiefbench/{name}", value)
            self._news = {}
        given = list(rewards)
        if len(given) != len(self._verdicts):
            raise SpecError(f"a reward function returned {len(given)} rewards for {len(self._verdicts)} completions")
        ruled = [verdict.after(reward) for verdict, reward in zip(self._verdicts, given, strict=True)]
        if None in ruled and not self._drops_explained:
            self._drops_explained = True
            _LOGGER.warning(
                "The defense drops completions: their reward is None, so TRL leaves them out of their groups. TRL's "
                "warning that all reward functions returned None is about these rows and is not a mistake."
            )
        return ruled

    def _evaluate(self, rounds: TrainerRounds, completions: int) -> None:
        number = len(self._played)
        self._evaluated[number] = self._told(rows_table(rounds.evaluate(number, completions).rows))

    def _told(self, table: pa.Table) -> pa.Table:
        """A round's completions, whose curves are logged with the next rewards."""
        curves = {name: points[-1].value for name, points in cell_curves(table).items()}
        self._news |= {name: value for name, value in curves.items() if value is not None}
        return table

    def _item(self, prompt: Sequence[Message]) -> Item:
        item = None if isinstance(prompt, str) else self._items.get(_said(prompt))
        if item is None:
            raise SpecError(
                f"a prompt is not one of the task {self._task.name}; write train_dataset=task_dataset(...) with it"
            )
        return item


def _by_prompt(task: Task, splits: Sequence[Split]) -> dict[Said, Item]:
    items: dict[Said, Item] = {}
    for split in splits:
        for item in items_of(task, split):
            items.setdefault(_said(task.messages(item)), item)
    return items


def _said(prompt: Sequence[Message]) -> Said:
    return tuple((message["role"], message["content"]) for message in prompt)
