"""Cells of mixed swarms through the store: identities, checkpoints, resumption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.tiny import ATTACK, Attacked, cells, model, opened_cell, run, stopped_and_resumed, suite
from tests.variants import at_length
from thiefbench import registry
from thiefbench.defenses.base import DefenderView, Defense, Verdict
from thiefbench.defenses.logit import Logit
from thiefbench.engine.heterogeneity import ChurnSpec, DelaySpec, NodeClass, SharingSpec
from thiefbench.engine.model.decoding import sample
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import SwarmSpec
from thiefbench.pools.export import ExportError, header_of, lines_of, of_cohort
from thiefbench.pools.files import write
from thiefbench.pools.rounds import read_rounds
from thiefbench.suite.analysis.recorded_rounds import LackingError
from thiefbench.suite.analysis.replay import Recording, replay
from thiefbench.suite.execution import cell_identity, checkpoints
from thiefbench.suite.scenario import Suite
from thiefbench.suite.store.records import Record, Store, identify
from thiefbench.tasks.base import Item, Sampling

POISONED = f"poisoned_peer(attack={ATTACK!r}, steps=2)"


def mixed(**fields: Any) -> Suite:
    """A suite of one attacked cell: two classes, each of an honest and a malicious node, and what `fields` say."""
    shares = (NodeClass(str(model()), 0.5), NodeClass(f"{model()}/", 0.5))
    given: dict[str, Any] = {
        "topology": "vertical", "nodes": 4, "malicious": 2, "prompts": 4, "group": 4, "population": shares,
        "sampling": Sampling(max_new_tokens=20),
    }  # fmt: skip
    defense = "reputation(defense='random(rate=0.5)')"
    return suite(defense, kind=Attacked, attacks=(POISONED,), swarm=SwarmSpec(**given | fields))


CRASH = ChurnSpec((1,), down=1)
MIXED: dict[str, dict[str, Any]] = {
    "delay and a poisoned peer": {
        "delay": DelaySpec(rounds=3),
        "churn": ChurnSpec((1,), down=1),
        "logprobs": "reported",
    },
    "sharing and a poisoned peer": {"sharing": SharingSpec(1, 2), "churn": CRASH},
}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", -1.0)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", [*list(MIXED)[:1], *at_length(*list(MIXED)[1:])])
def test_a_mixed_cell_that_is_stopped_goes_on(name: str, tmp_path: Path) -> None:
    of = mixed(**MIXED[name])
    stopped_and_resumed(of, tmp_path)
    _, _, directory = opened_cell(of, tmp_path / "whole")
    rows = directory.read_rows().to_pylist()
    assert {row["cohort"] for row in rows} > {0, 1}, "the node that recovered from poison is a cohort of its own"
    assert all(row["label"] for row in rows), "rows say whose pool they are of"


def test_regimes_are_part_of_a_cells_identity() -> None:
    ids = {identify(cell_identity.identity(cells(mixed(**fields))[0])) for fields in ({}, *MIXED.values())}
    assert len(ids) == 3


FLOOD = f"flood(attack={ATTACK!r}, copies=2)"


class Looking(Defense):
    """Keeps every view."""

    name = "looking"

    def __init__(self) -> None:
        self.seen: list[DefenderView] = []

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.seen.append(view)
        return [Verdict() for _ in view.completions]


class Asking(Defense):
    """Asks the policy, and says nowhere that it will."""

    name = "asking"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        view.policy.token_logprobs(view.completions)
        return [Verdict() for _ in view.completions]


def opened(store: Path, record: Record) -> Recording:
    return Recording(Store(store).cell(record.cell_id), record, registry.make("task", record.cell["task"]))


@pytest.mark.parametrize(
    ("name", "attack"), [*((name, POISONED) for name in MIXED), ("sharing and a poisoned peer", FLOOD)]
)
def test_a_replay_of_the_cells_own_defense_gives_its_own_verdicts(name: str, attack: str, tmp_path: Path) -> None:
    of = replace(mixed(**MIXED[name]), attacks=(attack,))
    (record,) = run(of, tmp_path)
    recording = opened(tmp_path, record)
    assert len(recording.cohorts) > 1
    done = replay(recording, lambda: registry.make("defense", record.cell["defense"]))
    given = {number: [verdict.action for verdict in verdicts] for number, verdicts in done.verdicts.items()}
    assert given == {number: [row.action for row in rows] for number, rows in recording.pools.items()}, (
        "every cohort's defense draws, remembers and judges as it did"
    )
    assert {action for actions in given.values() for action in actions} > {"accept"}, "some are rejected"
    for name in ("stop_rate", "false_rejection_rate"):
        assert done.scores[name] == record.scores[name]


def test_seeds_of_a_replay_are_those_that_the_slots_had(tmp_path: Path) -> None:
    """An honest completion is what its slot's seed draws, also where nodes are away and an attacker floods."""
    of = replace(mixed(**MIXED["sharing and a poisoned peer"]), attacks=(FLOOD,))
    (record,) = run(of, tmp_path)
    recording = opened(tmp_path, record)
    looking: list[Looking] = []

    def look() -> Looking:
        looking.append(Looking())
        return looking[-1]

    replay(recording, look)
    view = next(view for each in looking for view in each.seen)
    assert view.round == 1, "sampled with the start weights"
    malicious = {row.sender for rows in recording.pools.values() for row in rows if row.malicious}
    honest = [made for made in view.completions if made.sender not in malicious]
    items = [Item.from_row(row) for row in recording.task.items("train") if row["id"] in view.items]
    places = {item.id: place for place, item in enumerate(items)}
    policy = Policy.load(str(model()))
    drawn = sample(
        policy,
        [policy.prompt_ids(recording.task.messages(item)) for item in items],
        [places[made.item_id] for made in honest],
        [made.seed for made in honest if made.seed is not None],
        recording.sampling,
    )
    assert honest
    assert [made.ids for made in drawn] == [made.ids for made in honest]


def test_a_replay_asks_no_policy_of_a_swarm_of_several(tmp_path: Path) -> None:
    of = mixed()
    (record,) = run(of, tmp_path)
    recording = opened(tmp_path, record)
    with pytest.raises(LackingError, match=r"^the defense logit requires homogeneous, which this swarm does not give$"):
        replay(recording, Logit)
    with pytest.raises(LackingError, match=r"^asking needs the policy, and of a swarm of several models no weights"):
        replay(recording, Asking)


@pytest.mark.parametrize("name", MIXED)
def test_an_exported_mixed_cell_is_what_one_cohort_received(name: str, tmp_path: Path) -> None:
    (record,) = run(mixed(**MIXED[name]), tmp_path)
    recording = opened(tmp_path, record)
    known = {row["id"]: row["question"] for row in recording.task.items("train")}
    for part in recording.cohorts:
        path = tmp_path / f"{part.cohort}.jsonl"
        lines = list(lines_of(of_cohort(recording, part.cohort)))
        assert all(line.question == known[line.item] for line in lines)
        path.write_bytes(write(header_of(part), lines))
        filed = read_rounds(path)
        assert not filed.refused.count
        told = [[(row.item_id, row.text) for row in rows] for rows in filed.pools.values()]
        assert told == [[(row.item_id, row.text) for row in rows] for rows in part.pools.values()]
    assert of_cohort(recording, None) is recording.cohorts[0]
    with pytest.raises(ExportError, match=r"has no cohort 99 that learned from others; give one of 0, \d"):
        of_cohort(recording, 99)


def test_a_file_names_the_model_of_its_cohort(tmp_path: Path) -> None:
    (record,) = run(mixed(), tmp_path)
    told = [header_of(part).model for part in opened(tmp_path, record).cohorts]
    assert told == [str(model()), f"{model()}/"]
    (record,) = run(mixed(**MIXED["sharing and a poisoned peer"]), tmp_path)
    assert {header_of(part).model for part in opened(tmp_path, record).cohorts} == {""}, "either could be a cohort's"
