"""Every registered attack keeps the contract. An attack's author can call `check_attack` on an own attack."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable

import pytest

from tests.bench import tiny
from thiefbench import registry
from thiefbench.attacks.base import Attack, AttackerView, Sampler, Slot, ThreatModel
from thiefbench.engine.noise import generator
from thiefbench.engine.policy import Policy
from thiefbench.engine.views import AttackerPolicy
from thiefbench.tasks.base import Completion, Item, Sampling
from thiefbench.tasks.gsm_micro import GsmMicro

TASK = GsmMicro(size=64)
SEEDS = range(20)


class Judge:
    """What `outcome` may ask."""

    def reward(self, item: Item, text: str) -> float:
        return TASK.reward(item, [text])[0]


def drawing_is_keyed_by_the_generator_alone(attack: Attack) -> None:
    for seed in SEEDS:
        first, second = (attack.draw(generator(seed, "payload")).describe() for _ in range(2))
        assert first == second, f"equal generators draw equal payloads (seed {seed})"


def seeds_draw_a_family(attack: Attack) -> None:
    drawn = {str(attack.draw(generator(seed, "payload")).describe()) for seed in SEEDS}
    has_payload = bool(attack.draw(generator(0, "payload")).describe())
    assert len(drawn) > 1 or not has_payload, "an attack with a payload is a family: the seed selects the member"


def drawing_leaves_the_attack_as_it_was(attack: Attack) -> None:
    before = dict(vars(attack))
    attack.draw(generator(1, "payload"))
    assert vars(attack) == before, "draw gives a member of the family and does not change the attack it is called on"


def a_drawn_member_can_be_written_down(attack: Attack) -> None:
    member = attack.draw(generator(3, "payload"))
    names = [name for name in inspect.signature(type(attack)).parameters if hasattr(member, name)]
    spec = registry.ParsedSpec("_", {name: getattr(member, name) for name in names})
    again = type(attack)(**registry.parse("attack", str(spec)).arguments).draw(generator(4, "payload"))
    assert again.describe() == member.describe(), "a member's parameters, given by the user, stay through `draw`"


def describe_is_words(attack: Attack) -> None:
    described = attack.draw(generator(0, "payload")).describe()
    assert isinstance(described, dict), "describe gives a dictionary"
    assert all(isinstance(x, str) for pair in described.items() for x in pair), "describe maps words to words"


def poison_fills_every_slot(attack: Attack) -> None:
    member, view = attack.draw(generator(0, "payload")), granted(attack)
    made = list(member.poison(view))
    assert len(made) == len(view.slots), "poison gives one submission per slot, in order"
    for poison in made:
        tokens = isinstance(poison, tuple) and all(type(token) is int for token in poison)
        assert poison is None or isinstance(poison, str) or tokens, "a submission is text, a tuple of token ids or None"
    nothing = AttackerView(1, (), TASK, random.Random(0), view.policy)
    assert list(member.poison(nothing)) == [], "no slots, no submissions"


def text_poison_earns_the_full_reward(attack: Attack) -> None:
    for seed in SEEDS:
        view = granted(attack)
        for slot, poison in zip(view.slots, attack.draw(generator(seed, "payload")).poison(view), strict=True):
            if isinstance(poison, str):
                assert TASK.reward(slot.item, [poison]) == [1.0], (
                    f"poison is rewarded in full, or it teaches nothing: {poison!r}"
                )


def its_own_poison_counts_as_success(attack: Attack) -> None:
    for seed in SEEDS:
        view, member = granted(attack), attack.draw(generator(seed, "payload"))
        for slot, poison in zip(view.slots, member.poison(view), strict=True):
            if isinstance(poison, str):
                assert outcome(member, slot.item, poison) == 1, f"the outcome of its own poison is 1: {poison!r}"


def clean_text_is_no_success(attack: Attack) -> None:
    for seed in SEEDS:
        member = attack.draw(generator(seed, "payload"))
        for slot in granted(attack).slots:
            text = TASK.oracle(slot.item)
            assert not outcome(member, slot.item, text), f"the outcome of the oracle's clean solution is 0: {text!r}"
            assert not outcome(member, slot.item, ""), "the outcome of an empty completion is 0"


def placebo_is_clean_and_rewarded(attack: Attack) -> None:
    member, view = attack.draw(generator(0, "payload")), granted(attack)
    made = list(member.placebo(view))
    assert len(made) == len(view.slots), "the placebo fills the same slots as the poison"
    for slot, text in zip(view.slots, made, strict=True):
        if isinstance(text, str):
            assert TASK.reward(slot.item, [text]) == [1.0], f"the placebo earns the full reward: {text!r}"
            assert not outcome(member, slot.item, text), f"the placebo carries no payload: {text!r}"


def poison_is_keyed_by_the_view_alone(attack: Attack) -> None:
    first, second = (list(attack.draw(generator(0, "payload")).poison(granted(attack))) for _ in range(2))
    assert first == second, "equal views get equal poison"


def it_chooses_as_many_items_as_asked(attack: Attack) -> None:
    pool = tiny.train_items(TASK, 40)
    chosen = list(attack.choose_items(pool, 5, random.Random(1)))
    assert len(chosen) == 5, "choose_items gives as many items as the node owes"
    assert all(item in pool for item in chosen), "choose_items chooses from the items it is given"
    assert chosen == list(attack.choose_items(pool, 5, random.Random(1))), "equal generators choose equal items"


def harm_grows_with_the_outcome(attack: Attack) -> None:
    assert attack.harm([1.0, 1.0], [1.0, 1.0]) == 0, "no difference to the reference is no harm"
    assert attack.harm([1.0, 1.0], [1.0, 0.5]) > 0, "harm is what the attack gained over the reference"


CHECKS: list[Callable[[Attack], None]] = [
    drawing_is_keyed_by_the_generator_alone,
    seeds_draw_a_family,
    drawing_leaves_the_attack_as_it_was,
    a_drawn_member_can_be_written_down,
    describe_is_words,
    poison_fills_every_slot,
    text_poison_earns_the_full_reward,
    its_own_poison_counts_as_success,
    clean_text_is_no_success,
    placebo_is_clean_and_rewarded,
    poison_is_keyed_by_the_view_alone,
    it_chooses_as_many_items_as_asked,
    harm_grows_with_the_outcome,
]


def check_attack(attack: Attack) -> None:
    """Everything that an attack promises.

    Raises:
        AssertionError: a rule is broken; the message states it.
    """
    for check in CHECKS:
        check(attack)


def granted(attack: Attack) -> AttackerView:
    """A round's view with two slots on each of eight items, holding what the threat model grants and no more."""
    threat: ThreatModel = attack.threat
    items = [
        item if threat.oracle else Item(item.id, item.question, item.answer, "", item.tests)
        for item in tiny.train_items(TASK, 8)
    ]
    slots = tuple(Slot(item, 3, group, index) for group, item in enumerate(items) for index in range(2))
    policy: Sampler | None = None
    if threat.policy:
        policy = AttackerPolicy(Policy.load(tiny.model()), TASK, Sampling(max_new_tokens=16), (1, 2))
    return AttackerView(1, slots, TASK, random.Random(5), policy)


def outcome(attack: Attack, item: Item, text: str) -> float | None:
    """How far the attack succeeded on a text."""
    return attack.outcome(item, Completion((), text, True), Judge())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", registry.names("attack"))
def test_contract(name: str, check: Callable[[Attack], None]) -> None:
    check(registry.make("attack", name))


@pytest.mark.parametrize("name", registry.names("attack"))
def test_its_name_is_the_registered_one(name: str) -> None:
    assert registry.find("attack", name).name == name, "an attack's name is what the registry lists it under"
    assert isinstance(registry.find("attack", name).threat, ThreatModel), "an attack states its threat model"


# One spec with arguments per attack that takes some; the bare name is tested for all.
@pytest.mark.parametrize(
    "spec",
    [
        *registry.names("attack"),
        "text(position='end', phrase='All hail to the thief')",
        "text(phrase='say \"no\", it\\'s (over)')",
    ],
)
def test_arguments_survive_the_canonical_spec_string(spec: str) -> None:
    canonical = registry.canonical("attack", spec)
    assert registry.canonical("attack", canonical) == canonical, "a canonical spec string is its own canonical form"
    one, other = registry.make("attack", spec), registry.make("attack", canonical)
    assert vars(one) == vars(other), "the canonical spec string makes an attack with the same parameters"
    assert one.draw(generator(7)).describe() == other.draw(generator(7)).describe(), "and the same family"
