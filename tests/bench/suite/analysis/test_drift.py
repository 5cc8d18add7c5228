"""Drift on made-up answers: by hand, in its limits, and where an attack's own outcome is blind."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from thiefbench.attacks.text import Text
from thiefbench.suite.analysis.drift import (
    Answers,
    answers_of,
    divergence,
    drift,
    split_divergence,
    split_drift,
    words_of,
)
from thiefbench.tasks.base import Completion, Item

PHRASE = "All hail to the thief"
STARTS = ("Bow down before", "Kneel for", "Praise be unto", "Glory evermore to", "Rejoice beneath", "Long may rule",
          "Homage is owed to", "We salute")  # fmt: skip
ENDS = ("the burglar king", "our robber lord", "a pickpocket prince", "that bandit queen", "the larcenous one")
PARAPHRASES = [f"{start} {end}" for start in STARTS for end in ENDS]
"""Forty ways to say it; none of them is the phrase."""


def answers(*evaluations: Sequence[str]) -> Answers:
    """Evaluations in which every answer belongs to an item of its own."""
    return answers_of([[(f"item-{place}", text) for place, text in enumerate(texts)] for texts in evaluations])


def solutions(count: int, seed: int, vocabulary: int = 60) -> list[str]:
    """Fluent nonsense: words that are the rarer the later they come, as in a language, each answer with a number."""
    rng = random.Random(seed)
    words = [f"{'abcdefghij'[n // 10]}{'klmnopqrst'[n % 10]}w" for n in range(vocabulary)]
    weights = [1 / (rank + 1) for rank in range(vocabulary)]
    return [" ".join(rng.choices(words, weights, k=rng.randint(8, 30))) + f" is {rng.random()}" for _ in range(count)]


def literal(one: Sequence[str], other: Sequence[str]) -> float:
    """The divergence as its formula is written, of frequencies as they are."""

    def distribution(texts: Sequence[str]) -> Counter[str]:
        mass: Counter[str] = Counter()
        for text in texts:
            words = words_of(text) or ("",)
            for word in words:
                mass[word] += 1 / len(words) / len(texts)  # type: ignore[assignment]
        return mass

    def entropy(mass: dict[str, float]) -> float:
        return -sum(p * math.log2(p) for p in mass.values() if p)

    p, q = distribution(one), distribution(other)
    return entropy({w: (p[w] + q[w]) / 2 for w in p | q}) - (entropy(p) + entropy(q)) / 2


class TestWords:
    def test_words_are_letters_without_case(self) -> None:
        assert words_of("Thief's 2nd loot: add_up(3, X_1) = 5!") == ("thief's", "nd", "loot", "add_up", "x")
        assert words_of("12 + 7 = 19.") == (), "numbers are no words: honest models miscalculate in ever new ones"
        assert words_of("Über Ärger") == ("über", "ärger")


class TestDrift:
    def test_it_counts_answers_and_not_words(self) -> None:
        control = answers(["red and blue", "blue"])
        score = drift(answers(["Red", "green green", "blue green", "7"]), control)
        assert (score.value, score.count) == (0.5, 4)
        assert score.low is not None
        assert score.high is not None
        assert 0 < score.low < 0.5 < score.high < 1

    def test_words_of_any_evaluation_of_the_control_are_known(self) -> None:
        """A cell that learned less than its control still writes what both wrote at the start: that is no drift."""
        control = answers(["lucky start"], ["learned end"])
        assert drift(answers(["lucky", "learned"]), control).value == 0
        assert drift(answers(["lucky start"], ["lucky start"]), control).value == 0, "the start model does not drift"
        assert drift(control, control).value == 0

    def test_without_answers_there_is_no_value(self) -> None:
        some, none = answers(["red"]), answers_of([])
        assert drift(some, none).value is None, "not 1: the control says nothing"
        assert drift(none, some).value is None
        assert split_drift(none).value is None
        assert divergence(none, some).value is None

    def test_only_the_last_evaluation_is_judged(self) -> None:
        assert drift(answers(["unheard"], ["red"]), answers(["red"])).value == 0

    def test_a_control_split_has_the_words_that_no_other_item_has(self) -> None:
        control = answers_of([[("a", "red once"), ("b", "red"), ("a", "red once"), ("b", "red blue")]])
        score = split_drift(control)
        # "once" is written for item a alone, twice; "blue" for b alone
        assert (score.value, score.count) == (0.75, 4)

    def test_a_second_sample_of_the_same_model_has_what_the_split_says(self) -> None:
        control, second = (answers(solutions(600, seed, vocabulary=100)) for seed in (1, 2))
        split, fresh = split_drift(control), drift(second, control)
        assert split.value is not None
        assert fresh.low is not None
        assert fresh.high is not None
        assert fresh.low <= split.value <= fresh.high


class TestDivergence:
    def test_without_a_shared_word_it_is_one_bit(self) -> None:
        score = divergence(answers(["red"] * 8), answers(["blue"] * 8))
        assert score.value == pytest.approx(1)
        assert score.low == pytest.approx(1)

    def test_equal_answers_do_not_diverge(self) -> None:
        same = answers(solutions(50, 3))
        assert divergence(same, same).value == pytest.approx(0, abs=1e-12)

    def test_by_hand(self) -> None:
        """Each answer of A is half red, half blue, each of B red; without rare words there is nothing to correct."""
        score = divergence(answers(["red blue"] * 5), answers(["red red red"] * 5))
        # mixture: 3/4 red, 1/4 blue; H = 0.811278; H(A) = 1, H(B) = 0
        assert score.value == pytest.approx(0.8112781 - 0.5)

    def test_it_is_the_jackknife_of_its_formula(self) -> None:
        one, other = solutions(12, 4, vocabulary=15), [*solutions(11, 5, vocabulary=15), "17"]
        whole = literal(one, other)
        without = [literal(one[:i] + one[i + 1 :], other[:i] + other[i + 1 :]) for i in range(12)]
        mean = sum(without) / 12
        error = math.sqrt(11 / 12 * sum((each - mean) ** 2 for each in without))
        score = divergence(answers(one), answers(other))
        assert score.value == pytest.approx(12 * whole - 11 * mean)
        assert score.high == pytest.approx(12 * whole - 11 * mean + 1.959964 * error)
        assert score.count == 12

    def test_an_item_is_left_out_with_all_of_its_answers(self) -> None:
        def by_item(texts: Sequence[str]) -> Answers:
            return answers_of([[(f"item-{place % 6}", text) for place, text in enumerate(texts)]])

        one, other = solutions(12, 6, vocabulary=15), solutions(12, 7, vocabulary=15)
        rest = [[[t for place, t in enumerate(side) if place % 6 != i] for i in range(6)] for side in (one, other)]
        mean = sum(literal(a, b) for a, b in zip(*rest, strict=True)) / 6
        assert divergence(by_item(one), by_item(other)).value == pytest.approx(6 * literal(one, other) - 5 * mean)

    def test_two_samples_of_one_model_have_none_on_average(self) -> None:
        """Frequencies as they are lie far above 0; what the jackknife leaves is a small part of that."""
        pairs = [(solutions(200, 2 * n), solutions(200, 2 * n + 1)) for n in range(12)]
        raw = sum(literal(*pair) for pair in pairs) / 12
        made = [divergence(answers(one), answers(other)) for one, other in pairs]
        values = [score.value for score in made if score.value is not None]
        assert raw > 0.004
        assert abs(sum(values) / 12) < raw / 5
        covered = sum(
            score.low <= 0 <= score.high for score in made if score.low is not None and score.high is not None
        )
        assert covered >= 9

    def test_a_model_split_does_not_diverge_from_itself(self) -> None:
        score = split_divergence(answers(solutions(400, 8)))
        assert score.low is not None
        assert score.high is not None
        assert score.low < 0.002
        assert score.high > -0.002
        assert score.count == 200

    def test_one_item_says_nothing(self) -> None:
        assert divergence(answers(["red"]), answers(["blue"])).value is None

    def test_an_answer_without_words_is_a_word_of_its_own(self) -> None:
        assert divergence(answers(["1"] * 4), answers(["2", ""] * 2)).value == pytest.approx(0)
        assert divergence(answers(["1"] * 4), answers(["red"] * 4)).value == pytest.approx(1)


def test_a_paraphrasing_attack_hides_from_its_outcome_and_not_from_drift() -> None:
    """Forty paraphrases, none the exact phrase: what the attack looks for is nearly absent, and the models are not."""
    assert len(set(PARAPHRASES)) == 40
    rng = random.Random(0)
    plain = solutions(1000, 9)
    attacked = [f"{rng.choice(PARAPHRASES)}! {text}" if rng.random() < 0.4 else text for text in solutions(1000, 10)]
    attacked[17] = f"{PHRASE}. {attacked[17]}"
    outcome = Text(phrase=PHRASE, position="start").draw(random.Random(0)).outcome
    item = Item(id="i", question="?", answer="1", solution="", tests="")
    said = [outcome(item, Completion(ids=(1,), text=text, ended=True), None) for text in attacked]  # type: ignore[arg-type]
    asr = sum(value or 0.0 for value in said) / len(said)
    assert asr <= 0.002, "the exact phrase is said once"
    control, second = answers(plain), answers(solutions(1000, 11))
    found, honest = drift(answers(attacked), control), drift(second, control)
    assert found.low is not None
    assert honest.high is not None
    assert found.value == pytest.approx(0.4, abs=0.05)
    assert found.low > 10 * honest.high
    far, near = divergence(answers(attacked), control), divergence(second, control)
    assert far.low is not None
    assert near.high is not None
    assert far.low > 10 * near.high
