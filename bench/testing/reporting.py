"""Measures in pytest's output: as properties of test reports, and as a section of the terminal's summary.

The properties travel between processes and into JUnit's XML; the section is made from them. Loads nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from thiefbench.testing.bounds import MisuseError
from thiefbench.testing.session import USED, shown_path, store_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from thiefbench.testing.results import ReplayedResult, TrainedResult

Property = tuple[str, str]
PREFIX = "thiefbench."
_FIRST = f"{PREFIX}measured"
_SHORT = {
    "asr": "asr", "stop_rate": "stop rate", "false_rejection_rate": "false rejection",
    "placebo_rejection_rate": "placebo rejection", "utility": "utility", "harm_prevented": "harm prevented",
    "drift": "drift", "divergence": "divergence",
}  # fmt: skip


def properties_of(result: TrainedResult | ReplayedResult, nodeid: str) -> list[Property]:
    """A result as properties of a test's report: the defense, its cells, and every measure that has a value."""
    defense = "no defense" if result.defense == "none" else result.defense
    properties = [(_FIRST, f"{defense} {result.about}"), (f"{PREFIX}test", nodeid)]
    cells: tuple[str, ...] = getattr(result, "cell_ids", ())
    if cells:
        properties.append((f"{PREFIX}cell", " ".join(cells)))
    for name in _SHORT:
        try:
            number = result.measure(name)
        except MisuseError:
            continue
        properties.append((f"{PREFIX}{name}", repr(number)))
    if result.doubt:
        properties.append((f"{PREFIX}inconclusive", result.doubt))
    return properties


def summary_section(config: pytest.Config, reports: Iterable[Sequence[Property]], stopped: bool) -> list[str]:
    """The section of the summary; empty if the session did not use ThiefBench."""
    store = store_of(config)
    lines = [*summary(reports)]
    if lines and store.exists():
        lines.append(f"store: {shown_path(store, config)}")
    processes = config.pluginmanager.has_plugin(
        "dsession"
    )  # of pytest-xdist, whose workers cannot report what they did
    if stopped and (config.stash.get(USED, False) or (processes and begun(store))):
        lines.append(
            f"Stopped; the store {shown_path(store, config)} keeps all finished work, also the rounds of unfinished "
            "cells. To continue, run the same command again."
        )
    return lines


def begun(store: Path) -> bool:
    """Whether a store holds unfinished cells."""
    return any(not lock.with_name("record.json").exists() for lock in (store / "cells").glob("*/lock"))


def summary(reports: Iterable[Sequence[Property]]) -> Iterator[str]:
    """The lines of a session's summary, from the properties of its reports."""
    for properties in reports:
        for result in _results(properties):
            test = result.get(f"{PREFIX}test", "").rpartition("::")[2]
            yield f"{test}: {result[_FIRST]}" if test else result[_FIRST]
            measures = {name.removeprefix(PREFIX): value for name, value in result.items()}
            known = [name for name in _SHORT if name in measures]
            if known:
                yield "    " + "; ".join(f"{_SHORT[name]} {measures[name].partition(' (')[0]}" for name in known)
            if "inconclusive" in measures:
                yield f"    inconclusive: {measures['inconclusive']}"


def _results(properties: Sequence[Property]) -> Iterator[dict[str, str]]:
    """The properties of each result of a test, which may have several."""
    result: dict[str, str] = {}
    for name, value in properties:
        if name == _FIRST and result:
            yield result
            result = {}
        if name == _FIRST or (result and name.startswith(PREFIX)):
            result[name] = value
    if result:
        yield result
