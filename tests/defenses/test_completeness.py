"""`completeness`: who withholds loses the round."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.defenses.pools import offer, view
from thiefbench.defenses.base import PoolCompletion
from thiefbench.defenses.completeness import Completeness

NOTHING = replace(offer("", "thief", reward=0.0), ids=(), ended=False, refused=True)
FORGED = replace(offer("so so", "thief", reward=0.0), refused=True)


def rejected(*pool: PoolCompletion) -> list[bool]:
    """Which completions of a pool are rejected."""
    return [verdict.action != "accept" for verdict in Completeness().inspect(view(pool))]


@pytest.mark.parametrize("missing", [NOTHING, FORGED], ids=["nothing", "a control token inside"])
def test_who_leaves_a_slot_empty_loses_the_round(missing: PoolCompletion) -> None:
    """What no node may send leaves its group just as nothing does."""
    honest, sifted = offer("a b", "honest"), offer("c d", "thief", "2")
    assert rejected(honest, sifted) == [False, False]
    assert rejected(honest, sifted, missing) == [False, True, True]


def test_an_empty_answer_is_an_answer() -> None:
    """The sampler may draw EOS at once."""
    assert rejected(replace(offer("", "honest", reward=0.0), ids=(), ended=True), offer("a", "honest")) == [False] * 2


def test_what_a_receiver_cannot_read_is_not_the_senders_fault() -> None:
    """In a heterogeneous swarm another tokenizer may not say a text."""
    unreadable = replace(offer("a b", "honest", reward=0.0), ids=(), ended=False, refused=True)
    assert rejected(unreadable, offer("c", "honest", "2")) == [False, False]


def test_the_score_counts_the_empty_slots() -> None:
    verdicts = Completeness().inspect(view([NOTHING, replace(NOTHING, item_id="2"), offer("c", "thief", "3")]))
    assert [(verdict.action, verdict.score) for verdict in verdicts] == [("drop", 2.0)] * 3
    assert verdicts[2].reason == "its sender left 2 slots empty"
