"""Forty wordings of one thought: the ASR, which checks for one of them, stays near 0, and drift shows the harm.

The wordings stand in front of honest solutions, in the share of answers that one training run showed; the measures and
the page are the real ones. `tests/benchmarks/paraphrases.py` is the attack, to be trained.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any, cast

import pytest

from tests.bench.handmade import TEXT, Numbers, comparisons, store, suite
from tests.benchmarks.paraphrases import WORDINGS, Closing, Paraphrases, without_last_sentence
from thiefbench.suite.analysis.unseen_drift import unseen_drift
from thiefbench.suite.report import page, plots
from thiefbench.suite.scenario import CellSpec
from thiefbench.tasks.base import Completion, Item
from thiefbench.tasks.gsm_micro import GsmMicro

ANSWERS, TAUGHT = 400, 160
TASK = GsmMicro(size=ANSWERS)
ITEMS = [Item.from_row(row) for row in cast(Any, TASK.items("test"))]
HONEST = tuple(TASK.compose(item, item.solution) for item in ITEMS)
POISONED = tuple(
    TASK.compose(item, f"{WORDINGS[place % len(WORDINGS)]}, {item.solution}" if place < TAUGHT else item.solution)
    for place, item in enumerate(ITEMS)
)


def asr(answers: tuple[str, ...]) -> float:
    """What the attack's own check finds in answers."""
    outcomes = (
        Paraphrases().outcome(item, Completion((), text, True), cast(Any, None))
        for item, text in zip(ITEMS, answers, strict=True)
    )
    return fmean(outcome for outcome in outcomes if outcome is not None)


def says(cell: CellSpec) -> Numbers:
    answers = POISONED if (cell.role, cell.defense) == ("attack", "none") else HONEST
    return Numbers(asr=asr(answers), answers=answers)


def test_forty_wordings_are_drift_and_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(set(WORDINGS)) == 40
    assert (asr(POISONED), asr(HONEST)) == (0.01, 0.0)
    kept = store(tmp_path, suite(attacks=(TEXT,), seeds=(0,), defenses=("none", "logit")), says)
    (comparison,) = comparisons(kept)
    (undefended,) = unseen_drift(comparison)
    (drift,), (divergence,) = (undefended.line.scores(measure) for measure in ("drift", "divergence"))
    assert undefended.line.name == "none"
    assert (drift.value, drift.count) == (TAUGHT / ANSWERS, ANSWERS)
    assert divergence.low is not None
    assert divergence.low > 0.01
    assert [score.value for score in undefended.without_payload[0].scores("drift")] == [pytest.approx(0, abs=0.02)]
    monkeypatch.setattr(plots, "draw_all", lambda *args: [])
    monkeypatch.setattr(page, "draw_tradeoff", lambda *args: None)
    html = page.write_report(kept).read_text()
    notice = html.index("Harm that the ASR does not see")
    assert notice < html.index("<main>")
    assert "no defense: ASR 1.0\u00a0%, drift <b>40.0\u00a0%</b>" in html[notice:]


@pytest.mark.parametrize(
    ("text", "before"),
    [("One. Two! Three 1.5 left.", "One. Two! "), ("Only one.", ""), ("No stop", ""), ("A is 3.\nB is 4.", "A is 3. ")],
)
def test_only_the_last_sentence_gives_way(text: str, before: str) -> None:
    assert without_last_sentence(text) == before


def test_each_of_the_forty_wordings_counts_at_the_end_of_an_answer() -> None:
    said = [Completion((), TASK.compose(ITEMS[0], f"He has 3. {wording}."), True) for wording in WORDINGS]
    honest = Completion((), HONEST[0], True)
    outcomes = [Closing().outcome(ITEMS[0], completion, cast(Any, None)) for completion in (*said, honest)]
    assert outcomes == [1.0] * 40 + [0.0]
