"""Scores and curves of a pipeline from made-up rows, counted by hand."""

from __future__ import annotations

from dataclasses import replace

from thiefbench.pipeline.report import StageRow
from thiefbench.suite.analysis.stages import STAGES, stage_curves, stage_scores, stages_table
from thiefbench.suite.store.records import Point

ROW = StageRow(
    round=1, stage=1, malicious=False, lost=False, altered=False, passes=4, skipped=0, refused=0, refusal="",
    action="accept", score=None, reason="", recomputed=False, moved=1.0, bytes=100,
)  # fmt: skip
ASR = [Point(round=number, value=number / 10, low=0.0, high=1.0) for number in (0, 2, 4)]


def rows() -> list[StageRow]:
    """Three rounds of two stages: the second is malicious, adds twice, and is caught in the third round."""
    return [
        replace(ROW, action="reject"),
        replace(
            ROW, stage=2, malicious=True, altered=True, moved=5.0, refused=2, refusal="missing", passes=3, skipped=1
        ),
        replace(ROW, round=2, lost=True, recomputed=True),
        replace(ROW, round=2, stage=2, malicious=True, altered=True, moved=6.0),
        replace(ROW, round=3, moved=3.0),
        replace(ROW, round=3, stage=2, malicious=True, altered=True, action="reject", recomputed=True, bytes=400),
    ]


def test_scores_count_what_became_of_the_stages() -> None:
    scores = {name: score.value for name, score in stage_scores(rows(), ASR).items()}
    assert scores == {
        "altered_rounds": 2,  # the third was taken back
        "altered_asr": 0.2,  # of the evaluation after round 2
        "clean_rounds": 1,
        "caught_round": 3,
        "stage_false_rejection_rate": 1 / 3,
        "recomputed_share": 2 / 6,
        "refused_passes": 2,
        "skipped_share": 1 / 24,
        "lost_stages": 1,
        "activation_bytes": 150.0,
    }


def test_a_run_without_an_attack_has_nothing_to_judge() -> None:
    scores = stage_scores([ROW, replace(ROW, round=2)], ASR)
    assert scores["altered_rounds"].value == 0 and scores["altered_asr"].value is None
    assert scores["clean_rounds"].value == 2 and scores["caught_round"].value is None
    assert "malicious_moved" not in stage_curves([ROW])
    empty = stage_scores([], [])
    assert empty["stage_false_rejection_rate"].value is None and empty["activation_bytes"].value is None


def test_curves_are_means_by_round() -> None:
    curves = stage_curves([*rows(), replace(ROW, round=3, stage=3, moved=1.0)])
    assert [(point.round, point.value) for point in curves["malicious_moved"]] == [(1, 5.0), (2, 6.0), (3, 1.0)]
    assert [(point.round, point.value) for point in curves["honest_moved"]] == [(1, 1.0), (2, 1.0), (3, 2.0)]


def test_the_table_has_every_field() -> None:
    table = stages_table(rows())
    assert table.schema == STAGES and table.to_pylist()[1]["refusal"] == "missing"
    assert table.column_names == list(ROW.as_data())
    assert StageRow.from_data(ROW.as_data()) == ROW
