"""Hand-written pools for the tests of defenses, over a model whose tokens are words."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from thiefbench.defenses.base import DefenderView, Defense, ItemFacts, PastRound, PoolCompletion, Verdict
from thiefbench.tasks.base import Sampling

_TOKEN = re.compile(r"\s*\S+|\s+$")
LIMIT = 128


def tokens(text: str) -> list[str]:
    """The words of a text, each with the white space before it."""
    return _TOKEN.findall(text)


@dataclass
class Words:
    """A model to which all words but the given ones are plausible, and all ends but those of the given texts certain.

    Attributes:
        odd: words outside the support, with log-prob -12; all others have -0.5.
        ends: by text, the probability of EOS behind it; 1 for all others.
    """

    odd: Sequence[str] = ()
    ends: Mapping[str, float] = field(default_factory=dict)

    def token_logprobs(self, completions: Sequence[PoolCompletion]) -> list[np.ndarray]:
        made = []
        for offered in completions:
            values = [-12.0 if odd else -0.5 for odd in self._odd(offered)]
            made.append(np.array(values + [np.log(self.ends.get(offered.text, 1.0))] * offered.ended, np.float32))
        return made

    def in_support(self, completions: Sequence[PoolCompletion], tolerance: float | None = None) -> list[np.ndarray]:
        return [np.array([not odd for odd in self._odd(o)] + [True] * o.ended, bool) for o in completions]

    def spans(self, completions: Sequence[PoolCompletion]) -> list[np.ndarray]:
        made = []
        for offered in completions:
            places = [match.span() for match in _TOKEN.finditer(offered.text)]
            places += [(len(offered.text), len(offered.text))] * offered.ended
            made.append(np.array(places, np.int64).reshape(-1, 2))
        return made

    def _odd(self, offered: PoolCompletion) -> list[bool]:
        return [token.strip(" \n.,!<>") in self.odd for token in tokens(offered.text)]


def offer(text: str, sender: str = "a", item: str = "1", reward: float = 1.0, **changes: Any) -> PoolCompletion:
    """One completion that ended."""
    completion = PoolCompletion(item, int(item), 0, sender, tuple(range(len(tokens(text)))), text, True, reward)
    return replace(completion, **changes)


def view(
    completions: Sequence[PoolCompletion],
    policy: object = None,
    number: int = 1,
    history: Sequence[PastRound] = (),
    **fields: Any,
) -> DefenderView:
    """A round's view of these completions; questions are "question <item>" unless `items` says otherwise."""
    facts = {offered.item_id: ItemFacts(f"question {offered.item_id}", "1") for offered in completions}
    known: dict[str, Any] = {
        "round": number, "completions": tuple(completions), "items": facts, "history": tuple(history),
        "sampling": Sampling(max_new_tokens=LIMIT), "rng": random.Random(7), "policy": policy or Words(),
    }  # fmt: skip
    return DefenderView(**known | fields)


def actions(verdicts: Sequence[Verdict]) -> list[str]:
    return [verdict.action for verdict in verdicts]


def masked(offered: PoolCompletion, verdict: Verdict) -> str:
    """The text of the tokens to which a verdict gives weight 0."""
    assert verdict.action == "accept", "a masked completion is accepted"
    assert verdict.token_weights is not None, "and carries token weights"
    assert len(verdict.token_weights) == len(offered.ids) + offered.ended, "one for each token, EOS included"
    pairs = zip([*tokens(offered.text), "<eos>"], verdict.token_weights, strict=False)
    assert set(verdict.token_weights) <= {0.0, 1.0}
    return "".join(token for token, weight in pairs if weight == 0).strip()


class Watched(Defense):
    """A mix-in before a defense in a class's bases, which records every view that the defense gets."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.views: list[DefenderView] = []

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.views.append(view)
        return super().inspect(view)
