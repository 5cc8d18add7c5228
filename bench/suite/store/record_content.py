"""Whether a record is that of a finished cell, checked before anything is computed from it.

A record may come from a stranger: a valid checksum only shows that it was not damaged by accident.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from thiefbench import registry
from thiefbench.engine.spec import SpecError
from thiefbench.error_messages import problem
from thiefbench.limits import MOST_ROUNDS
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import Record
from thiefbench.tasks.text import one_line

SCORES = ("asr", "stop_rate", "false_rejection_rate", "clean_reward", "start_reward", "mean_length")
"""The scores of every finished cell."""
_MOST = 1e12
"""A limit far beyond any real measure; sums of such numbers do not overflow."""


def wrong_in(record: Record) -> str:
    """What is invalid in a record of a finished cell, in a clause; empty if nothing is."""
    if (wrong := wrong_parameters(record)) or record.status != "ok":
        return wrong
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
        return one_line(f"its parameters are no cell's: {error}", 300)
    if not same or record.cell.get("topology", spec.swarm.topology) != spec.swarm.topology:
        return "its parameters are not in the form of a cell's"
    if not 1 <= spec.rounds <= MOST_ROUNDS or not -(2**63) <= spec.seed < 2**63:
        return "its number of rounds or its seed is not valid"
    return ""


def _wrong_number(record: Record) -> str:
    rounds = record.cell["rounds"]
    for name, score in record.scores.items():
        if not 0 <= score.count <= _MOST or not all(map(_sound, (score.value, score.low, score.high))):
            return one_line(f"its {name} is no measured number", 100)
    for name, points in record.curves.items():
        if name == "grad_norm":  # of a swarm that diverged it is not finite, and nothing is computed from it
            continue
        for point in points:
            if not 0 <= point.round <= rounds or not all(map(_sound, (point.value, point.low, point.high))):
                return one_line(f"its curve {name} contains an invalid number", 100)
    if not all(_sound(value) and value >= 0 for value in record.seconds.values()):
        return "its seconds are no times"
    return ""


def _sound(value: float | None) -> bool:
    return value is None or (math.isfinite(value) and abs(value) <= _MOST)


def named_alike(record: Record, entry: Mapping[str, Any]) -> bool:
    """Whether a record belongs to the cell that a run names."""
    named = ("role", "attack", "defense", "seed")
    return record.cell_id == entry["cell_id"] and all(record.cell.get(name) == entry[name] for name in named)
