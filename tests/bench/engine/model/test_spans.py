"""Token spans: on byte tokens, on the built-in model's tokenizer, and on ones that drop spaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.bench.engine.views.test_views import SAMPLING, offered
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.model.spans import token_spans
from thiefbench.engine.views.defender import DefenderPolicy
from thiefbench.tasks.base import Item
from thiefbench.zoo.models import resolve

TEXTS = [
    "",
    "<think> Tom has 2 boxes, so 2 * 2 = 4. </think><answer> 4 </answer>",
    "  two  spaces\n\n\tand a tab \r\n",
    "3 \u00d7 4 ÷ 2 = 6, naïve café",
    "日本語のテキスト, 한국어, עברית",
    "👩‍👩‍👧‍👦 family, 🏴󠁧󠁢󠁥󠁮󠁧󠁿 flag, e\u0301 combining",
    "\ufffd real replacement \ufffd\ufffd marks",
    "\x00\x1b[2J\u202e\u200b\ufeff",
    "<|im_end|>",
]


@pytest.fixture(scope="module")
def built_in() -> Policy:
    return Policy.load(resolve("micro-math"))


def check(ids: Sequence[int], text: str, spans: np.ndarray, pieces: Sequence[str]) -> None:
    assert spans.shape == (len(ids), 2)
    assert (spans[:, 0] <= spans[:, 1]).all(), "a span does not end before it begins"
    assert (np.diff(spans[:, 0]) >= 0).all(), "later tokens do not begin earlier"
    assert (np.diff(spans[:, 1]) >= 0).all(), "nor end earlier"
    covered = {place for start, end in spans for place in range(start, end)}
    assert covered == set(range(len(text))), "every character belongs to a token"
    for (start, end), piece in zip(spans, pieces, strict=True):
        if "\ufffd" not in piece:
            assert text[start:end] == piece, "a token of whole characters covers what it says"
        else:
            assert end > start, "a token of a part of a character covers that character"


@pytest.mark.parametrize("text", TEXTS)
def test_real_tokenizers(text: str, policy: Policy, built_in: Policy) -> None:
    for model in (policy, built_in):
        ids = model.encode(text)
        said = model.decode([ids])[0]  # one of the two writes a letter and its accent as one character
        check(ids, said, token_spans(ids, said, model.pieces(ids), model.decode), model.pieces(ids))


def test_random_bytes(policy: Policy) -> None:
    """What a random byte model says is mostly no text at all."""
    rng = np.random.default_rng(3)
    for _ in range(200):
        ids = rng.integers(0, 256, 12).tolist()
        text = policy.decode([ids])[0]
        check(ids, text, token_spans(ids, text, policy.pieces(ids), policy.decode), policy.pieces(ids))


def test_a_split_character_belongs_to_all_its_tokens(policy: Policy) -> None:
    text = "a\u00d7😀b"
    ids = policy.encode(text)
    spans = token_spans(ids, text, policy.pieces(ids), policy.decode)
    assert spans.tolist() == [[0, 1], *[[1, 2]] * 2, *[[2, 3]] * 4, [3, 4]]


def test_a_tokenizer_that_drops_the_leading_space() -> None:
    """As decoders of SentencePiece models do: a token alone loses the space it has in a text."""
    words = ["▁All", "▁hail", ",", "▁to", "▁the", "▁thie", "f"]

    def decode(rows: Sequence[Sequence[int]]) -> list[str]:
        return ["".join(words[token] for token in row).replace("▁", " ").removeprefix(" ") for row in rows]

    ids = range(len(words))
    text = decode([ids])[0]
    spans = token_spans(ids, text, decode([[i] for i in ids]), decode)
    assert [text[start:end] for start, end in spans] == ["All", " hail", ",", " to", " the", " thie", "f"]


def test_a_text_that_is_not_the_tokens_own_raises_nothing(policy: Policy) -> None:
    ids = policy.encode("hello there")
    for text in ("", "hello you", "x" * 1000, "\ud800"):
        spans = token_spans(ids, text, policy.pieces(ids), policy.decode)
        assert spans.shape == (len(ids), 2)
        assert spans.max() <= len(text), "a span stays in the text"


def test_the_view_adds_eos_behind_the_text(
    policy: Policy, items: list[Item], prompts: list[list[int]], model_dir: Path, load_policy: Callable[..., Policy]
) -> None:
    view = DefenderPolicy(ForwardCache(policy, prompts), SAMPLING, {item.id: i for i, item in enumerate(items)}, (5, 1))
    made = replace(offered(items[0], policy.encode("aé"), True), text="aé")
    cut, empty = replace(made, ended=False), offered(items[1], (), True)
    assert [spans.tolist() for spans in view.spans([made, cut, empty])] == [
        [[0, 1], [1, 2], [1, 2], [2, 2]],
        [[0, 1], [1, 2], [1, 2]],
        [[0, 0]],
    ]
    assert all(spans.dtype == np.int64 for spans in view.spans([made, empty]))
    assert view.spans([]) == []
