"""Any attack of this package in the messages of a GenRL node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from thiefbench import registry
from thiefbench.attacks.base import Attack, AttackerView, Claimed, Decoy, Seeded, SeenCompletion, Slot, Submission
from thiefbench.attacks.submissions import Withheld
from thiefbench.engine.compatibility import drawn
from thiefbench.engine.keys import generator
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import Role, SpecError, SwarmSpec
from thiefbench.engine.views.attacker import AttackerPolicy
from thiefbench.integrations.genrl.arrivals import PoolReader, sampling_of
from thiefbench.integrations.genrl.messages import item_name
from thiefbench.tasks.base import Item, Task

Forge = Callable[[dict[str, Any]], dict[str, Any]]
"""Rewrites the environment state of a message: question, answer, test and metadata."""


def drawn_attack(attack: str, task: Task, seed: int) -> Attack:
    """An attack with the payload of a seed, as in a vertical swarm of `thiefbench run` with this seed.

    Raises:
        SpecError: it does not fit the task or a GenRL swarm.
    """
    poisoner: Attack = registry.make("attack", attack)
    threat = poisoner.threat
    lacking = {
        "queries the other peers' defense": threat.queries > 0,
        "needs the seeds of honest draws": threat.beacon,
        "rehearses with the other peers": threat.rehearsal,
        "offers more than it owes": poisoner.copies > 1,
    }
    for what, needed in lacking.items():
        if needed:
            raise SpecError(
                f"the attack {poisoner.name} {what}, which a peer of a live swarm cannot; choose another, such as text"
            )
    return drawn(poisoner, seed, SwarmSpec("vertical", 2, 1, prompts=2, group=2), task)


@dataclass(frozen=True)
class Sent:
    """The labels of what a malicious node sends in a round.

    Attributes:
        round: from 1.
        payload: by the name of an item, the indices of the completions that carry the attack's payload.
    """

    round: int
    payload: Mapping[str, Sequence[int]]


class PoisonedCommunication:
    """A node's communication in which its own messages carry an attack; what others send is not changed.

    Args:
        communication: the node's own; everything but `all_gather_object` is passed on to it.
        game_manager: of the node; its trainer's model is the attacker's copy of the policy.
        attack: the attack, with its payload drawn.
        task: the game's.
        seed, node: key the attack's draws.
        role: "attack", or "placebo" for the clean counterparts of what the attack submits.
        forge: rewrites the environment state of every message, against which receivers score; None changes nothing. The
            message is sent under the MD5 of the rewritten question, because receivers check only this.

    Attributes:
        about_to_send: called with every round's labels before its messages leave the node.
    """

    def __init__(
        self,
        communication: Any,
        game_manager: Any,
        attack: Attack,
        task: Task,
        seed: int = 0,
        node: int = 0,
        role: Role = "attack",
        forge: Forge | None = None,
    ) -> None:
        self.communication, self._game, self.attack, self._task = communication, game_manager, attack, task
        self._seed, self._node, self._role, self._forge = seed, node, role, forge
        trainer = game_manager.trainer
        self._policy, self._sampling = Policy(trainer.model, trainer.processing_class), sampling_of(trainer.args)
        self._reader = PoolReader(trainer, task, trainer.args.num_generations)
        self._items = self._reader.known
        self._seen: dict[str, list[SeenCompletion]] = {}
        self.about_to_send: Callable[[Sent], None] = lambda sent: None

    def __getattr__(self, name: str) -> Any:
        if name == "communication":  # not yet set
            raise AttributeError(name)
        return getattr(self.communication, name)

    def all_gather_object(self, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """The messages of all peers, after this node's have been rewritten."""
        number = self._game.state.round + 1
        gathered = self.communication.all_gather_object(self._rewritten(number, obj), *args, **kwargs)
        if self.attack.threat.history:
            self._remember(number, gathered)
        return gathered

    def _rewritten(self, number: int, messages: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """A round's messages with the attack's completions, by batch item."""
        places = [
            (batch, node, index)
            for batch, nodes in messages.items()
            for node, message in enumerate(nodes)
            if message.world_state.environment_states["question"] in self._items
            for index in range(len(message.actions))
        ]
        groups = {batch: group for group, batch in enumerate(messages)}
        slots = tuple(
            Slot(
                self.granted(self._items[messages[batch][node].world_state.environment_states["question"]]),
                self._node, groups[batch], index,
            )
            for batch, node, index in places
        )  # fmt: skip
        view = AttackerView(
            number, slots, self._task, generator(self._seed, number, "attack"), self._copy(number), None, self._seen
        )
        submissions = self.attack.poison(view) if self._role == "attack" else self.attack.placebo(view)
        chosen = dict(zip(places, submissions, strict=True))
        labels: dict[str, list[int]] = {}
        rewritten: dict[str, list[Any]] = {}
        for batch, nodes in messages.items():
            for node, original in enumerate(nodes):
                name, state = self._described(batch, original.world_state)
                texts: list[str] = []
                for index, text in enumerate(original.actions):
                    submission = chosen.get((batch, node, index))
                    if isinstance(submission, Withheld):
                        continue
                    if self._role == "attack" and submission is not None and not isinstance(submission, Decoy):
                        labels.setdefault(name, []).append(len(texts))
                    texts.append(text if submission is None else self._text(submission))
                rewritten.setdefault(name, []).append(replace(original, world_state=state, actions=texts))
        self.about_to_send(Sent(number, labels))
        return rewritten

    def _described(self, batch: str, state: Any) -> tuple[str, Any]:
        """An item's name and state as they are sent."""
        if self._forge is None:
            return batch, state
        forged = self._forge(dict(state.environment_states))
        return item_name(forged["question"]), replace(state, environment_states=forged)

    def granted(self, item: Item) -> Item:
        """An item as the threat model grants it."""
        return item if self.attack.threat.oracle else replace(item, solution="")

    def _copy(self, number: int) -> AttackerPolicy | None:
        if not self.attack.threat.policy:
            return None
        return AttackerPolicy(self._policy, self._task, self._sampling, (self._seed, number, self._node))

    def _text(self, submission: Submission) -> str:
        """A submission as text, cut to the sampler's limit as honest completions are."""
        if isinstance(submission, Decoy | Claimed):
            submission = submission.content
        if isinstance(submission, Seeded):
            submission = submission.ids
        assert not isinstance(submission, Decoy | Claimed | Withheld)
        policy, limit = self._policy, self._sampling.max_new_tokens
        if isinstance(submission, str):
            ids = tuple(policy.encode(submission))
            return submission if len(ids) < limit else policy.decode([ids[: limit - 1]])[0]
        return policy.decode([submission[:-1] if submission[-1:] == (policy.eos,) else submission])[0]

    def _remember(self, number: int, gathered: Mapping[Any, Any]) -> None:
        for offered in self._reader.read(number, gathered).offered:
            self._seen.setdefault(offered.item_id, []).append(
                SeenCompletion(number, offered.ids, offered.text, offered.reward)
            )


def malicious(
    game_manager: Any,
    attack: str,
    task: str,
    seed: int = 0,
    node: int = 0,
    role: Role = "attack",
    forge: Forge | None = None,
) -> Any:
    """A GenRL game manager whose node sends an attack's completions as its own.

    Args:
        game_manager: with a `GRPOLanguageTrainerModule` and, for attacks that pick items, a `TaskDataManager`; its
            communication is replaced by a `PoisonedCommunication`.
        attack: a spec string.
        task: the spec string of the task that the game plays.
        seed: draws the payload, the same as in `thiefbench run` with this seed.
        node: number of the node, keys its draws.
        role: "attack" or "placebo".
        forge: rewrites the environment states of messages, against which receivers score.

    Returns:
        The same game manager.

    Raises:
        SpecError: the attack does not fit the task or a GenRL swarm.
        SpecStringError: a spec string names nothing or is malformed.
    """
    chosen: Task = registry.make("task", task)
    poisoner = drawn_attack(attack, chosen, seed)
    communication = PoisonedCommunication(
        game_manager.communication, game_manager, poisoner, chosen, seed, node, role, forge
    )
    game_manager.communication = communication
    if hasattr(game_manager.data_manager, "choose"):

        def choose(number: int, items: Sequence[Item], count: int) -> Sequence[Item]:
            granted = [communication.granted(item) for item in items]
            return poisoner.choose_items(granted, count, generator(seed, "choice", number, node))

        game_manager.data_manager.choose = choose
    return game_manager
