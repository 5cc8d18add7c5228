"""What an attack may try before round 1: copies of the swarm, of which the swarm itself notices nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest

from tests.bench.engine.conftest import same_weights, weights_of
from tests.variants import at_length
from thiefbench.attacks import auto
from thiefbench.attacks.auto import Auto
from thiefbench.attacks.base import Attack, Rehearsal, ThreatModel, Tried
from thiefbench.attacks.contrast import Contrast
from thiefbench.attacks.text import Text
from thiefbench.attacks.varied import Varied
from thiefbench.defenses.anchors import Oracle
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Verdict
from thiefbench.engine.rehearsal import SwarmRehearsal
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import Role
from thiefbench.engine.swarm import Swarm
from thiefbench.tasks.base import Topology

Build = Callable[..., Swarm]
GOAL = Text("hail to all", "start")


class Few(Auto):
    """With members that a tiny swarm can tell apart in a moment."""

    def members(self) -> dict[str, Attack]:
        return {
            "naive": self.attack,
            "gibberish": Varied(self.attack, gibberish=0.5),
            "contrast": Contrast(self.attack, samples=4),
            "names": Varied(self.attack, share=0.5, identities=3),
        }


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rehearsal of two rounds."""
    monkeypatch.setattr(auto, "ROUNDS", 2)
    monkeypatch.setattr(auto, "COMPLETIONS", 16)


class Counting(Defense):
    """Keeps state: it rejects every third completion of all that it has seen, and counts its inspections."""

    name = "counting"

    def __init__(self) -> None:
        self.seen = self.calls = 0

    def inspect(self, view: DefenderView) -> list[Verdict]:
        self.calls += 1
        verdicts = []
        for _ in view.completions:
            self.seen += 1
            verdicts.append(Verdict("drop") if self.seen % 3 == 0 else ACCEPT)
        return verdicts

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen, "calls": self.calls}

    def restore(self, state: dict[str, Any]) -> None:
        self.seen, self.calls = state["seen"], state["calls"]


class Prepares(Text):
    """Keeps the rehearsals that it is given."""

    name = "prepares"
    threat = ThreatModel("out-of-context", rehearsal=True)

    def __init__(self) -> None:
        super().__init__(GOAL.phrase, GOAL.position)
        self.given: list[Rehearsal] = []

    def draw(self, rng: Any) -> Prepares:
        return self

    def prepared(self, rehearsal: Rehearsal) -> Attack:
        self.given.append(rehearsal)
        return self


class Ungranted(Prepares):
    """Would like to rehearse too."""

    threat = ThreatModel("out-of-context")


def played(swarm: Swarm, rounds: int = 3) -> list[list[CompletionRow]]:
    """The rows of some rounds and of an evaluation."""
    return [*(swarm.round(number).rows for number in range(1, rounds + 1)), swarm.evaluate(rounds, 16).rows]


def but_for_outcomes(rounds: Sequence[Sequence[CompletionRow]]) -> list[list[CompletionRow]]:
    """`auto` counts every form of its goal as a success, and its member only its own."""
    return [[replace(row, outcome=None) for row in rows] for rows in rounds]


def member(swarm: Swarm) -> str:
    return swarm.attack.describe()["member"]


@pytest.mark.parametrize("role", get_args(Role))
def test_who_is_granted_a_rehearsal_is_given_one_before_round_1(role: Role, build_swarm: Build) -> None:
    attack = Prepares()
    swarm = build_swarm(role, attack=attack)
    swarm.evaluate(0, 8)
    assert attack.given == [], "nothing is rehearsed for an evaluation"
    for number in (1, 2):
        swarm.round(number)
    assert len(attack.given) == (role != "control"), "once, and not where nobody attacks"


def test_who_is_not_granted_a_rehearsal_is_given_none(build_swarm: Build) -> None:
    attack = Ungranted()
    played(build_swarm(attack=attack), 1)
    assert attack.given == []
    assert Ungranted().threat == ThreatModel("out-of-context", rehearsal=False), "an attack asks for it by name"


@pytest.mark.parametrize(
    ("chosen", "topology"),
    [("gibberish", "vertical"),
     *at_length(("naive", "horizontal"), ("names", "horizontal"), ("contrast", "vertical"))],
)  # fmt: skip
def test_a_rehearsal_changes_nothing_in_the_swarm_itself(
    chosen: str, topology: Topology, build_swarm: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swarm goes on as one in which the chosen member is played from the start."""
    monkeypatch.setattr(auto, "best", lambda tried: chosen)  # after all have been tried
    rehearsed = build_swarm(attack=Few(GOAL), defense=Counting(), topology=topology)
    rows = played(rehearsed)
    assert member(rehearsed) == chosen
    direct = build_swarm(attack=Few(GOAL).members()[chosen], defense=Counting(), topology=topology)
    assert but_for_outcomes(rows) == but_for_outcomes(played(direct)), "items, noise, verdicts and rows are the same"
    assert same_weights(weights_of(rehearsed)[0], weights_of(direct)[0]), "bit for bit"
    assert rehearsed.cohort.defense.state() == direct.cohort.defense.state(), "the defense has seen its own rounds only"
    assert rehearsed.history == direct.history


@pytest.mark.slow
def test_a_rehearsal_comes_out_the_same_again(build_swarm: Build) -> None:
    one, other, placebo = (build_swarm(role, attack=Few(GOAL)) for role in ("attack", "attack", "placebo"))
    rows = played(one, 1)
    assert played(other, 1) == rows
    assert one.attack.describe() == other.attack.describe()
    played(placebo, 1)
    assert placebo.attack.describe() == one.attack.describe(), "the placebo has the attack's member"
    another = build_swarm(attack=Few(GOAL), seed=6)
    played(another, 1)
    assert another.attack.describe()["rehearsal"] != one.attack.describe()["rehearsal"], "another seed, other draws"


def test_the_seconds_of_a_rehearsal_are_a_phase_of_round_1(build_swarm: Build) -> None:
    swarm = build_swarm(attack=Few(GOAL))
    assert "rehearse" in swarm.round(1).seconds
    assert "rehearse" not in swarm.round(2).seconds


def test_what_is_recalled_plays_on_without_a_rehearsal(build_swarm: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_swarm(attack=Few(GOAL))
    rows = played(first)
    monkeypatch.setattr(SwarmRehearsal, "play", lambda *_: pytest.fail("it is not rehearsed a second time"))
    again = build_swarm(attack=Few(GOAL))
    again.recall(first.attack.describe())
    assert again.prepared
    assert played(again) == rows
    assert again.attack.describe() == first.attack.describe()


def test_a_description_from_before_the_rehearsal_leaves_it_to_be_held(build_swarm: Build) -> None:
    swarm = build_swarm(attack=Few(GOAL))
    swarm.recall(swarm.attack.describe())
    assert not swarm.prepared
    swarm.round(1)
    assert member(swarm) in Few(GOAL).members()
    with pytest.raises(ValueError, match="its member is one of naive, gibberish, contrast, names"):
        build_swarm(attack=Few(GOAL)).recall({"member": "a stranger"})


def test_what_is_described_of_an_attack_without_a_rehearsal_is_not_recalled(build_swarm: Build) -> None:
    swarm = build_swarm(attack=GOAL)
    swarm.recall({"phrase": "another one"})
    assert swarm.attack.describe() == GOAL.describe()


def rehearsal_of(swarm: Swarm, attack: Prepares) -> Rehearsal:
    swarm.round(1)
    return attack.given[0]


@pytest.mark.parametrize("reject", ["none", "drop", "zero"])
def test_what_came_of_an_attack_is_measured_as_in_a_cell(reject: Any, build_swarm: Build) -> None:
    results: list[Tried] = []

    class Trying(Prepares):
        def prepared(self, rehearsal: Rehearsal) -> Attack:
            results.append(rehearsal.play(GOAL, 2, 40))
            return self

    defense = Oracle(reject) if reject != "none" else None
    swarm = build_swarm(attack=Trying(), defense=defense)
    before = weights_of(swarm)[0]
    copies: list[Swarm] = []
    copied = swarm._copy

    def kept(attack: Attack) -> Swarm:
        copies.append(copied(attack))
        return copies[-1]

    swarm._copy = kept  # type: ignore[method-assign]
    swarm.round(1)
    (copy,) = copies
    (tried,) = results
    assert copy.seed != swarm.seed, "its draws are not those that the swarm will have"
    assert copy.attack.describe() == GOAL.describe()
    again = build_swarm(attack=GOAL, defense=defense, seed=copy.seed)
    rounds = [again.round(number).rows for number in (1, 2)]
    outcomes = [row.outcome for row in again.evaluate(2, 40).rows if row.outcome is not None]
    assert tried.outcome == statistics.fmean(outcomes)
    assert tried.error == pytest.approx(statistics.stdev(outcomes) / len(outcomes) ** 0.5)
    advantages = [
        sum(max(row.advantage, 0) for row in rows if row.payload and row.action == "accept") / 8 for rows in rounds
    ]
    assert tried.taught == pytest.approx(statistics.fmean(advantages))
    assert (tried.taught > 0) == (reject == "none"), "what is rejected teaches nothing"
    assert not same_weights(weights_of(copy)[0], before), "the copy learns"


def test_an_attack_that_does_not_fit_is_told_so(build_swarm: Build) -> None:
    class Flat(Text):
        threat = ThreatModel("out-of-context", topologies=frozenset({"horizontal"}))

        def draw(self, rng: Any) -> Flat:
            return self

    class Fitting(Flat):
        def fits(self, task: Any) -> bool:
            return False

    for topology, possible in (("horizontal", True), ("vertical", False)):
        attack = Prepares()
        rehearsal = rehearsal_of(build_swarm(attack=attack, topology=topology), attack)
        assert rehearsal.topology == topology
        assert rehearsal.possible(Flat("so be it", "start")) is possible
        assert not rehearsal.possible(Fitting("so be it", "start"))


def test_outcomes_that_say_nothing_are_told_as_such(build_swarm: Build) -> None:
    class Mute(Text):
        def draw(self, rng: Any) -> Mute:
            return self

        def outcome(self, item: Any, completion: Any, ask: Any) -> None:  # type: ignore[override]
            return None

    attack = Prepares()
    tried = rehearsal_of(build_swarm(attack=attack), attack).play(Mute("so be it", "start"), 1, 8)
    assert (tried.outcome, tried.error) == (0.0, float("inf"))


def test_a_rank_that_joins_late_plays_the_member_of_the_others(build_swarm: Build) -> None:
    """Under torchrun the first rank hands its checkpoint to the others, which begin in a later round."""
    from thiefbench.suite.execution.torchrun import _checkpoint_parts, _take_up
    from thiefbench.suite.store.records import rows_table

    first = build_swarm(attack=Few(GOAL))
    rows = first.round(1).rows
    late = build_swarm(attack=Few(GOAL))
    _take_up(late, _checkpoint_parts(first, rows_table(rows)))
    assert late.attack.describe() == first.attack.describe()
    assert late.round(2).rows == first.round(2).rows
    assert same_weights(weights_of(late)[0], weights_of(first)[0])


@pytest.mark.slow
@pytest.mark.parametrize("topology", get_args(Topology))
def test_every_member_of_auto_can_be_played(
    topology: Topology, build_swarm: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "ROUNDS", 1)
    swarm = build_swarm(attack=Auto(GOAL), topology=topology)
    rows = swarm.round(1).rows
    tried = swarm.attack.describe()["rehearsal"]
    left_out = ["naive"] if topology == "vertical" else ["gibberish", "items"]
    assert [name for name in Auto(GOAL).members() if f"{name} 0." not in tried] == left_out
    assert any(row.malicious for row in rows)
