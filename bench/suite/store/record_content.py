"""Whether a record is that of a finished cell, checked before anything is computed from it.

A record may come from a stranger: a valid checksum only shows that it was not damaged by accident.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from thiefbench import registry
from thiefbench.engine.spec import SpecError
from thiefbench.error_messages import problem
from thiefbench.limits import MOST_ROUNDS
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.ranges import MOST, measured, wrong_curve, wrong_score
from thiefbench.suite.store.records import Record
from thiefbench.tasks.text import one_line

SCORES = ("asr", "stop_rate", "false_rejection_rate", "clean_reward", "start_reward", "mean_length")
"""The scores of every finished cell."""
FAILED_WITH_RESULTS = "it failed, and the record of a failed cell holds no scores"
_DIVERGING = ("grad_norm",)
"""Curves that are not finite where a swarm diverged; nothing is computed from them."""


def wrong_in(record: Record) -> str:
    """What is invalid in a record, in a clause; empty if nothing is."""
    if (wrong := wrong_parameters(record)) or record.status != "ok":
        return wrong or _results_of_failed(record)
    if lacking := next((name for name in SCORES if name not in record.scores), ""):
        return f"it has no {lacking}"
    return _wrong_number(record)


def wrong_parameters(record: Record) -> str:
    """What is invalid in a record's parameters, in a clause; empty if nothing is."""
    parameters = record.parameters
    try:
        spec = CellSpec.from_dict(parameters)
        same = json.dumps(spec.as_dict(), sort_keys=True) == json.dumps(parameters, sort_keys=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return one_line(f"its {'.'.join(map(str, first['loc']))[:100]} is not that of a cell: {problem(first)}", 300)
    except (SpecError, registry.SpecStringError, ValueError, OverflowError) as error:
        return one_line(f"its parameters are not those of a cell: {error}", 300)
    if not same or record.cell.get("topology", spec.swarm.topology) != spec.swarm.topology:
        return "its parameters are not in the form of a cell's"
    if not 1 <= spec.rounds <= MOST_ROUNDS or not -(2**63) <= spec.seed < 2**63:
        return "its number of rounds or its seed is not valid"
    return ""


def wrong_results(record: Record) -> str:
    """Why the results of a record are none of the benchmark's own cells, in a clause; empty if they may be one's.

    Stricter than `wrong_in`, whose records may be of a user's own attack and task: a number must be one that the
    measure of its name can have.
    """
    if record.status != "ok":
        return _results_of_failed(record)
    if wrong := _wrong_number(record):
        return wrong
    attack = str(record.cell.get("attack", ""))
    wrong_scores = (
        wrong_score(name, attack, score.value, score.low, score.high, score.count)
        for name, score in (record.scores | record.other_rules).items()
    )
    wrong_curves = (
        wrong_curve(name, attack, [(each.round, each.value, each.low, each.high) for each in points])
        for name, points in record.curves.items()
        if name not in _DIVERGING
    )
    return one_line(next(filter(None, (*wrong_scores, *wrong_curves)), ""), 200)


def _results_of_failed(record: Record) -> str:
    held = record.scores or record.other_rules or any(record.curves.values()) or record.completions_sha256
    return FAILED_WITH_RESULTS if held else ""


def _wrong_number(record: Record) -> str:
    rounds = record.cell.get("rounds")
    if type(rounds) is not int:
        return "its number of rounds is not valid"
    for name, score in (record.scores | record.other_rules).items():
        if not 0 <= score.count <= MOST or not all(map(measured, (score.value, score.low, score.high))):
            return one_line(f"its {name} is not a measured number", 100)
    for name, points in record.curves.items():
        if name in _DIVERGING:
            continue
        for point in points:
            if not 0 <= point.round <= rounds or not all(map(measured, (point.value, point.low, point.high))):
                return one_line(f"its curve {name} contains an invalid number", 100)
    if not all(measured(value) and value >= 0 for value in record.seconds.values()):
        return "its seconds are not valid times"
    return ""


def named_alike(record: Record, entry: Mapping[str, Any]) -> bool:
    """Whether a record belongs to the cell that a run names."""
    named = ("role", "attack", "defense", "seed")
    return record.cell_id == entry["cell_id"] and all(record.cell.get(name) == entry[name] for name in named)
