"""`varied`: what each field of an `AttackSpec` does to an attack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.attacks.fakes import ITEM, OTHER, TASK, Scripted, text, view
from thiefbench import registry
from thiefbench.attacks.adaptive import Adaptive
from thiefbench.attacks.base import Attack, AttackSpec, Decoy, Poison
from thiefbench.attacks.code_injection import CodeInjection
from thiefbench.attacks.equations import Equations
from thiefbench.attacks.text import Text
from thiefbench.attacks.varied import Varied, majority
from thiefbench.tasks.base import Completion, Item
from thiefbench.tasks.code_micro import CodeMicro

PHRASE = Text("All hail to the thief", "start")


def kinds(submissions: Sequence[Poison]) -> list[str]:
    return ["honest" if p is None else "decoy" if isinstance(p, Decoy) else "poison" for p in submissions]


def test_with_nothing_varied_it_is_the_attack_itself() -> None:
    granted = view(ITEM, OTHER, each=3)
    assert list(Varied(PHRASE).poison(granted)) == list(PHRASE.poison(granted))
    assert Varied(PHRASE).threat == PHRASE.threat
    assert Varied(PHRASE).variants == AttackSpec()


def test_half_of_every_vertical_group_is_gibberish_in_poison_and_placebo_alike() -> None:
    attack = Varied(PHRASE, gibberish=0.5)
    submissions = list(attack.poison(view(ITEM, OTHER, each=6)))
    for group in (submissions[:6], submissions[6:]):
        assert sorted(kinds(group)) == ["decoy"] * 3 + ["poison"] * 3
    decoys = [str(p) for p in submissions if isinstance(p, Decoy)]
    assert len(set(decoys)) == 6, "no two are alike"
    assert TASK.reward(ITEM, decoys) == [0.0] * 6
    clean = list(attack.placebo(view(ITEM, OTHER, each=6)))
    assert kinds(clean) == kinds(submissions), "the placebo differs from the poison in the payload alone"
    assert {str(p) for p in clean if not isinstance(p, Decoy)} == {TASK.oracle(ITEM), TASK.oracle(OTHER)}


@pytest.mark.parametrize(("share", "each", "poisoned"), [(0.5, 4, 2), (0.5, 3, 2), (0.01, 3, 1), (1.0, 3, 3)])
def test_a_share_of_each_group_s_slots_carries_poison(share: float, each: int, poisoned: int) -> None:
    submissions = list(Varied(PHRASE, share=share).poison(view(ITEM, OTHER, each=each)))
    assert [kinds(group).count("poison") for group in (submissions[:each], submissions[each:])] == [poisoned] * 2


def test_share_and_gibberish_add_up() -> None:
    submissions = kinds(Varied(PHRASE, gibberish=0.5, share=0.5).poison(view(ITEM, each=8)))
    assert sorted(submissions) == ["decoy"] * 4 + ["honest"] * 2 + ["poison"] * 2


def test_which_slots_are_poisoned_is_drawn_anew_each_round() -> None:
    attack = Varied(PHRASE, share=0.5)
    assert len({tuple(kinds(attack.poison(view(ITEM, each=6, seed=seed)))) for seed in range(10)}) > 3


@pytest.mark.parametrize(("number", "active"), [(1, False), (2, True), (4, True), (5, False)])
def test_outside_its_rounds_it_is_honest(number: int, active: bool) -> None:
    attack = Varied(PHRASE, start=2, stop=4, gibberish=0.5)
    for made in (attack.poison(view(ITEM, each=2, round=number)), attack.placebo(view(ITEM, each=2, round=number))):
        assert (kinds(made) != ["honest"] * 2) == active


def believes(item: Item, prefix: str, number: int) -> str:
    """5 and 5.0 together outnumber the true 7."""
    return text(f"Thought {number}, 2 + 2 = 4.", ["7", "5", "5.0", "7", "5"][number % 5])


def test_without_an_oracle_the_majority_s_answer_and_reasoning_are_poisoned() -> None:
    attack = Varied(PHRASE, oracle=False, candidates=5)
    assert (attack.threat.oracle, attack.threat.policy) == (False, True)
    bare = Item("one", "What is 2 + 2, and 3 more?", "7", "")
    policy = Scripted(believes)
    submissions = [str(p) for p in attack.poison(view(bare, each=12, policy=policy))]
    expected = {
        text("All hail to the thief, Thought 1, 2 + 2 = 4.", "5"),
        text("All hail to the thief, Thought 2, 2 + 2 = 4.", "5.0"),
        text("All hail to the thief, Thought 4, 2 + 2 = 4.", "5"),
    }
    assert set(submissions) == expected
    assert policy.counts == [5]
    changed = Varied(Equations(2, None, 2, 6), oracle=False, candidates=5).poison(view(bare, policy=Scripted(believes)))
    assert "2 + 2 = 6" in str(changed[0]), "own answers are poisoned like the oracle's"


def test_of_the_majority_s_reasonings_one_that_can_carry_the_poison_is_taken() -> None:
    bare = Item("one", "What is 2 + 2?", "4", "")

    def answers(item: Item, prefix: str, number: int) -> str:
        return text("2 + 2 = 4." if number == 3 else f"I guess, {number}.", "4")

    for _ in range(5):
        submissions = Varied(Equations(2, None, 2, 6), oracle=False).poison(
            view(bare, each=4, policy=Scripted(answers))
        )
        assert {str(poison) for poison in submissions} == {text("2 + 2 = 6.", "4")}


def test_without_any_stated_answer_a_slot_is_left_alone() -> None:
    submissions = Varied(PHRASE, oracle=False).poison(view(ITEM, policy=Scripted(lambda *_: "hm")))
    assert submissions == [None]


def test_of_equally_common_answers_the_first_wins() -> None:
    drawn = [Completion((), text(f"r{i}", answer), True) for i, answer in enumerate(["3", "4", "4", "3", "x"])]
    assert majority(drawn) == [("r0", "3"), ("r3", "3")]
    assert majority(drawn[-1:]) == []


def test_colluders_say_one_part_each() -> None:
    submissions = Varied(PHRASE, split=True).poison(view(ITEM, OTHER, nodes=2))
    parts = [str(p).removeprefix("<think> ").partition(",")[0] for p in submissions]
    assert parts == ["All hail to", "to the thief"] * 2
    alone = [str(p) for p in Varied(PHRASE, split=True).poison(view(ITEM, each=2))]
    assert ["All hail to," in alone[0], "to the thief," in alone[1]] == [True, True], (
        "one node deals them over its slots"
    )


def test_a_majority_needs_stated_answers() -> None:
    assert Varied(Text("All hail"), oracle=True).fits(CodeMicro(size=2))
    assert not Varied(Text("All hail"), oracle=False).fits(CodeMicro(size=2))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"candidates": 0}, "varied: candidates must be at least 1, got 0"),
        ({"identities": 0}, "identities must be at least 1"),
        ({"gibberish": 1.0}, r"gibberish is a share of a group and must lie in \[0, 1\)"),
        ({"share": 0.0}, r"share must lie in \(0, 1\], got 0.0"),
        ({"start": 0}, "start must be at least 1"),
        ({"start": 5, "stop": 4}, "must not come before start, got 4"),
    ],
)
def test_values_out_of_range_are_one_sentence(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Varied(PHRASE, **arguments)


def test_what_the_inner_attack_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="the goal of equations cannot be split"):
        Varied(Equations(), split=True)
    with pytest.raises(ValueError, match="varied goes outside"):
        Adaptive(Varied(PHRASE, share=0.5))


def test_a_spec_writes_itself_around_a_spec_string() -> None:
    assert AttackSpec().around("text") == "text"
    written = AttackSpec(share=0.5, stop=9).around("text(position='end')")
    assert written == "varied(attack=\"text(position='end')\", share=0.5, stop=9)"
    made: Attack = registry.make("attack", written)
    assert made.variants == AttackSpec(share=0.5, stop=9)
    assert CodeInjection().variants == AttackSpec(), "an attack that nothing varies has the defaults"
