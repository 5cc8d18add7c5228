"""Which of a cell's rows drift is measured on."""

from __future__ import annotations

import pytest

from thiefbench.engine.round_record import CompletionRow
from thiefbench.suite.analysis.cell_drift import COLUMNS, answers_in
from thiefbench.suite.store.records import rows_table


def row(phase: str, number: int, place: int, text: str) -> CompletionRow:
    return CompletionRow(
        phase=phase, round=number, node=-1, sender="", item_id=f"i{place}", group=-1, place=place, ids=(1,), text=text,
        ended=True, malicious=False, payload=False, reward=0.0, refused="", action="accept", score=None, reason="",
        token_weights=None, advantage=0.0, outcome=None,
    )  # fmt: skip


@pytest.mark.parametrize("order", [1, -1])
def test_held_out_answers_alone_count_in_their_order(order: int) -> None:
    rows = [
        row("eval", 0, 0, "start"), row("train", 1, 0, "pool"), row("eval", 10, 0, "late one"),
        row("eval", 10, 1, "late two"), row("probe", 10, 0, "probed"), row("eval", 2, 0, "early"),
    ][::order]  # fmt: skip
    found = answers_in(rows_table(rows).select(COLUMNS))
    assert found.items == ("i0", "i1")
    assert found.words == (("late", "one"), ("late", "two")), "of the last round, 10 and not 2"
    assert found.writers == {"start": "i0", "early": "i0", "late": None, "one": "i0", "two": "i1"}


def test_rows_without_an_evaluation_have_no_answers() -> None:
    assert answers_in(rows_table([row("train", 1, 0, "pool")])).words == ()
