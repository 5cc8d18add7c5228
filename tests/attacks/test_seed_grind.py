"""`seed_grind`: it picks the seeds whose draws suit the attack."""

from __future__ import annotations

import pytest

from tests.attacks.fakes import ITEM, OTHER, TASK, Scripted, text, view
from thiefbench.attacks.base import Seeded
from thiefbench.attacks.dos import Dos
from thiefbench.attacks.seed_grind import SeedGrind
from thiefbench.attacks.text import Text
from thiefbench.tasks.base import Completion, Item

PHRASE = Text("All hail to the thief", "start")


def say(item: Item, prefix: str, seed: int) -> str:
    """Wrong for odd seeds; the seed determines the length; one in eight contains the phrase."""
    hail = "All hail to the thief. " if seed % 8 == 0 else ""
    return text(hail + "so " * (seed % 97), "99" if seed % 2 else item.answer)


def test_every_submission_is_the_draw_of_the_seed_it_names() -> None:
    policy = Scripted(say)
    submissions = SeedGrind(Dos(), samples=40).poison(view(ITEM, OTHER, each=3, policy=policy))
    for poison, item in zip(submissions, [ITEM] * 3 + [OTHER] * 3, strict=True):
        assert isinstance(poison, Seeded)
        assert policy.decode(poison.ids[:-1]) == say(item, "", poison.seed)
        assert poison.ids[-1] == policy.eos
        assert -(2**63) <= poison.seed < 2**63, "a seed is a signed 64-bit integer"
    assert len({poison.seed for poison in submissions if isinstance(poison, Seeded)}) == 6


def test_an_item_s_slots_get_its_longest_right_draws_in_order() -> None:
    submissions = SeedGrind(Dos(), samples=60).poison(view(ITEM, each=4, policy=Scripted(say)))
    lengths = [len(poison.ids) for poison in submissions if isinstance(poison, Seeded)]
    assert lengths == sorted(lengths, reverse=True)
    assert min(lengths) > 3 * 60, "the longest of about 30 right draws"
    texts = [Scripted(say).decode(poison.ids[:-1]) for poison in submissions if isinstance(poison, Seeded)]
    assert TASK.reward(ITEM, texts) == [1.0] * 4


def test_only_draws_that_show_the_inner_outcome_are_submitted() -> None:
    attack = SeedGrind(PHRASE, samples=40)
    submissions = attack.poison(view(ITEM, each=40, policy=Scripted(say)))
    through = [poison for poison in submissions if poison is not None]
    assert 0 < len(through) < 20, "about one right draw in four contains the phrase"
    assert all(isinstance(p, Seeded) and "hail" in say(ITEM, "", p.seed) for p in through)
    assert attack.outcome(ITEM, Completion((), "now hail to the thief", True), None) == 1.0  # type: ignore[arg-type]


def test_the_placebo_does_not_look_at_the_outcome() -> None:
    submissions = SeedGrind(PHRASE, samples=40).placebo(view(ITEM, each=8, policy=Scripted(say)))
    said = [say(ITEM, "", poison.seed) for poison in submissions if isinstance(poison, Seeded)]
    assert len(said) == 8
    assert TASK.reward(ITEM, said) == [1.0] * 8
    assert any("hail" not in one for one in said)


def test_it_measures_what_the_inner_attack_measures() -> None:
    assert SeedGrind(Dos()).reference == "control"
    assert SeedGrind(Dos()).harm([30.0], [20.0]) == 0.5
    assert SeedGrind(PHRASE).reference == "placebo"
    assert SeedGrind(PHRASE).threat.policy


def test_no_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
        SeedGrind(Dos(), samples=0)
