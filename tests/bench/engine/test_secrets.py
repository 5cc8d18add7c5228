"""What a view gives away to a defense that tries all public seeds, and that a secret leaves nothing to find."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Verdict
from thiefbench.engine.context import items_of
from thiefbench.engine.keys import SECRET_BYTES, generator, key, new_secret, secret_seed
from thiefbench.engine.pool import shuffled
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.engine.topology import assignments, slot_seed
from thiefbench.tasks.base import Task

Build = Callable[..., Swarm]
PUBLIC, TRIED = 3, range(200)
SECRET = b"k" * SECRET_BYTES


class Records(Defense):
    """Accepts everything and keeps what it saw."""

    name = "records"

    def __init__(self) -> None:
        self.seen: list[DefenderView] = []

    def inspect(self, view: DefenderView) -> list[Verdict]:
        self.seen.append(view)
        return [ACCEPT] * len(view.completions)


def explained(view: DefenderView, spec: SwarmSpec, task: Task, seed: int) -> set[str]:
    """Which parts of a view follow from a seed: each of them would give away who sent what."""
    number, pool = view.round, view.completions
    by_slot = {(each.group, each.index): each for each in pool}
    owed = assignments(spec, seed, number)
    slots = [(each.group, each.index) for each in pool]
    pseudonyms = {f"{key(seed, 'sender', node) & 0xFFFFFFFF:08x}" for node in range(spec.nodes)}
    of_sender: dict[str, set[int]] = {}
    for assignment in owed:
        of_sender.setdefault(by_slot[assignment.at].sender, set()).add(assignment.node)
    items = items_of(task, "train")
    followed = {
        "rng": generator(seed, "defense", number).getstate() == view.rng.getstate(),
        "order": [sorted(slots)[i] for i in shuffled(seed, number, len(slots))] == slots,
        "pseudonyms": bool(pseudonyms & {each.sender for each in pool}),
        "slot seeds": any(by_slot[d.at].seed == slot_seed(seed, number, d, by_slot[d.at].item_id) for d in owed),
        "noise of the policy": view.policy._noise == (key(seed, "defense", number),),  # type: ignore[attr-defined]
    }
    if spec.topology == "horizontal":  # elsewhere a node here owns one group, which any order of the nodes explains
        followed["slots"] = all(len(nodes) == 1 for nodes in of_sender.values())
        drawn = [item.id for item in generator(seed, "items", number, "all").sample(items, spec.prompts)]
        followed["items"] = list(view.items) == drawn
    return {name for name, follows in followed.items() if follows}


@pytest.mark.parametrize("topology", ["horizontal", "vertical"])
def test_whoever_tries_all_public_seeds_learns_nothing_under_a_secret(build_swarm: Build, topology: Any) -> None:
    views: dict[str, list[DefenderView]] = {}
    for name, seed in (("public", PUBLIC), ("secret", secret_seed(SECRET, PUBLIC))):
        recorder = Records()
        swarm = build_swarm(topology=topology, defense=recorder, seed=seed)
        for number in (1, 2):
            swarm.round(number)
        views[name] = recorder.seen
    every = {"rng", "order", "pseudonyms", "slot seeds", "noise of the policy"}
    every |= {"items", "slots"} if topology == "horizontal" else set()
    for view in views["public"]:
        assert explained(view, swarm.spec, swarm.task, PUBLIC) == every, "a public seed tells all"
        assert explained(view, swarm.spec, swarm.task, PUBLIC + 1) == set(), "and only its own"
    for view in views["secret"]:
        for seed in TRIED:
            assert explained(view, swarm.spec, swarm.task, seed) == set(), "nothing follows from what is public"
        assert explained(view, swarm.spec, swarm.task, secret_seed(SECRET, PUBLIC)) == every, "with the key it all does"


def test_a_secret_seed_is_a_keyed_hash() -> None:
    assert secret_seed(SECRET, "fresh", 1) == secret_seed(SECRET, "fresh", 1), "everyone with the key gets the same"
    drawn = {
        secret_seed(secret, *parts) for secret in (SECRET, new_secret()) for parts in ((1,), ("1",), (1, 1), (11,))
    }
    assert len(drawn) == 8, "other keys and other parts give other seeds"
    assert all(0 <= seed < 2**256 for seed in drawn)
    assert len(new_secret()) == SECRET_BYTES >= 16, "128 bits or more"
    assert random.Random(secret_seed(SECRET, 1)).random() != random.Random(secret_seed(SECRET, 2)).random()
    with pytest.raises(ValueError, match="a secret has at least 32 bytes, and this one has 4"):
        secret_seed(b"weak", 1)
