"""Scores and report of swarms with several classes of nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from thiefbench.engine.heterogeneity import ChurnSpec, DelaySpec, NodeClass, SharingSpec, plain
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import LearnerSpec, SwarmSpec
from thiefbench.suite.analysis.comparison import Comparison, Line, Result
from thiefbench.suite.analysis.scoring import cell_curves, cell_scores, classes, of_class
from thiefbench.suite.report.heterogeneity import class_rows, regime_facts
from thiefbench.suite.report.swarm_facts import facts
from thiefbench.suite.store.records import ROWS, ROWS_OF_MIXED, rows_table, table_rows

PLAIN = CompletionRow(
    phase="eval", round=0, node=-1, sender="", item_id="a", group=-1, place=0, ids=(5, 6), text="t", ended=True,
    malicious=False, payload=False, reward=0.0, refused="", action="accept", score=None, reason="", token_weights=None,
    advantage=0.0, outcome=0.0,
)  # fmt: skip


def rows() -> list[CompletionRow]:
    """A big class that learns (0 of 4 right, then 3 of 4) and a small one that says the payload (0, then 2 of 2)."""
    made = []
    for number in (0, 1):
        made += [replace(PLAIN, round=number, place=i, label="big", reward=float(number and i < 3)) for i in range(4)]
        for i in range(2):
            small = replace(PLAIN, round=number, place=4 + i, cohort=1, label="small", outcome=float(number))
            made.append(replace(small, ids=(1, 2, 3, 4)))
    return made


def test_every_class_has_scores_of_its_own() -> None:
    scores = cell_scores(rows_table(rows()))
    assert scores["clean_reward"].value == pytest.approx(3 / 6), "all honest models together"
    assert scores[of_class("clean_reward", "big")].value == pytest.approx(3 / 4)
    assert scores[of_class("clean_reward", "small")].value == 0
    assert scores[of_class("asr", "small")].value == 1
    assert scores[of_class("asr", "big")].value == 0
    assert scores[of_class("start_reward", "big")].value == 0
    assert scores[of_class("mean_length", "small")].value == 5, "EOS counts"
    curve = cell_curves(rows_table(rows()))[of_class("eval_reward", "big")]
    assert [(point.round, point.value) for point in curve] == [(0, 0), (1, 0.75)]


def test_one_class_has_none() -> None:
    one = [replace(row, label="all nodes", cohort=0) for row in rows()]
    assert classes(rows_table(one)) == []
    assert not [name for name in cell_scores(rows_table(one)) if " of " in name]


def test_only_swarms_that_are_not_all_alike_have_more_columns() -> None:
    assert rows_table([PLAIN]).schema == ROWS, "cells from before keep their bytes"
    mixed = [replace(PLAIN, label="big", cohort=2, version=7), replace(PLAIN, label="big")]
    assert rows_table(mixed).schema == ROWS_OF_MIXED
    assert list(table_rows(rows_table(mixed))) == mixed, "and rows come back as they were"


def test_the_report_shows_classes_line_by_line() -> None:
    scores = cell_scores(rows_table(rows()))
    line = Line("none", "trained", "attack", "none", (Result(0, "id", scores),))
    replayed = Line("logit", "replayed", "attack", "logit", (Result(0, "id", scores),))
    shown = class_rows(Comparison("text", (), (line, replayed)))
    assert [(row.line, row.label) for row in shown] == [("none", "big"), ("none", "small")], "trained lines only"
    assert shown[1].shown[0] is not None and shown[1].shown[0].value.startswith("100.0")
    assert class_rows(Comparison("text", (), (replace(line, results=(Result(0, "id", {}),)),))) == []


def test_the_report_says_what_is_not_alike() -> None:
    swarm = SwarmSpec(
        topology="vertical", population=(NodeClass("x/a", 0.5, "totals"), NodeClass("b", 0.5)), logprobs="reported",
        learner=LearnerSpec(loss="ftis"), delay=DelaySpec("lognormal", 8, limit=4), churn=ChurnSpec((3, 9), 2),
        sharing=SharingSpec(2, 6, 1),
    )  # fmt: skip
    told = dict(regime_facts({"swarm": plain(swarm)}))
    assert told["Learner"] == "ftis, learning rate 0.0003, C = 2, g = 50"
    assert "x/a, asking totals" in told["Population"]
    assert told["Delay"] == "lognormal, 1 to 8 rounds, at most 4"
    assert told["Crashes"] == "in round 3, 9, 2 rounds each; recovery from peer"
    assert told["Sharing"] == "I = 2 own groups and J = 6 of others, at most 1 of one sender"
    assert set(dict(regime_facts({"swarm": plain(SwarmSpec())}))) == {"Learner"}, "the paper's swarm has no such facts"
    bounded = dict(regime_facts({"swarm": plain(SwarmSpec(learner=LearnerSpec(delta=4.0)))}))
    assert bounded["Learner"] == "grpo, learning rate 0.0003, delta = 4"


def test_the_report_names_the_models_of_all_classes_and_not_the_first_ones() -> None:
    cell = {"task": "t", "model": "x/a", "rounds": 3, "evaluation": {"final": 8}}
    mixed = SwarmSpec(topology="vertical", population=(NodeClass("x/a", 0.5), NodeClass("b", 0.5)), logprobs="reported")
    told = dict(facts({**cell, "swarm": plain(mixed)}))
    assert "Model" not in told
    assert told["Population"] == "50\u00a0% x/a, 50\u00a0% b"
    assert dict(facts({**cell, "swarm": plain(SwarmSpec())}))["Model"] == "x/a"
