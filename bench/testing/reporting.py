"""What a session says of its measures: properties of reports (they travel between processes, and into JUnit's XML), and
the section of the terminal's summary that is made from them. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from thiefbench.testing.bounds import MisuseError
from thiefbench.testing.session import USED, store_of, written

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
}  # fmt: skip


def recorded(result: TrainedResult | ReplayedResult, where: str) -> list[Property]:
    """A result as properties of a test's report: whose, its cells, and every measure that has a value."""
    who = "no defense" if result.defense == "none" else result.defense
    made = [(_FIRST, f"{who} {result.about}"), (f"{PREFIX}test", where)]
    cells: tuple[str, ...] = getattr(result, "cell_ids", ())
    if cells:
        made.append((f"{PREFIX}cell", " ".join(cells)))
    for name in _SHORT:
        try:
            number = result.measure(name)
        except MisuseError:
            continue
        made.append((f"{PREFIX}{name}", repr(number)))
    if result.doubt:
        made.append((f"{PREFIX}inconclusive", result.doubt))
    return made


def lines(config: pytest.Config, reports: Iterable[Sequence[Property]], stopped: bool) -> list[str]:
    """The section of the summary; empty where nothing of the session was ThiefBench's."""
    store = store_of(config)
    said = [*summary(reports)]
    if said and store.exists():
        said.append(f"store: {written(store, config)}")
    processes = config.pluginmanager.has_plugin("dsession")  # of pytest-xdist, whose workers cannot tell what they did
    if stopped and (config.stash.get(USED, False) or (processes and begun(store))):
        said.append(
            f"Stopped; the store {written(store, config)} keeps what is finished, rounds of begun cells too. "
            "To go on, run the same command again."
        )
    return said


def begun(store: Path) -> bool:
    """Whether a store holds cells that are begun and have no record yet."""
    return any(not lock.with_name("record.json").exists() for lock in (store / "cells").glob("*/lock"))


def summary(reports: Iterable[Sequence[Property]]) -> Iterator[str]:
    """The lines of a session's summary, from the properties of its reports."""
    for properties in reports:
        for told in _results(properties):
            yield told[_FIRST]
            measures = {name.removeprefix(PREFIX): value for name, value in told.items()}
            known = [name for name in _SHORT if name in measures]
            if known:
                yield "    " + "; ".join(f"{_SHORT[name]} {measures[name].partition(' (')[0]}" for name in known)
            if "inconclusive" in measures:
                yield f"    inconclusive: {measures['inconclusive']}"


def _results(properties: Sequence[Property]) -> Iterator[dict[str, str]]:
    """The properties of each result of a test, which may have several."""
    told: dict[str, str] = {}
    for name, value in properties:
        if name == _FIRST and told:
            yield told
            told = {}
        if name == _FIRST or (told and name.startswith(PREFIX)):
            told[name] = value
    if told:
        yield told
