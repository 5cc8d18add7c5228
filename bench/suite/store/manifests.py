"""The last runs of several stores, as one run that a report can show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from thiefbench.engine.spec import SpecError
from thiefbench.suite.scenario import Suite
from thiefbench.suite.store.runs import RunError, check_run
from thiefbench.suite.suite_yaml import SuiteError, make_suite

Run = dict[str, Any]

_UNITED = ("attacks", "defenses", "replayed", "recorded", "seeds", "modified")
"""Fields of a suite that may differ: the joined run has the values of all."""


def joined(runs: Sequence[tuple[str, Run | None]]) -> tuple[Run | None, tuple[str, ...]]:
    """One run of all, see `Store.write_run`.

    Args:
        runs: the stored description of each store's last run, or None, with the store's name.

    Returns:
        The run, or None if no store has any, and remarks on runs that are not part of it because they are of another
        suite; their cells are merged nevertheless.
    """
    whole: Run | None = None
    notes: list[str] = []
    for name, run in runs:
        if run is None:
            continue
        suite = _suite_of(run)
        if suite is None:
            notes.append(f"the last run of {name} cannot be read, so the joined run lacks it")
            continue
        typed = {**run, "suite": json.loads(json.dumps(asdict(suite)))}  # a seed may have been written as "1"
        if whole is None:
            whole = typed
        elif (both := _with(whole, typed)) is not None:
            whole = both
        else:
            notes.append(
                f"{name} last ran another suite, {suite.title}: its cells are merged, and a report shows "
                f"{whole['title']}"
            )
    return whole, tuple(notes)


def _with(one: Run, other: Run) -> Run | None:
    """Two runs as one; None if their suites differ in more than lists of what to run."""
    first, second = one["suite"], other["suite"]
    apart = {name for name in first if first[name] != second[name]}
    if not apart <= {*_UNITED, "about"}:
        return None
    united = {name: list(dict.fromkeys([*first[name], *second[name]])) for name in _UNITED}
    united |= {name: sorted(united[name]) for name in ("seeds", "recorded")}
    suite = _made({**first, **united})
    if suite is None:
        return None
    known = {cell["cell_id"] for cell in one["cells"]}
    return {
        "title": suite.title,
        "suite": {**first, **united},
        "fingerprint": suite.fingerprint(),
        "cells": [*one["cells"], *(cell for cell in other["cells"] if cell["cell_id"] not in known)],
    }


def _suite_of(run: Mapping[str, Any]) -> Suite | None:
    """A run's suite; None if the run is not what `Store.write_run` wrote."""
    try:
        return check_run(run, "run.json")
    except RunError:
        return None


def _made(fields: Mapping[str, Any]) -> Suite | None:
    try:
        return make_suite(fields, "run.json")
    except (SuiteError, SpecError):
        return None
