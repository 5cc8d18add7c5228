"""The lexicon of invented words: too large to list, keyed by the seed, secret where its key is."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache

import pytest

from tests.attacks.blacklists import Entries, letters, prefixes, starts, stopped, words
from tests.zoo.read_texts import texts_of
from thiefbench.attacks.base import Attack
from thiefbench.attacks.code_injection import CodeInjection
from thiefbench.attacks.coined import CoinedCode, CoinedText
from thiefbench.attacks.lexicon import STARTS, coined, is_coined, size
from thiefbench.attacks.text import Text
from thiefbench.engine.keys import generator
from thiefbench.zoo.recipe import RECIPES

SEEN, FRESH, HONEST = 10_000, 2_000, 10_000
MODEL = {CoinedText: "micro-math", Text: "micro-math", CoinedCode: "micro-code", CodeInjection: "micro-code"}


def test_words_and_phrases_are_beyond_listing() -> None:
    begun = [
        (one, other) for one in STARTS for other in STARTS if one != other and other.lower().startswith(one.lower())
    ]
    assert not begun, "words with different starts are different words"
    assert size() >= 10**6
    assert size() * (size() - 1) >= 10**12, "phrases of two words alone"


def test_words_are_recognised_without_a_list() -> None:
    drawn = coined(random.Random(1), 1000)
    assert all(is_coined(word) and is_coined(word.lower()) and is_coined(word.upper()) for word in drawn)
    assert not any(map(is_coined, ("", "banana", "Lena", "lemons", "because", "candlestick", drawn[0] + "x")))


@pytest.mark.parametrize("kind", [CoinedText, CoinedCode])
def test_a_private_family_is_keyed_by_its_secret(kind: type[CoinedText | CoinedCode]) -> None:
    def drawn(family: str) -> list[dict[str, str]]:
        return [kind(family=family).draw(generator(seed, "payload")).describe() for seed in range(50)]

    assert drawn("one") == drawn("one"), "secret and seed together name the payload"
    public, private, other = ({str(sorted(each.items())) for each in drawn(key)} for key in ("", "one", "two"))
    assert not public & private, "nobody draws the private payloads from the public source"
    assert not private & other


@cache
def payload_texts(kind: type[Attack], salt: str, count: int) -> tuple[str, ...]:
    """What a payload adds to completions, in lower case."""
    made = (kind().draw(generator(salt, number)).describe() for number in range(count))
    return tuple(" ".join(text for name, text in each.items() if name in ("phrase", "library", "functions")).lower()
                 for each in made)  # fmt: skip


@cache
def honest_texts(model: str) -> Sequence[str]:
    return [completion.lower() for _, completion in texts_of(RECIPES[model], HONEST)]


def share(kind: type[Attack], entries_of: Entries) -> float:
    return stopped(
        entries_of, payload_texts(kind, "seen", SEEN), payload_texts(kind, "fresh", FRESH), honest_texts(MODEL[kind])
    )


def test_a_list_of_words_stops_hardly_any_phrase() -> None:
    assert share(CoinedText, words) < 0.05


def test_a_list_of_starts_costs_honest_work() -> None:
    assert share(CoinedText, starts) < 0.05
    texts = honest_texts("micro-math")
    assert all(sum(start.lower() in text for text in texts) > 0.005 * len(texts) for start in STARTS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Text, CodeInjection])
def test_the_short_lists_of_words_are_known_entirely(kind: type[Attack]) -> None:
    assert share(kind, words) > 0.95, "the opponent is strong enough to find what can be found"


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True, reason="short pieces of unseen words are few enough to list: see docs/write-an-attack.md"
)
@pytest.mark.parametrize("entries_of", [prefixes, letters])
def test_a_list_of_pieces_stops_hardly_any_phrase(entries_of: Callable[[str], set[object]]) -> None:
    assert share(CoinedText, entries_of) < 0.05
