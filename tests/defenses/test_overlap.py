"""`overlap`: who mostly repeats what others sent before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from thiefbench.defenses.base import ACCEPT, DefenderView, PastRound, PoolCompletion
from thiefbench.defenses.overlap import Overlap

WORK = "first three plus four is seven and then seven plus one is eight"
NEARLY = "first three plus four is seven and then seven plus one is eight indeed"
OTHER = "something else entirely that nobody has written before in this swarm at all"


def completion(sender: str, text: str, item: str = "i", index: int = 0, refused: bool = False) -> PoolCompletion:
    return PoolCompletion(item, 0, index, sender, (1,), text, True, 1.0, refused=refused)


def view(pool: Sequence[PoolCompletion], *past: Sequence[PoolCompletion]) -> DefenderView:
    history = [PastRound(number, tuple(each), (ACCEPT,) * len(each)) for number, each in enumerate(past, 1)]
    return DefenderView(len(past) + 1, tuple(pool), {}, cast(Any, None), history, cast(Any, None), cast(Any, None))


def actions(defense: Overlap, seen: DefenderView) -> list[str]:
    return [verdict.action for verdict in defense.inspect(seen)]


def test_only_the_repetitions_of_who_mostly_repeats_are_rejected() -> None:
    past = [completion("a", WORK)]
    pool = [completion("b", WORK), completion("b", NEARLY), completion("b", OTHER), completion("c", WORK),
            completion("c", OTHER)]  # fmt: skip
    assert actions(Overlap(), view(pool, past)) == ["drop", "drop", "accept", "accept", "accept"]
    assert actions(Overlap(share=0.7), view(pool, past)) == ["accept"] * 5
    assert actions(Overlap(share=0.0), view(pool, past)) == ["drop", "drop", "accept", "drop", "accept"]
    assert actions(Overlap(similar=1.0), view(pool, past))[:2] == ["accept", "accept"], "one of three is exact"
    verdict = next(iter(Overlap(reject="zero").inspect(view(pool, past))))
    assert (verdict.action, verdict.score) == ("zero", pytest.approx(2 / 3))


def test_who_came_first_may_send_it_again() -> None:
    past = [completion("a", WORK)], [completion("b", WORK)]
    assert actions(Overlap(), view([completion("a", WORK), completion("b", WORK)], *past)) == ["accept", "drop"]


def test_in_one_round_nobody_came_first() -> None:
    assert actions(Overlap(), view([completion("a", WORK), completion("b", WORK)])) == ["accept", "accept"]


def test_work_on_another_item_and_refused_work_do_not_count() -> None:
    past = [completion("a", WORK, item="j"), completion("a", WORK, refused=True)]
    assert actions(Overlap(), view([completion("b", WORK)], past)) == ["accept"]
    refused = [completion("b", WORK, refused=True)]
    assert actions(Overlap(), view(refused, [completion("a", WORK)])) == ["accept"]


def test_white_space_and_case_hide_nothing_and_short_texts_are_compared_whole() -> None:
    past = [completion("a", WORK), completion("a", "seven")]
    again = completion("b", WORK.upper().replace(" ", "  "))
    assert actions(Overlap(), view([again, replace(again, text="Seven"), replace(again, text="eight")], past)) == [
        "drop", "drop", "accept",
    ]  # fmt: skip


@pytest.mark.parametrize("arguments", [{"share": 1.0}, {"share": -0.1}, {"similar": 0.0}, {"similar": 1.1}])
def test_arguments_are_checked(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="overlap: "):
        Overlap(**arguments)  # type: ignore[arg-type]
