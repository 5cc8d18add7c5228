"""Scores of a cell whose models are experts by domain, as pure functions of its completions."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from thiefbench.suite.analysis.scoring import classes, last_evaluation, of_class, wilson
from thiefbench.suite.store.records import Score


def expert_scores(rows: pa.Table) -> dict[str, Score]:
    """Which expert led the answers of the last evaluation; empty where one model learns from all groups.

    Returns:
        "own_expert of ..." for the questions of each domain: the share of answers in which the domain's own expert had
        the largest mean share.
    """
    train, final = rows.filter(pc.equal(rows["phase"], "train")), last_evaluation(rows)
    scores: dict[str, Score] = {}
    if len(pc.unique(train["cohort"])) < 2:
        return {}
    for label in classes(rows):
        own = set(_labelled(train, label)["cohort"].to_pylist())
        led = _labelled(final, label)["cohort"].to_pylist()
        if own:
            scores[of_class("own_expert", label)] = wilson(sum(cohort in own for cohort in led), len(led))
    return scores


def _labelled(rows: pa.Table, label: str) -> pa.Table:
    return rows.filter(pc.equal(pc.cast(rows["label"], pa.string()), label))
