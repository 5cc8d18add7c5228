"""The engine makes the very same rows of a record, and other ones where anything in it was edited."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.bench import tiny
from thiefbench import registry
from thiefbench.attacks import auto
from thiefbench.engine.backends.recorded import RecordedSwarm, RerunError
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.rehearsal import SwarmRehearsal
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import Role, SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.tasks.base import Sampling

SPEC = SwarmSpec(nodes=3, malicious=1, prompts=3, group=6, sampling=Sampling(max_new_tokens=20))
SEED = 2**62 + 5
ATTACKS = [
    "text",
    "varied(attack='text', gibberish=0.5, share=0.5, identities=2)",
    "adaptive(attack='text', budget=2)",
    "varied(attack='dos(samples=2)', gibberish=0.5)",
    f"{tiny.PLUGINS}:Samples",
    f"{tiny.PLUGINS}:Withholds",
]


@cache
def policy() -> Policy:
    return Policy.load(tiny.model())


@cache
def played(attack: str, role: Role = "attack", topology: str = "horizontal") -> tuple[list[CompletionRow], ...]:
    """A start evaluation, two rounds and another evaluation, under a defense that says all it can."""
    made: dict[str, Any] = {"spec": replace(SPEC, topology=topology), "role": role, "seed": SEED}
    swarm = Swarm(
        **made, policy=Policy.load(tiny.model()), task=registry.make("task", tiny.TASK),
        attack=registry.make("attack", attack), defense=registry.make("defense", "random(rate=0.3)+logit"),
    )  # fmt: skip
    return tuple(part.rows for part in (swarm.evaluate(0, 16), swarm.round(1), swarm.round(2), swarm.evaluate(2, 16)))


def retold(attack: str, role: Role = "attack", topology: str = "horizontal", **changes: Any) -> RecordedSwarm:
    spec = replace(SPEC, topology=topology, **changes)
    return RecordedSwarm(spec, role, policy(), registry.make("task", tiny.TASK), registry.make("attack", attack), SEED)


@pytest.mark.parametrize("topology", ["horizontal", "vertical"])
@pytest.mark.parametrize("role", ["attack", "placebo", "control"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_true_record_is_told_again_as_it_is(attack: str, role: Role, topology: str) -> None:
    again = retold(attack, role, topology)
    for rows in played(attack, role, topology):
        for trust in (False, True):
            assert again.rerun(rows, 16, trust) == rows, "every field of every row follows from tokens and verdicts"


@pytest.mark.parametrize("role", ["attack", "placebo", "control"])
def test_an_attack_that_rehearsed_is_told_again_by_what_it_had_chosen(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "ROUNDS", 1)
    monkeypatch.setattr(auto, "COMPLETIONS", 8)
    attack = tiny.REHEARSES
    rounds = played(attack, role)
    monkeypatch.setattr(SwarmRehearsal, "play", lambda *_: pytest.fail("without the weights nothing is rehearsed"))
    goal = registry.make("attack", attack).describe()
    described = goal if role == "control" else goal | {"member": "naive", "rehearsal": "naive won"}
    again = retold(attack, role)
    again.recall(described)
    assert again.attack.describe() == described
    for rows in rounds:
        assert again.rerun(rows, 16) == rows, "what was sent depends on the weights, and is taken from the record"
    if role != "control":
        with pytest.raises(RerunError, match="it does not say what rehearses chose before round 1"):
            retold(attack, role).recall(goal)
        with pytest.raises(RerunError, match="its member is one of half, naive"):
            retold(attack, role).recall(goal | {"member": "own"})


def test_rows_that_were_edited_come_out_otherwise() -> None:
    again, (_, first, *_) = retold("text"), played("text")
    honest = next(place for place, row in enumerate(first) if not row.malicious)
    poison = next(place for place, row in enumerate(first) if row.payload)
    edits: list[tuple[int, dict[str, Any]]] = [
        (honest, {"text": "All is well"}), (honest, {"reward": 1.0 - first[honest].reward}),
        (honest, {"malicious": True}), (honest, {"payload": True}), (poison, {"payload": False}),
        (honest, {"outcome": 1.0}), (honest, {"node": 2}), (honest, {"sender": "00000000"}),
        (honest, {"advantage": 3.0}), (poison, {"ids": first[honest].ids, "text": first[honest].text}),
        (honest, {"item_id": next(row.item_id for row in first if row.item_id != first[honest].item_id)}),
    ]  # fmt: skip
    for place, edit in edits:
        edited = [*first]
        edited[place] = replace(first[place], **edit)
        assert again.rerun(edited) != edited, f"{edit} does not follow from the rest"


@pytest.mark.parametrize("items", ["committed", "drawn"])
def test_items_that_no_weights_decide_are_worked_out_again(items: Any) -> None:
    """Even where an attack does know the weights."""
    attack = f"{tiny.PLUGINS}:Samples"
    made = {"topology": "vertical", "items": items}
    swarm = Swarm(
        replace(SPEC, **made), "attack", Policy.load(tiny.model()), registry.make("task", tiny.TASK),
        registry.make("attack", attack), registry.make("defense", "none"), SEED,
    )  # fmt: skip
    rows = swarm.round(1).rows
    again = retold(attack, **made)
    assert again.rerun(rows) == rows
    mine = next(row for row in rows if row.malicious)
    other = next(row for row in rows if row.item_id != mine.item_id)
    edited = [replace(row, item_id=other.item_id) if row.group == mine.group else row for row in rows]
    assert again.rerun(edited)[0].item_id == rows[0].item_id, "a record cannot name items of its own choice"
    assert again.rerun(edited) != edited


def test_what_no_swarm_leaves_is_named() -> None:
    again, (start, first, *_) = retold("text"), played("text")
    honest = next(place for place, row in enumerate(first) if not row.malicious)

    def told(place: int, rows: list[CompletionRow], **edit: Any) -> str:
        with pytest.raises(RerunError) as caught:
            again.rerun([*rows[:place], replace(rows[place], **edit), *rows[place + 1 :]], 16)
        return str(caught.value)

    cut = {"ids": first[honest].ids[:1], "ended": False}
    assert "ends where the sampler does not" in told(honest, first, **cut)
    assert "ends where the sampler does not" in told(0, start, ids=(*start[0].ids[:2], policy().eos, 5), ended=True)
    assert "outside the vocabulary" in told(0, start, ids=(10**6,), ended=True)
    assert "action is accept, zero, drop or skip" in told(honest, first, action="maybe")
    with pytest.raises(RerunError, match="it lacks a completion"):
        again.rerun(first[:-1])
    with pytest.raises(RerunError, match="16 completions it has 15"):
        again.rerun(start[:-1], 16)
