"""Stand-ins for the parts of GenRL that are wrapped: the same attributes, so that these tests need no GenRL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from thiefbench.engine.model.policy import Policy
from thiefbench.integrations.genrl.messages import environment, item_name
from thiefbench.tasks.base import Item, Task

GROUP = 4
OWN = "own-peer"


@dataclass
class WorldState:
    environment_states: Any
    opponent_states: Any = None
    personal_states: Any = None


@dataclass
class Payload:
    world_state: Any
    actions: Any
    metadata: Any = None


@dataclass
class Communication:
    """What arrives is what was sent."""

    sent: list[Any] = field(default_factory=list)

    def all_gather_object(self, obj: Any) -> dict[str, Any]:
        self.sent.append(obj)
        return {OWN: obj}

    def get_id(self) -> str:
        return OWN


@dataclass
class Manager:
    """A data manager that keeps what it is handed."""

    handed: list[Any] = field(default_factory=list)
    choose: Any = None

    def prepare_states(self, current_state: Any, swarm_states: Mapping[Any, Any]) -> Any:
        self.handed.append(swarm_states)
        return current_state

    def get_round_data(self) -> str:
        return "round data"


def game(policy: Policy, **settings: Any) -> SimpleNamespace:
    """A game manager with a model, in its first round."""
    args = {"temperature": 1.0, "top_k": 20, "top_p": 1.0, "max_new_tokens": 32, "num_generations": GROUP}
    trainer = SimpleNamespace(
        model=policy.model, processing_class=policy.tokenizer, args=SimpleNamespace(**args | settings)
    )
    return SimpleNamespace(
        trainer=trainer,
        data_manager=Manager(),
        communication=Communication(),
        state=SimpleNamespace(round=0, trees={OWN: {}}),
    )


def message(item: Item, task: Task, texts: Sequence[Any], **changes: Any) -> dict[str, list[Payload]]:
    """What a node sends for one item, by the item's name."""
    return {item_name(item.question): [Payload(WorldState(environment(item, task) | changes), list(texts))]}
