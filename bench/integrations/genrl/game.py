"""Any task of this package as a GenRL game: its data manager and its reward manager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thiefbench import registry
from thiefbench.engine.context import items_of
from thiefbench.engine.keys import generator
from thiefbench.integrations.genrl.library import (
    CodeGenerationDataManager,
    DefaultRewardManager,
    GameState,
    RewardFnStore,
    RoundRewardFnStore,
    WorldState,
    get_solutions,
)
from thiefbench.integrations.genrl.messages import environment, item_name, received_item
from thiefbench.tasks.base import Item, Task

Choose = Callable[[int, Sequence[Item], int], Sequence[Item]]
"""(round, all items, count) -> the items that a node answers."""


class TaskDataManager(CodeGenerationDataManager):  # type: ignore[misc]
    """The data manager of GenRL's code-generation example (RL Swarm's CodeZero) with the items of a task.

    What happens to messages is GenRL's code: `prepare_states` and `transplant_trees` (groups of others, drawn
    uniformly). Only the source of items and the prompts are the task's.

    Args:
        task: a spec string.
        batch_size: I, own items per round.
        num_generations: G, completions per item; groups of another size are not taken over.
        num_transplant_trees: J, groups of others per round.
        seed, node: determine the items, as in a swarm of `thiefbench run` with the same seed.

    Attributes:
        choose: replaces the draw of items, for attacks that pick theirs; None for a draw.
    """

    def __init__(
        self,
        task: str,
        batch_size: int = 4,
        num_generations: int = 8,
        num_transplant_trees: int = 4,
        seed: int = 0,
        node: int = 0,
    ) -> None:
        # Not super().__init__(), which downloads data sets. These are the attributes that the inherited methods read.
        self.task: Task = registry.make("task", task)
        self.system_prompt = ""
        self.batch_size = batch_size
        self.num_generations = num_generations
        self.num_transplant_trees = num_transplant_trees
        self.choose: Choose | None = None
        self._seed, self._node, self._round = seed, node, 0

    def initialize(self, backend: Any = None) -> None:
        """Nothing: items come from the task, not from a proposer."""

    def get_round_data(self) -> list[tuple[str, WorldState]]:
        """The items of the next round, named by the MD5 of their questions as in GenRL's examples."""
        self._round += 1
        known = items_of(self.task, "train")
        if self.choose is None:
            items: Sequence[Item] = generator(self._seed, "items", self._round, self._node).sample(
                known, self.batch_size
            )
        else:
            items = self.choose(self._round, known, self.batch_size)
        return [(item_name(item.question), WorldState(environment(item, self.task), None, None)) for item in items]

    def prepare_input(self, inputs: Any, stage: int | None = None) -> tuple[Any, dict[int, tuple[Any, Any, int]]]:
        """The task's prompts in place of the example's; the order of game trees is GenRL's."""
        from datasets import Dataset

        _, places = self.flatten_tree(inputs, stage)
        states = [inputs[agent][batch][node].environment_states for agent, batch, node in places.values()]
        prompts = [self.task.messages(received_item(state)) for state in states]
        return Dataset.from_dict({"prompt": prompts}), places


class TaskRewards:
    """A task's reward as a GenRL reward function.

    As in GenRL's examples, completions are scored against the question, answer and tests that their sender sent.

    Args:
        task: a spec string.
    """

    def __init__(self, task: str) -> None:
        self._task: Task = registry.make("task", task)

    def __call__(self, game_state: GameState) -> dict[Any, dict[Any, list[list[float]]]]:
        """Rewards of the first stage by agent, batch item, node and completion; 0 for what is not text."""
        states = game_state.get_stage_state(0)
        return {
            agent: {
                batch: [
                    self._rewards(states[agent][batch][node].environment_states, completions)
                    for node, completions in enumerate(nodes)
                ]
                for batch, nodes in batches.items()
            }
            for agent, batches in get_solutions(game_state, 0).items()
        }

    def _rewards(self, state: Mapping[str, Any], completions: Sequence[Any]) -> list[float]:
        texts = [text if isinstance(text, str) else "" for text in completions]
        return self._task.reward(received_item(state), texts)


def task_rewards(task: str, max_rounds: int) -> DefaultRewardManager:
    """GenRL's reward manager with a task's reward in its only stage."""
    stage = RoundRewardFnStore(num_stages=1, reward_fns=[TaskRewards(task)])
    return DefaultRewardManager(RewardFnStore(max_rounds=max_rounds, reward_fn_stores=[stage]))
