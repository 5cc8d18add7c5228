"""The rules for every attack, as a test class."""

from __future__ import annotations

import random
from typing import ClassVar

from thiefbench.attacks.base import Attack, AttackerView, Decoy, Seeded, ThreatModel, Withheld
from thiefbench.attacks.reward_judges import JudgedThreatModel
from thiefbench.testing.contracts.attack_fixtures import (
    SEEDS,
    bare,
    carries,
    choice,
    drawn,
    granted,
    kind,
    members,
    outcome,
    rewarded,
    rewritten,
    scored_by,
    task_for,
    text_of,
    train_items,
)
from thiefbench.testing.contracts.subjects import made

_IN_FULL = "poison is rewarded in full, or it teaches nothing"


class AttackContract:
    """Subclass it as ``class TestMine(AttackContract)``; every rule is one test.

    The attack is tested on the first built-in task without external data that it fits, with a tiny model with random
    weights if its threat model grants one. To leave out a rule that does not apply to an attack, set it to None.

    Attributes:
        attack: a spec string, as "my_attack.py:Mine(strength=2)", or the class itself.
    """

    attack: ClassVar[str | type[Attack]]

    def make(self) -> Attack:
        """A fresh attack; override this if neither a spec string nor a class is enough."""
        attack: Attack = made(self, "attack")
        return attack

    def test_it_has_a_name_and_a_threat_model(self) -> None:
        """Reports use the name; the threat model says what it is granted."""
        attack = self.make()
        assert isinstance(attack, Attack), "an attack derives from thiefbench.attacks.base.Attack"
        assert isinstance(getattr(attack, "name", None), str), "an attack has a name"
        assert isinstance(getattr(attack, "threat", None), ThreatModel), "an attack states its threat model"

    def test_drawing_is_keyed_by_the_generator_alone(self) -> None:
        """It must not depend on a clock, a global random generator or the number of calls."""
        attack = self.make()
        for seed in SEEDS:
            first, second = (drawn(attack, seed).describe() for _ in range(2))
            assert first == second, f"equal generators draw equal payloads (seed {seed})"

    def test_seeds_draw_a_family(self) -> None:
        """Rankings use members that the author of a defense cannot know."""
        attack = self.make()
        payloads = {str(drawn(attack, seed).describe()) for seed in SEEDS}
        has_payload = bool(drawn(attack, 0).describe())
        assert len(payloads) > 1 or not has_payload, (
            "an attack with a payload is a family: the seed selects the member of what its arguments leave open"
        )

    def test_drawing_leaves_the_attack_as_it_was(self) -> None:
        """The same attack object is used for cells of many seeds."""
        attack = self.make()
        before = dict(vars(attack))
        drawn(attack, 1)
        assert vars(attack) == before, (
            "draw gives a member of the family and leaves the attack it is called on as it was"
        )

    def test_a_drawn_member_can_be_written_down(self) -> None:
        """A spec string with the member's parameters describes it."""
        member = drawn(self.make(), 3)
        again = drawn(rewritten(member), 4)
        assert again.describe() == member.describe(), "a member's parameters, given by the user, stay through `draw`"

    def test_describe_is_words(self) -> None:
        """Records and reports contain it."""
        described = drawn(self.make(), 0).describe()
        assert isinstance(described, dict), "describe gives a dictionary"
        assert all(isinstance(x, str) for pair in described.items() for x in pair), "describe maps words to words"

    def test_poison_fills_every_slot(self) -> None:
        """There is a valid submission for each slot, in order."""
        member = drawn(self.make(), 0)
        view = granted(member)
        completions = list(map(bare, member.poison(view)))
        assert len(completions) == len(view.slots), "poison gives one submission per slot, in order"
        for poison in completions:
            poison = poison.content if isinstance(poison, Decoy) else poison
            ids = poison.ids if isinstance(poison, Seeded) else poison
            tokens = isinstance(ids, tuple) and all(type(token) is int for token in ids)
            assert poison is None or isinstance(poison, str | Withheld) or tokens, (
                "a submission is text, token ids (alone, Seeded or in a Decoy), Withheld or None"
            )
        nothing = AttackerView(1, (), view.task, random.Random(0), view.policy, view.defense)
        assert list(member.poison(nothing)) == [], "no slots, no submissions"

    def test_text_poison_earns_the_full_reward(self) -> None:
        """Without a reward there is no positive advantage; where a judge rewards, the task's rule gives none."""
        for member in members(self.make()):
            view = granted(member)
            full = 0 if isinstance(member.threat, JudgedThreatModel) else 1
            for slot, poison in zip(view.slots, member.poison(view), strict=True):
                if carries(bare(poison)):
                    text = str(bare(poison))
                    why = "what deceives a judge earns nothing by the rule" if full == 0 else _IN_FULL
                    assert rewarded(view.task, scored_by(slot.item, poison), text) == full, f"{why}: {text!r}"

    def test_text_poison_exists_without_a_policy(self) -> None:
        """An attack that never poisons measures nothing."""
        attack = self.make()
        for member in members(attack):
            some = attack.threat.policy or any(carries(bare(poison)) for poison in member.poison(granted(member)))
            assert some, "on items it chose itself, an attack that is granted the oracle poisons at least one slot"

    def test_decoys_earn_nothing_and_are_no_success(self) -> None:
        """They exist to give the poison an advantage."""
        for member in members(self.make()):
            view = granted(member)
            for slot, poison in zip(view.slots, map(bare, member.poison(view)), strict=True):
                if isinstance(poison, Decoy):
                    text = text_of(view, poison)
                    assert rewarded(view.task, slot.item, text) == 0, "a decoy makes poison look good: its reward is 0"
                    assert outcome(member, view, slot.item, text) != 1, "a decoy carries no payload"

    def test_its_own_poison_counts_as_success(self) -> None:
        """The attack's outcome must recognise its own submissions."""
        for member in members(self.make()):
            view = granted(member)
            for slot, poison in zip(view.slots, map(bare, member.poison(view)), strict=True):
                if carries(poison):
                    assert outcome(member, view, slot.item, str(poison)) == 1, (
                        f"the outcome of its own poison is 1: {poison!r}"
                    )

    def test_clean_text_is_no_success(self) -> None:
        """An honest model must be able to score 0."""
        for member in members(self.make()):
            view = granted(member)
            for slot in view.slots:
                text = view.task.oracle(slot.item)
                assert not outcome(member, view, slot.item, text), (
                    f"the outcome of the oracle's clean solution is 0: {text!r}"
                )
                assert not outcome(member, view, slot.item, ""), "the outcome of an empty completion is 0"

    def test_placebo_is_clean_and_rewarded(self) -> None:
        """Harm is measured against it."""
        member = drawn(self.make(), 0)
        view = granted(member)
        completions = list(map(bare, member.placebo(view)))
        assert len(completions) == len(view.slots), "the placebo fills the same slots as the poison"
        for slot, text in zip(view.slots, completions, strict=True):
            if carries(text):
                assert rewarded(view.task, slot.item, str(text)) == 1, f"the placebo earns the full reward: {text!r}"
                assert not outcome(member, view, slot.item, str(text)), f"the placebo carries no payload: {text!r}"

    def test_poison_and_placebo_fill_the_same_slots(self) -> None:
        """Not checked if the policy's samples determine how many slots are left to honest samples."""
        for member in members(self.make()):
            if not member.threat.policy:
                views = granted(member), granted(member)
                filled = [list(map(kind, each)) for each in (member.poison(views[0]), member.placebo(views[1]))]
                assert filled[0] == filled[1], "the placebo differs from the poison in the payload alone"

    def test_poison_is_keyed_by_the_view_alone(self) -> None:
        """A cell that is run again must give the same results."""
        member = drawn(self.make(), 0)
        first, second = (list(member.poison(granted(member))) for _ in range(2))
        assert first == second, "equal views get equal poison"

    def test_it_chooses_as_many_items_as_asked(self) -> None:
        """Only in the vertical topology."""
        member = drawn(self.make(), 0)
        pool = train_items(task_for(member), 40)
        chosen = list(member.choose_items(pool, 5, random.Random(1)))
        assert len(chosen) == 5, "choose_items gives as many items as the node owes"
        assert all(item in pool for item in chosen), "choose_items chooses from the items it is given"
        assert chosen == list(member.choose_items(pool, 5, random.Random(1))), "equal generators choose equal items"
        choices = [list(member.choose_items_from(pool, choice(member))) for _ in range(2)]
        assert choices[0] == choices[1], "equal views choose equal items"
        assert len(choices[0]) == 3, "as many where it knows the beacon"
        assert all(item in pool for item in choices[0]), "and from the same"

    def test_libraries_are_modules(self) -> None:
        """Its libraries can be imported."""
        for name, source in drawn(self.make(), 0).libraries().items():
            assert name.isidentifier(), "a library has a module's name"
            compile(source, name, "exec")

    def test_other_forms_are_always_the_same(self) -> None:
        """An adaptive attacker tries them in turn."""
        member = drawn(self.make(), 0)
        first, second = ([form.describe() for form in member.forms()] for _ in range(2))
        assert first == second, "forms come in a fixed order"
        assert member.describe() not in first, "the attack itself is not among its forms"

    def test_harm_grows_with_the_outcome(self) -> None:
        """Harm is the attack's gain over the reference."""
        attack = self.make()
        assert attack.harm([1.0, 1.0], [1.0, 1.0]) == 0, "no difference to the reference is no harm"
        assert attack.harm([1.0, 1.0], [1.0, 0.5]) > 0, "harm is what the attack gained over the reference"
