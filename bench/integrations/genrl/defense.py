"""Any defense of this package at the door of a GenRL node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from thiefbench import registry
from thiefbench.defenses.base import Defense, PastRound, Verdict
from thiefbench.engine.spec import SpecError
from thiefbench.integrations.genrl.arrivals import PoolReader, ReceivedPool, check_defense
from thiefbench.judges import check_judge, judge_of
from thiefbench.tasks.base import Task

LEAST_KEPT = 2
"""Fewer accepted completions give no advantage, so the group is dropped."""


@dataclass(frozen=True)
class Inspection:
    """What a node's defense said of a round.

    Attributes:
        pool: what arrived.
        verdicts: one per completion, in the order of `pool.offered`.
        entered: for every group of others that the data manager may take over, by the name of its game tree, the
            indices of the completions that stand in it.
    """

    pool: ReceivedPool
    verdicts: Sequence[Verdict]
    entered: Mapping[tuple[str, str], Sequence[int]]


class DefendedDataManager:
    """A data manager that shows what arrives to a defense and hands on only what the defense accepts.

    GenRL learns from whole groups and takes no weights, so "zero", "drop" and "skip" all remove a completion;
    repetitions of the group's accepted completions, in turn, take its place. A group with fewer than two of these is
    dropped. The node's own completions are shown to the defense, but they already stand in its game tree and stay.

    If the defense cannot judge a round, nothing of others enters the game tree.

    Args:
        manager: the data manager to wrap; everything but `prepare_states` is passed on to it.
        reader: reads messages with the node's model.
        defense: the defense.
        seed: keys the order of pools and the defense's random generator.

    Attributes:
        inspection: of the last round; None before the first and after a round that could not be judged.
        problem: why the last round could not be judged; empty if it was.

    Raises:
        SpecError: the defense needs what GenRL does not carry.
    """

    def __init__(self, manager: Any, reader: PoolReader, defense: Defense, seed: int = 0) -> None:
        check_defense(defense)
        self.manager, self.reader, self.defense, self._seed = manager, reader, defense, seed
        self._judge = None
        if "judge" in defense.requires:
            check_judge(defense)
            assert defense.judge is not None
            self._judge = judge_of(defense.judge)
        self.history: list[PastRound] = []
        self.inspection: Inspection | None = None
        self.problem = ""

    def __getattr__(self, name: str) -> Any:
        if name == "manager":  # not yet set
            raise AttributeError(name)
        return getattr(self.manager, name)

    def prepare_states(self, current_state: Any, swarm_states: Mapping[Any, Any]) -> Any:
        """The wrapped manager's, from what the defense accepts."""
        kept = {agent: batches for agent, batches in swarm_states.items() if agent in current_state.trees}
        self.inspection, self.problem = None, ""
        try:
            pool = self.reader.read(current_state.round + 1, swarm_states)
            verdicts, past = self.reader.inspected(pool, self.defense, self.history, self._seed, self._judge)
            self.history.append(past)
            self.inspection = Inspection(pool, verdicts, _entering(pool, verdicts, set(map(str, kept))))
            kept |= self._messages(self.inspection, swarm_states)
        # GenRL goes on with nothing but a line in its log, whatever is raised here; so does this, and says why.
        except Exception as error:
            self.problem = str(error) or type(error).__name__
            if not isinstance(error, SpecError):
                self.problem = f"the defense {self.defense.name} failed: {type(error).__name__}: {self.problem}"
        return self.manager.prepare_states(current_state, kept)

    def _messages(self, inspection: Inspection, swarm_states: Mapping[Any, Any]) -> dict[Any, dict[str, list[Any]]]:
        """The messages that enter, by sender and batch item."""
        senders = {str(sender): sender for sender in swarm_states}  # over torch.distributed, senders are numbers
        messages: dict[Any, dict[str, list[Any]]] = {}
        for group in inspection.pool.groups:
            if (indices := inspection.entered.get(group.name)) is not None:
                sender = senders[group.sender]
                original = swarm_states[sender][group.batch][group.node]
                filled = replace(original, actions=[group.texts[index] for index in indices])
                messages.setdefault(sender, {})[group.batch] = [filled]
        return messages


def _entering(pool: ReceivedPool, verdicts: Sequence[Verdict], own: set[str]) -> dict[tuple[str, str], tuple[int, ...]]:
    """By game tree, the indices of the completions that a group of others enters with."""
    entering = {}
    for place, group in enumerate(pool.groups):
        if group.sender in own:
            continue
        kept = [
            offered.index
            for offered, verdict in zip(pool.offered, verdicts, strict=True)
            if offered.group == place and verdict.action == "accept" and not offered.refused
        ]
        if len(kept) >= LEAST_KEPT:
            size = len(group.texts)
            entering[group.name] = tuple((kept * size)[:size])
    return entering


def defended(game_manager: Any, defense: str, task: str, seed: int = 0) -> Any:
    """A GenRL game manager whose node shows what arrives to a defense before it enters the game tree.

    Args:
        game_manager: with a `GRPOLanguageTrainerModule`; its data manager is replaced by a `DefendedDataManager`.
        defense: a spec string.
        task: the spec string of the task that the game plays; it makes prompts and rewards as the game does.
        seed: keys the order of pools and the defense's random generator.

    Returns:
        The same game manager.

    Raises:
        SpecError: the defense needs what GenRL does not carry, or the trainer samples in a way that it cannot follow.
        SpecStringError: a spec string names nothing or is malformed.
    """
    chosen: Task = registry.make("task", task)
    reader = PoolReader(game_manager.trainer, chosen, game_manager.trainer.args.num_generations)
    wrap = partial(DefendedDataManager, reader=reader, defense=registry.make("defense", defense), seed=seed)
    game_manager.data_manager = wrap(game_manager.data_manager)
    return game_manager
