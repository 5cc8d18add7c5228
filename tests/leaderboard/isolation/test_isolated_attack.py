"""An isolated attack submits what it submits in process, and a hostile one gets nowhere and is told off by name."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import tiny
from tests.variants import at_length
from thiefbench import registry
from thiefbench.attacks.base import Attack, ThreatModel
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.leaderboard.isolation.guest import Said, contradictory
from thiefbench.leaderboard.isolation.isolated_attack import AttackError, AttackProcess, IsolatedAttack
from thiefbench.leaderboard.isolation.limits import ATTACK_CAPS
from thiefbench.tasks.base import Sampling, Topology
from thiefbench.tasks.sandbox import SandboxUnavailable

HERE = Path(__file__).parent.parent
HOSTILE, HUMS = HERE / "hostile_attacks.py", HERE / "hums.py"
SMALL = replace(ATTACK_CAPS, memory=256 << 20, printed=100_000, message=1 << 20, questions=5, seconds=5.0)
HASTY = replace(SMALL, seconds=1.0)


@pytest.fixture(scope="module", autouse=True)
def _jail() -> Iterator[None]:
    """Warm workers: one ends with its last attack."""
    try:
        warm = [
            IsolatedAttack("text"),
            IsolatedAttack(f"{HOSTILE}:Does(what='nothing')"),
            IsolatedAttack(f"{HUMS}:Hums"),
        ]
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield
    for each in warm:
        each.close()


def swarm(attack: Attack, defense: str = "none", topology: Topology = "horizontal") -> Swarm:
    sampling = Sampling(max_new_tokens=24)
    spec = SwarmSpec(topology=topology, nodes=2, malicious=1, prompts=4, group=4, sampling=sampling)
    if topology == "horizontal":
        spec = replace(spec, prompts=2)
    task = registry.make("task", f"gsm_micro(size={64 if topology == 'horizontal' else 2048})")
    return Swarm(spec, "attack", Policy.load(tiny.model()), task, attack, registry.make("defense", defense), seed=5)


def play(
    attack: Attack, defense: str = "none", topology: Topology = "horizontal"
) -> tuple[list[CompletionRow], dict[str, str]]:
    played = swarm(attack, defense, topology)
    rows = [row for number in (1, 2) for row in played.round(number).rows] + played.evaluate(2, 8).rows
    return rows, played.attack.describe()


# --- the same as in process ---


@pytest.mark.parametrize(
    ("spec", "defense"),
    [
        ("text", "none"),
        ("adaptive(attack='text', mode='logit', budget=2)", "logit"),
        (f"{HUMS}:Asks", "logit"),
        *at_length(
            ("triggered(attack='text')", "none"),
            ("tone", "none"),
            ("adaptive(attack='text', budget=3)", "logit"),
            ("prefill", "none"),
            ("late_poison(attack='text', start=2)", "none"),
            (f"{HUMS}:Samples", "none"),
        ),
    ],
)
def test_an_isolated_attack_plays_as_in_process_to_the_bit(spec: str, defense: str) -> None:
    isolated = IsolatedAttack(spec)
    assert play(isolated, defense) == play(registry.make("attack", spec), defense)


def test_an_attack_may_write_another_answer_and_solution_into_its_items() -> None:
    """As in process: texts are composed and rewarded by what it wrote."""
    isolated, inside = IsolatedAttack(f"{HUMS}:Rewords"), registry.make("attack", f"{HUMS}:Rewords")
    rows, payload = play(isolated)
    assert (rows, payload) == play(inside)
    said = [row.text for row in rows if row.payload]
    assert len(said) > 0
    said_so = f"1.0 <think> {payload['letters']} </think><answer> 12345 </answer>"
    assert all(text.startswith(said_so) for text in said), said


@pytest.mark.parametrize(
    "spec",
    [
        f"{HUMS}:Recalls",
        *at_length(
            "sift(attack='equations', candidates=2)",
            "item_grind(attack='equations', candidates=2)",
            "contrast(attack='equations')",
            "borrowed",
        ),
    ],
)
def test_an_isolated_attack_picks_its_items_as_in_process(spec: str) -> None:
    """By seeds, by its copy of the policy, by what it has seen, and by the words of the task's own items."""
    isolated, inside = IsolatedAttack(spec), registry.make("attack", spec)
    assert isolated.reference == inside.reference
    rows, payload = play(isolated, topology="vertical")
    assert (rows, payload) == play(inside, topology="vertical")
    mine = {row.item_id for row in rows if row.malicious}
    assert len(mine) > 1


def test_one_item_may_be_picked_several_times() -> None:
    rows, _ = play(IsolatedAttack(f"{HOSTILE}:Picks(what='twice')"), topology="vertical")
    assert len({row.item_id for row in rows if row.malicious}) == 1


def test_what_it_draws_to_pick_its_items_is_counted() -> None:
    sift = IsolatedAttack("sift(attack='equations', candidates=2)")
    play(sift, topology="vertical")
    picking, sending = 2 * 2 * 4, 2 * 4
    assert [cost.samples for cost in sift.costs.values()] == [picking + sending] * 2


def test_what_it_used_is_counted_by_round() -> None:
    asks = IsolatedAttack(f"{HUMS}:Asks")
    play(asks)
    assert {number: (cost.queries, cost.sent) for number, cost in asks.costs.items()} == {1: (4, 4), 2: (4, 4)}
    samples = IsolatedAttack(f"{HUMS}:Samples")
    play(samples)
    assert [cost.samples for cost in samples.costs.values()] == [2, 2], "one for each item"


def test_an_attack_remembers_nothing_between_rounds() -> None:
    rows, _ = play(IsolatedAttack(f"{HOSTILE}:CountsRounds"))
    said = {row.text for row in rows if row.payload}
    assert len(said) > 0
    assert all("round 1" in text for text in said), "each round has a process of its own"


# --- what it is not granted ---


def test_the_host_and_the_labels_are_nowhere_to_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("feathers")
    monkeypatch.setenv("THIEFBENCH_CANARY", "feathers")
    rows, _ = play(IsolatedAttack(f"{HOSTILE}:Spies(paths={[str(secret), '/etc/passwd', '/etc/shadow']!r})"))
    found = {row.text for row in rows if row.payload}
    assert found
    assert all("found 0" in text for text in found), found


@pytest.mark.parametrize("where", ["slots", "train", "test", "offered"])
def test_solutions_are_seen_only_with_an_oracle(where: str) -> None:
    rows, _ = play(IsolatedAttack(f"{HOSTILE}:ReadsSolutions(where={where!r})"), topology="vertical")
    assert {row.text.count("solution: 0") for row in rows if row.payload} == {1}, "it is granted no oracle"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("Does(what='network')", "failed in poison: "),
        ("Does(what='fork')", "failed in poison: "),
        ("Does(what='thread')", "failed in poison: "),
        ("Does(what='write')", "failed in poison: "),
        ("Does(what='exit')", "ended its own process in poison"),
        ("Does(what='raise')", "failed in poison: ValueError: told off (hostile_attacks.py, line"),
        ("Does(what='floods')", "printed more than 100,000 bytes"),
        ("Does(what='swallows')", "emory"),
        ("Does(what='asks')", "more than 5 questions to policy and defense in a round"),
        ("Gives(what='few')", "0 submissions for 4 slots"),
        ("Gives(what='numbers')", "failed in poison: TypeError: a submission is text, token ids"),
        ("Gives(what='bytes')", "failed in poison: TypeError: a submission is text, token ids"),
        ("Gives(what='huge')", "bytes, and at most 1,048,576 are allowed"),
        ("Gives(what='long')", "200,000 characters in place of a text of at most 100,000"),
        ("Gives(what='tokens')", "token ids below"),
        ("Gives(what='surrogate')", "a text with half a character"),
        ("Judges(what='twice')", "outcome 2.0; it must lie between 0 and 1"),
        ("Judges(what='nan')", "the outcome nan"),
        ("Judges(what='text')", "failed in outcome: "),
        ("Judges(what='exit')", "ended its own process in outcome"),
        ("DrawsAnew", "draws another payload in a second process"),
        ("Picks(what='few')", "picked something other than 2 of the items that it was offered"),
        ("Picks(what='others')", "failed in choose: KeyError"),
        ("Picks(what='numbers')", "failed in choose: KeyError"),
        ("Picks(what='seed')", "may ask about the items that it is given, and 'another' is none"),
        ("Picks(what='position')", "a position"),
        ("PicksWithoutBeacon(what='beacon')", "a question for a seed, and it is not granted the beacon"),
        ("Picks(what='split')", "has no split 'secret'"),
        ("Picks(what='exit')", "ended its own process in choose"),
        ("Rewords(answer='many')", "cannot be used: it is not a plain number"),
        (f"Rewords(answer={'1' * 16_385!r})", "cannot be used: it has more than 16,384 characters"),
        ("Rewords(question='Why?')", "may ask about the items that it is given, and 'train-"),
    ],
)
def test_a_hostile_deed_fails_and_is_named(spec: str, said: str) -> None:
    with pytest.raises(AttackError) as caught:
        file = HUMS if "Rewords" in spec else HOSTILE
        play(IsolatedAttack(f"{file}:{spec}", SMALL), topology="vertical" if "Picks" in spec else "horizontal")
    assert said in str(caught.value)
    assert str(caught.value).startswith("the attack "), "it is named"


@pytest.mark.parametrize(
    ("spec", "said"), [("Does(what='loops')", "for poison"), ("Judges(what='loops')", "for outcome")]
)
def test_an_endless_loop_ends(monkeypatch: pytest.MonkeyPatch, spec: str, said: str) -> None:
    monkeypatch.setattr("thiefbench.leaderboard.isolation.isolated_attack.OUTCOME_SECONDS", 1.0)
    with pytest.raises(AttackError, match=f"took more than 1 seconds of its own {said}"):
        play(IsolatedAttack(f"{HOSTILE}:{spec}", HASTY))


def test_all_judgements_together_have_a_limit_too() -> None:
    """Else a judge that is slow only where it is verified would keep a verifier for days."""
    with pytest.raises(AttackError, match="took more than 1 seconds to judge 3 completions"):
        play(IsolatedAttack(f"{HOSTILE}:Judges(what='sleeps')", HASTY))
    with pytest.raises(AttackError, match="questions whose answers took more than 0 seconds in its judgements"):
        play(IsolatedAttack(f"{HOSTILE}:Judges(what='asks')", replace(SMALL, service_seconds=0.0)))
    play(IsolatedAttack(f"{HOSTILE}:Judges(what='asks')", SMALL))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("Measures", "needs a measure of harm of its own"),
        ("Rehearses", "wants to rehearse before round 1, which is not possible yet"),
        ("Greedy", "wants 1000 queries of the defense per slot and round"),
    ],
)
def test_what_is_not_possible_is_refused_in_one_sentence(spec: str, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        IsolatedAttack(f"{HUMS}:{spec}")


def test_a_query_budget_holds() -> None:
    with pytest.raises(AttackError, match=r"QueryBudgetError: the slot .* has used up its 2 queries"):
        play(IsolatedAttack(f"{HOSTILE}:AsksTooOften"))


def test_what_an_attack_says_of_itself_is_the_same_in_every_process() -> None:
    """Else it could be granted in one process what its entry does not state."""
    with pytest.raises(AttackError, match="another threat model or reference"):
        for _ in range(20):
            play(IsolatedAttack(f"{HOSTILE}:SaysOtherwise"))


def test_no_process_knows_its_number() -> None:
    """Processes start in a fixed order, so that a number would say which cell is judged."""
    rows, _ = play(IsolatedAttack(f"{HOSTILE}:Numbered"))
    assert {row.text for row in rows if row.payload} == {"process 0, thread 0"}


def test_a_threat_model_does_not_grow() -> None:
    with pytest.raises(AttackError, match="another threat model or reference once its payload is drawn"):
        play(IsolatedAttack(f"{HOSTILE}:Grows"))


def test_no_policy_is_asked_that_is_not_granted() -> None:
    assert IsolatedAttack("text").threat == ThreatModel(context="out-of-context"), "it is that of the class"
    with pytest.raises(AttackError, match="a question to a policy that it is not granted"):
        play(IsolatedAttack(f"{HOSTILE}:Does(what='forges')"))


def test_a_drawn_member_ends_with_its_attack() -> None:
    isolated = IsolatedAttack("text")
    member = isolated.draw_for(registry.make("task", "gsm_micro"), random.Random(0))
    isolated.close()
    with pytest.raises(AttackError, match="was closed"):
        member._judge.request("outcome", {})


@pytest.mark.parametrize(
    ("spec", "defenses", "found"),
    [
        ("Tells", ("none", "reject_all"), False),
        ("Tells", ("none", "none"), False),
        ("Tells(by='clock')", ("none", "none"), True),
        ("Tells(by='clock')", ("none", "reject_all"), False),
    ],
)
def test_an_attack_that_is_told_the_same_does_the_same(spec: str, defenses: tuple[str, str], found: bool) -> None:
    """What it does after another answer says nothing."""
    heard: list[set[Said]] = []
    for defense in defenses:
        attack = IsolatedAttack(f"{HOSTILE}:{spec}")
        attack.said = set()
        heard.append(attack.said)
        swarm(attack, defense).round(1)
        attack.close()
    assert all(heard)
    assert contradictory(*heard) == found


@pytest.mark.parametrize("sent", [None, "x", [3 << 30], {"a": 1}])
def test_what_a_guest_calls_arrays_without_having_any_is_only_what_it_said(sent: object) -> None:
    """`bytes` of a large number would be as much of the verifier's memory."""
    guests = [AttackProcess.__new__(AttackProcess) for _ in range(2)]
    for guest, said in zip(guests, (sent, "another"), strict=True):
        guest.said = set()
        guest._note([b"heard"], {"ask": "reward", "arrays": said})
    assert contradictory(*(guest.said or () for guest in guests))
    assert not contradictory(guests[0].said or ())
