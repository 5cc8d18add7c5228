"""`similarity`: repeated payloads of every family, and honest text that only looks like one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.defenses.pools import actions, masked, offer, view
from thiefbench.attacks.text import Position, Text
from thiefbench.defenses.base import ItemFacts, PoolCompletion
from thiefbench.defenses.similarity import Similarity
from thiefbench.tasks.base import Item
from thiefbench.tasks.gsm_micro import GsmMicro

ITEMS = [Item.from_row(row) for row in GsmMicro(size=64).items("train")][:24]
WORDS = "so then now here first next after that we get have find see note count add take away all both left"
QUESTIONS = {str(number): ItemFacts(item.question, item.answer) for number, item in enumerate(ITEMS)}


def said(item: Item, rng: random.Random) -> str:
    """An honest answer: the solution with a few other words."""
    return f"<think> {' '.join(rng.sample(WORDS.split(), 4))}. {item.solution} </think><answer> {item.answer} </answer>"


def honest(seed: int = 0, senders: str = "abc") -> list[PoolCompletion]:
    rng = random.Random(seed)
    return [offer(said(item, rng), sender, str(i)) for sender in senders for i, item in enumerate(ITEMS)]


def attack(text: Text, sender: str = "m", items: int = 24) -> list[PoolCompletion]:
    rng = random.Random(9)
    pool = []
    for i, item in enumerate(ITEMS[:items]):
        dirty = replace(item, solution=text._inject(item.solution))
        pool.append(offer(said(dirty, rng), sender, str(i)))
    return pool


def judge(pool: list[PoolCompletion], **arguments: object) -> list[str]:
    return actions(Similarity(**arguments).inspect(view(pool, items=QUESTIONS)))  # type: ignore[arg-type]


@pytest.mark.parametrize("position", ["start", "middle", "end", "every"])
@pytest.mark.parametrize("seed", range(3))
def test_a_drawn_phrase_is_found_wherever_it_stands(position: Position, seed: int) -> None:
    poison = attack(Text(position=position).draw(random.Random(seed)))
    verdicts = judge([*honest(), *poison])
    assert set(verdicts[:72]) == {"accept"}, "honest senders are left alone"
    assert set(verdicts[72:]) == {"drop"}


def test_an_honest_pool_is_left_alone() -> None:
    for seed in range(5):
        assert set(judge(honest(seed, "abcd"))) == {"accept"}, "template phrases that all use do not count"


def test_one_attacker_with_many_names() -> None:
    poison = attack(Text("Wren autumn moon", "start"))
    named = [replace(offered, sender=f"m{i % 6}") for i, offered in enumerate(poison)]
    assert set(judge([*honest(), *named])[72:]) == {"drop"}


def test_words_of_the_question_do_not_count() -> None:
    asked = {item: replace(known, question=f"{known.question} Wren autumn moon?") for item, known in QUESTIONS.items()}
    pool = [*honest(), *attack(Text("Wren autumn moon", "start"))]
    whole = view(pool, items=asked)
    left = [verdict.reason for verdict in Similarity(words=3).inspect(whole)]
    assert not any("wren autumn moon" in reason for reason in left)


def test_mask_takes_the_phrase_and_leaves_the_solution() -> None:
    poison = attack(Text("Wren autumn moon proud", "middle"))
    verdicts = Similarity(reject="mask").inspect(view([*honest(), *poison], items=QUESTIONS))
    for offered, verdict in zip(poison, verdicts[72:], strict=True):
        hidden = masked(offered, verdict)
        assert "Wren autumn moon proud." in hidden
        assert len(hidden.split()) < len(offered.text.split()) / 2, "most of the solution is learned from"
    assert all(verdict.token_weights is None for verdict in verdicts[:72])


def test_too_few_items_say_nothing() -> None:
    assert set(judge([*honest(), *attack(Text("Wren autumn moon", "start"), items=2)])) == {"accept"}


@pytest.mark.parametrize("wrong", [{"words": 0}, {"share": 0.0}, {"rare": 0.5}, {"reject": "no"}])
def test_wrong_arguments(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="similarity: "):
        Similarity(**wrong)  # type: ignore[arg-type]
