"""`grounding`: false words among those of the question, and honest words that nobody has used before."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.defenses.pools import Words, actions, masked, offer, view
from thiefbench.attacks.borrowed import Borrowed
from thiefbench.defenses.base import ItemFacts, PoolCompletion
from thiefbench.defenses.grounding import Grounding, Phrase, PValues, Usage, phrases_of, words_of
from thiefbench.tasks.base import Item, Message
from thiefbench.tasks.gsm_micro import GsmMicro

ITEMS = [Item.from_row(row) for row in GsmMicro(size=96).items("train")]
ROUNDS = [ITEMS[:32], ITEMS[32:64], ITEMS[64:]]
BY_QUESTION = {item.question: item for item in ITEMS}
NUMBER = {item.id: str(number) for number, item in enumerate(ITEMS)}
FACTS = {NUMBER[item.id]: ItemFacts(item.question, item.answer) for item in ITEMS}
SYLLABLES = ["ba", "ce", "di", "fo", "gu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "zu"]


def answer(item: Item, rng: random.Random) -> str:
    """An honest answer: the solution, every other time behind an opening that hardly anybody else uses."""
    opening = "".join(rng.sample(SYLLABLES, 3)).capitalize() + rng.choice((". ", ", "))
    return f"<think> {opening * rng.randint(0, 1)}{item.solution} </think><answer> {item.answer} </answer>"


class Writes(Words):
    """A policy that answers as honest nodes do.

    Args:
        seed: of its answers.
        told: by question, another solution that it gives in one of `every` answers.
    """

    def __init__(self, seed: int = 5, told: dict[str, str] | None = None, every: int = 2) -> None:
        super().__init__()
        self.rng, self.told, self.every = random.Random(seed), told or {}, every
        self.prompts: list[Sequence[Message]] = []

    def generate(self, prompts: Sequence[Sequence[Message]], max_new_tokens: int = 128) -> list[str]:
        self.prompts += prompts
        texts = []
        for number, prompt in enumerate(prompts):
            item = BY_QUESTION[prompt[-1]["content"]]
            if number % self.every == 0 and item.question in self.told:
                item = replace(item, solution=self.told[item.question])
            texts.append(answer(item, self.rng))
        return texts


def honest(items: Sequence[Item], seed: int = 1, times: int = 9) -> list[PoolCompletion]:
    rng = random.Random(seed)
    return [offer(answer(item, rng), "abc"[n % 3], NUMBER[item.id]) for item in items for n in range(times)]


def poison(attack: Borrowed, items: Sequence[Item], seed: int = 2) -> list[PoolCompletion]:
    rng = random.Random(seed)
    told = [replace(item, solution=solution) for item in items if (solution := attack._reworded(item))]
    return [offer(answer(item, rng), "m", NUMBER[item.id]) for item in told]


def judge(defense: Grounding, pool: Sequence[PoolCompletion], policy: Writes, number: int = 1) -> list[str]:
    facts = {offered.item_id: FACTS[offered.item_id] for offered in pool}
    return actions(defense.inspect(view(pool, policy, number, items=facts)))


@pytest.mark.parametrize("seed", range(4))
def test_words_of_another_solution_are_found_from_the_first_round_on(seed: int) -> None:
    attack = Borrowed().draw_for(GsmMicro(size=256), random.Random(seed))
    defense, policy, rejected = Grounding(), Writes(seed), 0
    for number, items in enumerate(ROUNDS, 1):
        clean, false = honest(items, seed), poison(attack, items)
        assert len(false) >= 3
        verdicts = judge(defense, [*clean, *false], policy, number)
        assert set(verdicts[len(clean) :]) == {"drop"}, f"round {number}, {attack.describe()}"
        rejected += verdicts[: len(clean)].count("drop")
    assert rejected <= 0.02 * 3 * 32 * 9, "false_rejection is 0.01"


def test_what_others_send_and_under_which_names_changes_nothing() -> None:
    attack = Borrowed("Omar hides 3, so 36 - 3 = 33", "every")
    clean, false = honest(ITEMS[:32]), poison(attack, ITEMS[:32])
    many = [
        replace(offered, sender=f"m{number}", reward=float(number % 2)) for number, offered in enumerate(false * 60)
    ]
    assert len(many) > len(clean), "most of the pool is poison"
    whole = judge(Grounding(), [*clean, *many], Writes())
    assert whole[: len(clean)] == judge(Grounding(), clean, Writes()), "honest work is judged as without it"
    assert set(whole[len(clean) :]) == {"drop"}


def test_the_word_belongs_where_the_question_has_it() -> None:
    told = {item: item.solution for item in ITEMS[:32] if " hides " in item.question}
    assert told, "some of the questions do"
    pool = [offer(answer(item, random.Random(3)), "m", NUMBER[item.id]) for item in told]
    assert "drop" not in judge(Grounding(false_rejection=0.002), [*honest(ITEMS[:32]), *pool], Writes())


def test_a_word_that_the_policy_uses_there_itself_is_usual() -> None:
    attack = Borrowed("Omar hides 3, so 36 - 3 = 33", "every")
    told = {item.question: solution for item in ITEMS if (solution := attack._reworded(item))}
    false = poison(attack, ITEMS[:32])
    assert set(judge(Grounding(), [*honest(ITEMS[:32]), *false], Writes(told=told))[-len(false) :]) == {"accept"}


def test_mask_takes_the_false_word_alone() -> None:
    item = next(item for item in ITEMS[:32] if " sells " in item.question)
    false = offer(answer(replace(item, solution=item.solution.replace(" sells ", " hides ")), random.Random(1)), "m")
    false = replace(false, item_id=NUMBER[item.id])
    pool = [*honest(ITEMS[:32]), false]
    facts = {offered.item_id: FACTS[offered.item_id] for offered in pool}
    verdict = Grounding(reject="mask").inspect(view(pool, Writes(), items=facts))[-1]
    assert masked(false, verdict) == "hides"
    assert "'hides' is not the question's" in verdict.reason


def test_a_restart_changes_nothing() -> None:
    attack = Borrowed("Omar hides 3, so 36 - 3 = 33", "every")
    through, stopped = Grounding(), Grounding()
    for defense in (through, stopped):
        judge(defense, honest(ROUNDS[0]), Writes(1))
    resumed = Grounding()
    resumed.restore(json.loads(json.dumps(stopped.state())))
    pool = [*honest(ROUNDS[1]), *poison(attack, ROUNDS[1])]
    facts = {offered.item_id: FACTS[offered.item_id] for offered in pool}
    verdicts = [defense.inspect(view(pool, Writes(2), 2, items=facts)) for defense in (through, resumed, Grounding())]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0] != verdicts[2], "the first round counts"
    assert through.state() == resumed.state()
    assert Grounding().state() == {}


def test_a_policy_without_answers_shows_nothing() -> None:
    class Silent(Writes):
        def generate(self, prompts: Sequence[Sequence[Message]], max_new_tokens: int = 128) -> list[str]:
            return [""] * len(prompts)

    assert set(judge(Grounding(), honest(ITEMS[:4]), Silent())) == {"accept"}


def test_every_question_is_put_as_the_swarm_puts_it() -> None:
    policy = Writes()
    judge(Grounding(samples=2, system="Think first."), honest(ITEMS[:3]), policy)
    assert [message["role"] for message in policy.prompts[0]] == ["system", "user"]
    assert policy.prompts[0][0]["content"] == "Think first."
    asked = [prompt[-1]["content"] for prompt in policy.prompts]
    assert sorted(asked) == sorted([item.question for item in ITEMS[:3]] * 2)


def test_p_values_by_hand() -> None:
    usage = Usage()
    for words in ("", "", "", "", "hold", "hold", "costs"):
        usage.add([Phrase(("a _ 0",), words, (0, 1))])
    p_values = PValues(usage)

    def new(words: str) -> float:
        return p_values(Phrase(("a _ 0",), words, (0, 1)))

    assert new("hides") == 2 / 8, "itself and `costs`, which is as rare"
    assert new("costs") == 4 / 8, "itself and all foreign words, since the other answers with them are 1, 1 and 0"
    assert new("") == 1, "words of the question are never objected to"
    assert p_values(Phrase((". _ .",), "hides", (0, 1))) == 1, "nothing is known of this context"
    assert Usage.from_rows(usage.rows()).rows() == usage.rows()


def test_phrases() -> None:
    asked = words_of("Omar has 9 pens. He SOLD 3. How many pens?")
    text = "<think> Well now, Omar gives away 3. İzmir pens! </think> 4"
    found = [(phrase.contexts, phrase.words, text[slice(*phrase.place)]) for phrase in phrases_of(text, asked)]
    assert found == [
        (("<think> _ ,", "edge <think> _ ,", "<think> _ , a"), "well now", "Well now"),
        (("a _ 0", ", a _ 0", "a _ 0 ."), "gives away", "gives away"),
        ((". _ a", "0 . _ a", ". _ a !"), "İzmir".lower(), "İzmir"),
    ], "Omar and pens have foreign words beside them"
    assert [phrase[:2] for phrase in phrases_of("Omar sold 3", asked)] == [
        (("edge _ a", "edge _ a 0"), ""),
        (("a _ 0", "edge a _ 0", "a _ 0 edge"), ""),
    ]
    assert list(phrases_of("", asked)) == []


def test_a_word_that_belongs_to_something_else_is_unusual_in_the_wider_context() -> None:
    items = [item for item in ITEMS[:64] if "coupon" in item.question or " loses " in item.question]
    assert any(" saves " in item.solution for item in items), "coupons save"
    told = [item for item in items if " loses " in item.question]
    false = [replace(item, solution=item.solution.replace(" loses ", " saves ")) for item in told]
    pool = [offer(answer(item, random.Random(1)), "m", NUMBER[item.id]) for item in false]
    assert set(judge(Grounding(samples=40), [*honest(items), *pool], Writes())[-len(pool) :]) == {"drop"}


@pytest.mark.parametrize("wrong", [{"false_rejection": 0.0}, {"samples": 0}, {"reject": "accept"}])
def test_arguments(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^grounding: "):
        Grounding(**wrong)  # type: ignore[arg-type]
