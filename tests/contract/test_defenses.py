"""Every registered defense keeps the contract, and its view does not reveal what it must not know."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import torch

from tests.bench import tiny
from thiefbench import registry
from thiefbench.attacks.base import Attack
from thiefbench.defenses.base import ACCEPT, DefenderView, Verdict
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.swarm import Swarm
from thiefbench.tasks.base import Item, Task
from thiefbench.testing.contracts import DefenseContract
from thiefbench.testing.contracts.pools import SEED, SWARM, Spy, recorded, swarm

# What a defense without a usable default takes, or one whose replies would be long; and further forms.
NEEDED = {"max_tokens": "max_tokens(limit=12)", "self_judge": "self_judge(max_new_tokens=24)"}
FORMS = (
    "logit(reject='mask')",
    "logit(reject='mask', reach=1)",
    "similarity(words=1, reject='mask')",
    "grounding(false_rejection=0.3, samples=2, reject='mask')",
    "arithmetic(reject='mask')",
    "static_code(reject='mask')",
    "likelihood(false_rejection=0.5, reject='zero')",
    "length_quantile(quantile=0.1)",
    "logit(reject='drop')+max_tokens(limit=12)+likelihood",
    "none+oracle",
)


BY_PLACE = ("random", "reputation(defense='logit(reject=\"mask\")+random(rate=0.5)', level=0.5)")
"""The benchmark's own row that draws a number for every place of the pool, and what is built on it."""
REGISTERED = [NEEDED.get(name, name) for name in registry.names("defense") if name not in BY_PLACE]


@pytest.mark.parametrize("spec", [*REGISTERED, *FORMS])
class TestRegistered(DefenseContract):
    @pytest.fixture(autouse=True)
    def _chosen(self, spec: str) -> None:
        self.defense = spec  # type: ignore[misc]


@pytest.mark.parametrize("spec", BY_PLACE)
class TestDrawnByPlace(DefenseContract):
    test_order_changes_no_verdict = None  # type: ignore[assignment]  # it does; see `TestRegistered` for all others

    @pytest.fixture(autouse=True)
    def _chosen(self, spec: str) -> None:
        self.defense = spec  # type: ignore[misc]


class TestStatefulOfAUser(DefenseContract):
    defense = f"{tiny.PLUGINS}:Counts"


@pytest.mark.parametrize("name", registry.names("defense"))
def test_its_name_is_the_registered_one(name: str) -> None:
    assert registry.find("defense", name).name == name, "a defense's name is what the registry lists it under"


@pytest.mark.parametrize(
    "spec",
    [
        "random(rate=0.75)",
        "oracle(reject='drop')",
        "logit(tolerance=0.5, reject='drop')",
        "seed_replay(announced=True, allowed=2, reject='zero')",
        "judge(votes=3, reject='drop')",
    ],
)
def test_arguments_survive_the_canonical_spec_string(spec: str) -> None:
    canonical = registry.canonical("defense", spec)
    assert registry.canonical("defense", canonical) == canonical, "a canonical spec string is its own canonical form"
    assert vars(registry.make("defense", spec)) == vars(registry.make("defense", canonical)), "and says the same"


FORBIDDEN_WORDS = ("malicious", "payload", "poison", "attack", "honest", "label", "truth", "victim", "assignment")
# What a defense may hold a reference to without being walked into: libraries' objects, and the model it defends.
OPAQUE = (torch.nn.Module, torch.Tensor, np.ndarray, random.Random, type, type(json), Policy)


def reachable(thing: object, path: str = "view") -> Iterator[tuple[str, object]]:
    """Every object that attribute access, iteration and indexing can reach, with its path."""
    seen: set[int] = set()
    waiting = [(path, thing)]
    while waiting:
        path, one = waiting.pop()
        if id(one) in seen:
            continue
        if not isinstance(one, (int, float, str, bytes, bool, type(None))):
            seen.add(id(one))
        yield path, one
        if isinstance(one, OPAQUE) or callable(one):
            continue
        if isinstance(one, Mapping):
            waiting += [(f"{path}[{key!r}]", value) for key, value in one.items()]
            waiting += [(f"{path} key", key) for key in one]
        elif isinstance(one, (list, tuple, set, frozenset)):
            waiting += [(f"{path}[{i}]", value) for i, value in enumerate(one)]
        waiting += [(f"{path}.{name}", value) for name, value in getattr(one, "__dict__", {}).items()]


def test_no_label_can_be_reached_from_a_view() -> None:
    for view in recorded(labels=False):
        objects = list(reachable(view))
        assert len(objects) > 100, "the walk goes through the view"
        for path, one in objects:
            last = path.rpartition(".")[2].lower()
            assert not any(word in last for word in FORBIDDEN_WORDS), (
                f"the view names what a defense may not know: {path}"
            )
            assert not isinstance(one, (Swarm, Attack, Task, Item)), (
                f"the view leads to the benchmark's own objects: {path}"
            )


def test_the_view_does_not_hold_the_seed_that_draws_payload_and_pseudonyms() -> None:
    for view in recorded(labels=False):
        holding = [
            path
            for path, one in reachable(view)
            if (isinstance(one, int) and one == SEED) or (isinstance(one, str) and str(SEED) in one)
        ]
        assert not holding, (
            f"who knows the seed can draw the payload and everyone's pseudonym; it stands in {holding[0]}"
        )


def test_position_tells_nothing_about_who_sent() -> None:
    first, second = recorded(labels=False)
    for view in (first, second):
        places = [(offered.group, offered.index) for offered in view.completions]
        assert places != sorted(places), "the pool is shuffled"
    orders = [[(offered.group, offered.index) for offered in view.completions] for view in (first, second)]
    assert orders[0] != orders[1], "every round is shuffled anew"


def test_pseudonyms_last_a_run_and_are_not_node_numbers() -> None:
    first, second = ({offered.sender for offered in view.completions} for view in recorded(labels=False))
    assert first == second, "pseudonyms last a run"
    assert len(first) == SWARM.nodes, "every node has one pseudonym"
    assert not first & {str(node) for node in range(SWARM.nodes)}, "a pseudonym is not the node's number"


def test_a_verdict_too_few_fails_the_round() -> None:
    class Lazy(Spy):
        name = "lazy"

        def inspect(self, view: DefenderView) -> list[Verdict]:
            return [ACCEPT]

    with pytest.raises(ValueError, match=r"lazy gave 1 verdicts for 16 completions"):
        swarm(Lazy()).round(1)
