"""`seed_replay` in swarms: a slot has one legitimate draw, and nothing else gets through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, get_args

import pytest

from tests.defenses.pools import Watched
from thiefbench.attacks.base import Attack, AttackerView, AttackSpec, Poison, ThreatModel
from thiefbench.attacks.dos import Dos
from thiefbench.attacks.equations import Equations
from thiefbench.attacks.item_grind import ItemGrind
from thiefbench.attacks.seed_grind import SeedGrind
from thiefbench.attacks.text import Text
from thiefbench.defenses.base import PoolCompletion
from thiefbench.defenses.rejection import cut_short
from thiefbench.defenses.seed_replay import SeedReplay
from thiefbench.engine.model import forward_cache
from thiefbench.engine.model.forward_cache import Sizes
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import Role, SpecError, SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.tasks.base import Sampling, Task, Topology
from thiefbench.tasks.gsm_micro import GsmMicro
from thiefbench.zoo.models import resolve

topologies = pytest.mark.parametrize("topology", get_args(Topology))
Build = Callable[..., Swarm]


class Watching(Watched, SeedReplay):
    """The defense, which records every view that it gets."""


@pytest.fixture
def build(load_policy: Callable[..., Policy], vowels: Task) -> Build:
    def made(
        attack: Attack, defense: SeedReplay | None = None, role: Role = "attack", dtype: str = "float32", **fields: Any
    ) -> Swarm:
        fields.setdefault("sampling", Sampling(top_k=40, max_new_tokens=16))
        spec = SwarmSpec(**({"prompts": 4, "group": 8} | fields))
        return Swarm(spec, role, load_policy(dtype=dtype), vowels, attack, defense or SeedReplay(), 5)

    return made


def actions(rows: Sequence[CompletionRow], payload: bool) -> set[str]:
    return {row.action for row in rows if row.payload == payload}


@topologies
@pytest.mark.parametrize("sampling", [Sampling(0.8, 12), Sampling(1.0, 0, 0.7), Sampling(1.3, 30, 0.9)], ids=str)
@pytest.mark.parametrize("chunk", [2048, 40])
def test_no_honest_completion_is_rejected(
    chunk: int, sampling: Sampling, topology: Topology, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(forward_cache.SIZES, "cpu", Sizes(chunk, 1 << 11, 1 << 25, 3 << 30))
    sampling = replace(sampling, max_new_tokens=16)
    swarm = build(Text("hail to all", "start"), role="control", topology=topology, sampling=sampling)
    rows = [row for number in (1, 2, 3) for row in swarm.round(number).rows]
    assert len(rows) == 96
    assert {row.ended for row in rows} == {True, False}, "both kinds of endings occur"
    assert {row.action for row in rows} == {"accept"}, "an honest draw replays, however it is read"


@topologies
@pytest.mark.parametrize("attack", [Text("hail to all", "end"), Dos(samples=8)], ids=lambda attack: attack.name)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_forged_text_and_the_best_of_many_are_rejected(
    dtype: str, attack: Attack, topology: Topology, build: Build
) -> None:
    rows = build(attack, topology=topology, dtype=dtype).round(1).rows
    assert actions(rows, payload=True) == {"drop"}, "no other completion than the slot's own draw replays"
    assert actions(rows, payload=False) == {"accept"}
    assert all((row.score or 0) >= 1 for row in rows if row.payload), "the score counts the tokens that differ"


def test_an_edited_equation_is_rejected() -> None:
    spec = SwarmSpec("vertical", prompts=4, group=4, sampling=Sampling(max_new_tokens=64))
    attack, policy = Equations(2, "*", 2, 5), Policy.load(resolve("micro-math"))
    rows = Swarm(spec, "attack", policy, GsmMicro(size=512), attack, SeedReplay(), 0).round(1).rows
    assert actions(rows, payload=True) == {"drop"}
    assert actions(rows, payload=False) == {"accept"}


class Edits(Attack):
    """Submits the honest draw of each slot as it is, with its last token changed, cut short, or in another slot."""

    name = "edits"
    threat = ThreatModel("in-context", policy=True, beacon=True)

    def poison(self, view: AttackerView) -> list[Poison]:
        assert view.policy is not None
        seeds = [slot.seed or 0 for slot in view.slots]
        made = view.policy.sample_seeded([slot.item for slot in view.slots], seeds)
        whole = [(*each.ids, view.policy.eos) if each.ended else each.ids for each in made]
        other = [(*row[:-2], row[-2] ^ 1, row[-1]) if len(row) > 1 else (66, 67, 68) for row in whole]
        cut = [row[: len(row) // 2] or (66,) for row in whole]
        exchanged = [whole[at ^ 1] for at in range(len(whole))]
        return [(whole, other, cut, exchanged)[at % 4][at] for at in range(len(whole))]

    def outcome(self, item: Any, completion: Any, ask: Any) -> float:
        return 0.0


@topologies
def test_an_honest_draw_passes_and_only_as_it_is_and_where_it_belongs(topology: Topology, build: Build) -> None:
    swarm = build(Edits(), topology=topology)
    twin = {(r.group, r.place): r for r in build(Edits(), role="control", topology=topology).round(1).rows}
    mine = sorted(
        (row for row in swarm.round(1).rows if row.malicious), key=lambda row: (row.group, row.action != "accept")
    )
    whole = [row for row in mine if row.action == "accept"]
    assert len(whole) == len(mine) // 4, "changed, cut and exchanged draws are rejected, the draws themselves pass"
    for row in whole:
        honest = twin[row.group, row.place]
        if row.item_id == honest.item_id:
            assert row.ids == honest.ids, "a slot's draw does not depend on who makes it"


def test_a_draw_of_another_round_is_another_draw(build: Build) -> None:
    defense = Watching()
    swarm = build(Text("hail to all", "start"), defense, role="control", prompts=12)
    rounds = [swarm.round(number).rows for number in (1, 2)]
    view = defense.views[1]
    slots = {(offered.group, offered.index): offered for offered in view.completions}
    assert all(offered.seed is not None for offered in view.completions)
    seeds = {offered.seed for shown in defense.views for offered in shown.completions}
    assert len(seeds) == len(rounds[0]) + len(rounds[1]), "no two slots of a run share a seed"
    late = [
        replace(slots[row.group, row.place], item_id=row.item_id, ids=row.ids, ended=row.ended)
        for row in rounds[0]
        if len(row.ids) > 3
    ]
    fresh = [one for one in late if one.item_id in view.items]
    assert len(fresh) > 20
    assert all(not same.all() for same in view.policy.replay(fresh)), (
        "completions of the last round are not draws of this one"
    )


def test_many_names_are_no_more_draws(build: Build) -> None:
    class ManyFaces(Edits):
        variants = AttackSpec(identities=4)

    one, many = (build(attack).round(1).rows for attack in (Edits(), ManyFaces()))
    assert len({row.sender for row in many if row.malicious}) > 1
    assert [(r.ids, r.action) for r in one] == [(r.ids, r.action) for r in many], "the slot decides, not the pseudonym"


class Asks(Edits):
    """Queries the defense about its honest draws and the exchanged ones."""

    threat = replace(Edits.threat, queries=1)
    told: ClassVar[list[bool]] = []

    def poison(self, view: AttackerView) -> list[Poison]:
        assert view.defense is not None
        made = super().poison(view)
        asked = {slot: poison for slot, poison in zip(view.slots, made, strict=True) if poison is not None}
        self.told[:] = view.defense.accepts(asked).values()
        return made


def test_questions_are_answered_with_the_round_s_own_seeds(build: Build) -> None:
    swarm = build(Asks())
    mine = {(r.group, r.place): r for r in swarm.round(1).rows if r.malicious}
    assert sorted(Asks.told) == sorted(row.action == "accept" for row in mine.values())
    assert any(Asks.told)


def test_announced_seeds_let_the_chosen_draw_through(build: Build) -> None:
    """The same attack fails with a beacon, and succeeds where every node announces its seed."""
    attack = SeedGrind(Dos(), samples=12)
    beacon = build(attack).round(1).rows
    announced = build(attack, SeedReplay(announced=True), seeds="announced").round(1).rows
    assert actions(beacon, payload=True) == {"drop"}
    assert actions(announced, payload=True) == {"accept"}, "every draw replays"
    assert actions(beacon, payload=False) == actions(announced, payload=False) == {"accept"}
    right = [row for row in announced if row.reward and row.ended]
    ground, honest = ([len(row.ids) for row in right if row.payload == kind] for kind in (True, False))
    assert sum(ground) / len(ground) > 1.2 * sum(honest) / len(honest), "and was chosen for its length"
    forged = build(Text("hail to all", "end"), SeedReplay(announced=True), seeds="announced").round(1).rows
    assert actions(forged, payload=True) == {"drop"}, "forged text has no seed at all"


def test_chosen_items_show_honest_draws_only(build: Build) -> None:
    rows = build(ItemGrind(Dos(), candidates=3), topology="vertical").round(1).rows
    assert {row.action for row in rows} == {"accept"}
    assert any(row.payload for row in rows)


def test_a_swarm_without_a_beacon_refuses_the_defense_that_needs_one(build: Build) -> None:
    with pytest.raises(SpecError, match="seed_replay requires seeds from a beacon, and in this swarm every node annou"):
        build(Text("hail to all", "start"), seeds="announced")


def test_history_keeps_no_seeds(build: Build) -> None:
    swarm = build(Text("hail to all", "start"))
    swarm.round(1)
    assert all(offered.seed is offered.proof is None for offered in swarm.history[0].completions)


@pytest.mark.parametrize(
    ("tokens", "ended", "cut"),
    [(15, True, False), (3, True, False), (16, False, False), (15, False, True), (0, False, True)],
)
def test_a_completion_ends_with_eos_or_at_the_limit(tokens: int, ended: bool, cut: bool) -> None:
    assert cut_short(PoolCompletion("", 0, 0, "", (1,) * tokens, "", ended, 1.0), 16) == cut


def test_some_tokens_may_be_allowed(build: Build) -> None:
    strict = build(Edits()).round(1).rows
    lenient = build(Edits(), SeedReplay(reject="zero", allowed=16)).round(1).rows
    for one, other in zip(strict, lenient, strict=True):
        cut = "stops without EOS" in one.reason
        assert other.action == ("zero" if cut else "accept"), "allowed counts tokens; a wrong end is never allowed"


@pytest.mark.parametrize("arguments", [{"allowed": -1}, {"tolerance": -0.5}])
def test_values_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="allowed and tolerance must be at least 0"):
        SeedReplay(**arguments)
