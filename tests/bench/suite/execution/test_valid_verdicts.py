"""Verdicts on stages and vectors are looked at before they count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.bench import tiny
from tests.bench.pipeline.test_pipeline import suite
from thiefbench import registry
from thiefbench.defenses.aggregation.base import Aggregate, Aggregation, AggregationView, VectorVerdict
from thiefbench.defenses.stages.base import StageCheck, StageVerdict, StageView
from thiefbench.suite.execution.runner import run_suite
from thiefbench.suite.execution.valid_verdicts import ValidatedCheck, ValidatedRule
from thiefbench.suite.store.records import Store
from thiefbench.testing.contracts.aggregation import view_of_round
from thiefbench.testing.contracts.stage_check import views_of_run

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt": ({"action": "rejected"}, "the verdict 'rejected'; it is one of accept,"),
    "none": ({"action": None}, "the verdict None"),
    "unhashable": ({"action": []}, r"the verdict \[\]"),
    "nan": ({"score": float("nan")}, "whose score is not a finite number"),
    "huge": ({"score": 10**400}, "whose score is not a finite number"),
    "text": ({"score": "1"}, "whose score is not a finite number"),
    "tensor": ({"score": torch.tensor(1.0)}, "whose score is not a finite number"),
    "wordless": ({"reason": None}, "whose reason is not text"),
    "half": ({"reason": "\ud800"}, "whose reason is not text"),
}


class Says(StageCheck):
    """Give a verdict of these fields."""

    name = "says"

    def __init__(self, what: str = "", **fields: Any) -> None:
        self.fields = WRONG[what][0] if what else fields

    def check(self, view: StageView) -> StageVerdict:
        return StageVerdict(**self.fields)


class Joins(Aggregation):
    """Give every vector a verdict of these fields."""

    name = "joins"

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def aggregate(self, view: AggregationView) -> Aggregate:
        return Aggregate(view.own, tuple(VectorVerdict(**self.fields) for _ in view.vectors))


@pytest.mark.parametrize(("fields", "message"), WRONG.values(), ids=WRONG)
def test_what_is_no_verdict_is_an_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"the stage check says gave .*{message}"):
        ValidatedCheck(Says(**fields)).check(next(views_of_run(1)))
    with pytest.raises(ValueError, match=f"the aggregation joins gave .*{message}"):
        ValidatedRule(Joins(**fields)).aggregate(view_of_round(3))


@pytest.mark.parametrize("score", [np.float32(0.5), np.float64(0.5), 0.5, np.int64(2), 2])
def test_a_number_is_a_score_whatever_its_type(score: Any) -> None:
    verdict = ValidatedCheck(Says(action="reject", score=score)).check(next(views_of_run(1)))
    assert (type(verdict.score), verdict.score) == (float, float(score))
    joined = ValidatedRule(Joins(action="clip", score=score)).aggregate(view_of_round(3))
    assert [type(each.score) for each in joined.verdicts] == [float] * len(joined.verdicts)


def test_what_is_no_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    silent: Any = lambda self, view: None  # noqa: E731
    monkeypatch.setattr(Says, "check", silent)
    monkeypatch.setattr(Joins, "aggregate", silent)
    with pytest.raises(ValueError, match="gave NoneType, which is not a StageVerdict"):
        ValidatedCheck(Says()).check(next(views_of_run(1)))
    with pytest.raises(ValueError, match="gave NoneType, which is not an Aggregate"):
        ValidatedRule(Joins()).aggregate(view_of_round(3))


def test_a_misspelt_verdict_is_the_cells_error_in_round_1(tmp_path: Path) -> None:
    spec = f"{__file__}:Says(what='misspelt')"
    registry.allow(spec)
    of = suite(spec)
    (record,) = run_suite(of, [tiny.cell(of)], Store(tmp_path), tiny.Watcher())
    assert record.status == "error"
    assert "gave the verdict 'rejected'" in record.error
