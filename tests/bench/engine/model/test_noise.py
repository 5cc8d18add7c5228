from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any, get_args

import pytest
import torch

from thiefbench.attacks.base import Attack, AttackerView, Poison, ThreatModel
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Verdict
from thiefbench.engine.backends import local as local_module
from thiefbench.engine.keys import generator, key, slot_key
from thiefbench.engine.model import noise as noise_module
from thiefbench.engine.model.decoding import sample
from thiefbench.engine.model.noise import _mix, gumbel
from thiefbench.engine.swarm import Swarm
from thiefbench.engine.views import attacker as attacker_module
from thiefbench.engine.views import defender as views_module
from thiefbench.tasks.base import Ask, Completion, Item, Topology

MASK = (1 << 64) - 1


class Resampler(Attack):
    """An attack that draws from its copy of the policy, leaves every second slot to an honest sample."""

    name = "resampler"
    threat = ThreatModel(context="in-context", policy=True)

    def poison(self, view: AttackerView) -> list[Poison]:
        assert view.policy is not None
        items = [slot.item for slot in view.slots]
        view.policy.sample(items[:2], 3)
        drawn = view.policy.sample(items, 2)
        return [None if i % 2 == 0 else max(two, key=lambda c: len(c.ids)).ids for i, two in enumerate(drawn)]

    def choose_items(self, items: Any, count: int, rng: Any) -> list[Item]:
        return [items[0]] * count

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float:
        return 0.0


class Asker(Defense):
    """A defense that generates twice with the same prompts."""

    name = "asker"

    def inspect(self, view: DefenderView) -> list[Verdict]:
        for _ in range(2):
            view.policy.generate([[{"role": "user", "content": "fine?"}]] * 3, max_new_tokens=4)
        return [ACCEPT] * len(view.completions)


@pytest.mark.parametrize("topology", get_args(Topology))
def test_no_two_completions_of_a_run_share_a_key(
    topology: Topology, build_swarm: Callable[..., Swarm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call of the sampler: honest nodes, the attacker's draws, slots it leaves, the defense's, held-out."""
    keys: list[int] = []

    def watched(policy: Any, prompts: Any, rows: Any, row_keys: Any, *rest: Any, **named: Any) -> list[Completion]:
        keys.extend(row_keys)
        return sample(policy, prompts, rows, row_keys, *rest, **named)

    monkeypatch.setattr(local_module, "sample", watched)
    monkeypatch.setattr(views_module, "sample", watched)
    monkeypatch.setattr(attacker_module, "sample", watched)
    swarm = build_swarm(attack=Resampler(), defense=Asker(), topology=topology, prompts=8)
    for number in (1, 2, 3):
        swarm.round(number)
    swarm.evaluate(3, completions=40)  # more completions than items: each item several times

    slots = 8 * 8
    owed = slots // 4
    attackers, left, defense = 2 * 3 + owed * 2, owed // 2, 2 * 3
    assert len(keys) == 3 * (slots - owed + attackers + left + defense) + 40, "a draw escaped the count"
    assert len(set(keys)) == len(keys), "no two completions of a run may share a noise key"


@pytest.mark.parametrize("topology", get_args(Topology))
def test_keys_differ_over_seeds(
    topology: Topology, build_swarm: Callable[..., Swarm], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[int]] = []

    def watched(policy: Any, prompts: Any, rows: Any, row_keys: Any, *rest: Any, **named: Any) -> list[Completion]:
        seen[-1].update(row_keys)
        return sample(policy, prompts, rows, row_keys, *rest, **named)

    monkeypatch.setattr(local_module, "sample", watched)
    for seed in (0, 1):
        seen.append(set())
        build_swarm("control", topology=topology, seed=seed).round(1)
    assert len(seen[0]) == len(seen[1]) == 4 * 8
    assert seen[0].isdisjoint(seen[1]), "another seed must draw other noise"


def test_keys_tell_parts_types_and_borders_apart() -> None:
    tuples: list[tuple[int | str, ...]] = [
        *product(range(8), ("train", "eval", "attacker", "defense"), range(8), ("a", "b", "1"), (0, 1, 11))
    ]
    tuples += [(1, 23), (12, 3), (123,), ("1", 23), (1, "23"), ("ab", "c"), ("a", "bc")]
    assert len({key(*parts) for parts in tuples}) == len(tuples)
    assert all(-(2**63) <= key(*parts) < 2**63 for parts in tuples), "a key must fit int64"


def test_keys_are_the_same_in_every_process() -> None:
    assert key(0, "train", 1) == -4866066703498756712, (
        "a key may depend on nothing but its parts: results change with it"
    )
    assert generator(0, "items", 1).sample(range(100), 3) == generator(0, "items", 1).sample(range(100), 3)


def test_a_slot_s_key_is_a_function_of_public_facts_about_the_slot_alone() -> None:
    facts: tuple[tuple[int | str, ...], int, int, str, int] = ((7, "train", 3), 2, 5, "item", 1)
    assert slot_key(*facts) == key(7, "train", 3, 2, 5, "item", 1), "it may not change: results change with it"
    others = [((7, "train", 4), 2, 5, "item", 1), (facts[0], 3, 5, "item", 1), (facts[0], 2, 6, "item", 1)]
    others += [(facts[0], 2, 5, "other", 1), (facts[0], 2, 5, "item", 2)]
    assert len({slot_key(*facts), *(slot_key(*other) for other in others)}) == 6, "another slot is another draw"


def test_one_step_for_all_rows_and_one_for_each_are_the_same_noise() -> None:
    keys, tokens = torch.tensor([5, -9, 5]), torch.arange(12).view(3, 4)
    rows = torch.cat([gumbel(keys[i : i + 1], step, tokens[i : i + 1]) for i, step in enumerate((2, 0, 7))])
    assert torch.equal(gumbel(keys, torch.tensor([2, 0, 7]), tokens), rows)


def reference_mix(x: int) -> int:
    """splitmix64's step on Python's integers."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def reference_gumbel(row_key: int, step: int, token: int) -> float:
    mixed = reference_mix(reference_mix((row_key ^ step) & MASK) ^ token)
    return -math.log(-math.log(((mixed >> 12) + 0.5) * 2.0**-52))


def test_splitmix_equals_published_outputs_and_big_integers() -> None:
    assert int(_mix(torch.tensor(0))) & MASK == 0xE220A8397B1DCDAF, "splitmix64's first output from seed 0"
    for x in (1, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF, key("any")):
        assert int(_mix(torch.tensor(x))) & MASK == reference_mix(x & MASK), "int64 wraps and shifts as uint64 does"


def test_gumbel_equals_big_integer_arithmetic() -> None:
    keys = [0, 1, -1, 2**63 - 1, -(2**63), key("a"), key("b")]
    tokens = [0, 1, 49, 151_935]
    for step in (0, 1, 1023):
        made = gumbel(torch.tensor(keys), step, torch.tensor([tokens] * len(keys)))
        expected = [[reference_gumbel(row_key, step, token) for token in tokens] for row_key in keys]
        assert made.dtype == torch.float64
        torch.testing.assert_close(made, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_gumbel_depends_on_no_other_row_or_candidate() -> None:
    keys = torch.tensor([key("row", i) for i in range(40)])
    tokens = torch.arange(200).expand(40, -1)
    whole = gumbel(keys, 3, tokens)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(gumbel(keys[order], 3, tokens), whole[order]), "noise must not depend on the order of rows"
    assert torch.equal(gumbel(keys[7:8], 3, tokens[:1]), whole[7:8]), "noise must not depend on the batch"
    assert torch.equal(gumbel(keys, 3, tokens.flip(1)), whole.flip(1)), "noise must not depend on a candidate's place"


def test_gumbel_has_its_mean_and_variance() -> None:
    noise = gumbel(torch.tensor([key("moments", i) for i in range(1000)]), 0, torch.arange(1000).expand(1000, -1))
    assert noise.isfinite().all()
    assert float(noise.mean()) == pytest.approx(0.57722, abs=0.005), "mean of a standard Gumbel: Euler's constant"
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.015), "variance of a standard Gumbel"


@pytest.mark.parametrize("bits", [0, -1])
def test_gumbel_is_finite_at_both_ends(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest and the largest hash: a uniform of 0 or 1 would make the noise infinite."""
    monkeypatch.setattr(noise_module, "_mix", lambda x: torch.full_like(x, bits))
    assert gumbel(torch.tensor([1]), 0, torch.tensor([[2]])).isfinite().all()


def test_neighbouring_keys_steps_and_tokens_are_uncorrelated() -> None:
    tokens = torch.arange(301).expand(300, -1)
    keys = torch.arange(300)  # the worst case: keys that differ in their last bits only
    noise = gumbel(keys, 0, tokens)
    pairs = {
        "tokens": (noise[:, :-1], noise[:, 1:]),
        "keys": (noise[:-1], noise[1:]),
        "steps": (noise, gumbel(keys + 10**6, 1, tokens)),
    }
    for name, (one, other) in pairs.items():
        correlation = torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]
        assert abs(float(correlation)) < 0.015, f"noise of neighbouring {name} must be independent"
