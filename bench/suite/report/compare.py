"""The comparison of two runs, or of two defenses of one run, as a page and as a CSV file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from thiefbench import registry
from thiefbench.spreadsheet import csv_of
from thiefbench.suite.analysis.differences import MEASURES, ComparedRun, Difference, LinePair, StoreComparison, versus
from thiefbench.suite.analysis.run_comparisons import ReportError, last_run, trained_comparisons
from thiefbench.suite.report.difference_plots import draw_differences
from thiefbench.suite.report.drawing import embed
from thiefbench.suite.report.rendering import render
from thiefbench.suite.report.run_table import finite, short_names
from thiefbench.suite.report.tables import NBSP, POINTS, Shown, write_signed, write_value
from thiefbench.suite.report.verdicts import SIGNS, headline, verdict
from thiefbench.suite.store.records import Store, write_atomically
from thiefbench.tasks.text import one_line
from thiefbench.trust import reads_strangers
from thiefbench.wording import counted

OPEN_ROWS = 16
"""A longer table of differences is folded: its plot stands above it."""


@reads_strangers
def compared(stores: Sequence[Path], defenses: Sequence[str]) -> StoreComparison:
    """The last runs of two stores, or two defenses of one store's last run.

    Raises:
        ReportError: there are not two sides, a store has no run, a defense is not in it, or they share no comparison.
    """
    if (len(stores), len(defenses)) == (2, 0):
        comparison = versus(_side("A", stores[0]), _side("B", stores[1]))
    elif (len(stores), len(defenses)) == (1, 2):
        one, other = _side("A", stores[0], defenses[0]), _side("B", stores[0], defenses[1])
        if one.defense == other.defense:
            raise ReportError(f"both --defense name {one.defense}; name two different ones")
        comparison = versus(one, other)
    else:
        raise ReportError(
            f"compare takes two stores, or one store and two --defense; this is {counted(len(stores), 'store')} and "
            f"{len(defenses)} --defense"
        )
    if not comparison.pairs:
        have = "; ".join(
            f"{side.name} has {', '.join(c.title for c in side.comparisons) or 'none'}"
            for side in (comparison.one, comparison.other)
        )
        raise ReportError(f"the two runs share no attack in the same part, so nothing can be compared: {have}")
    return comparison


def _side(name: str, folder: Path, defense: str = "") -> ComparedRun:
    store = Store(folder)
    run = last_run(store)
    suite = run["suite"]
    known = dict.fromkeys(cell["defense"] for cell in run["cells"])
    if defense and defense not in known:
        defense = _by_short_name(defense, known) or _installed(defense) or defense
        if defense not in known:
            raise ReportError(
                f"the run in {folder} has no cell with the defense {one_line(defense, 200)}; it has {', '.join(known)}"
            )
    comparisons = tuple(trained_comparisons(store, run))
    return ComparedRun(
        name, str(folder), run["title"], run["fingerprint"], tuple(suite.get("modified", ())), comparisons, defense
    )


def _by_short_name(name: str, known: Iterable[str]) -> str:
    """The defense that a run's table shows by this name; empty if it shows none."""
    try:
        return next((spec for spec, short in short_names("defense", known).items() if short == name), "")
    except registry.SpecStringError:  # of a damaged run, which may name anything
        return ""


def _installed(defense: str) -> str:
    """The canonical spec string of a defense that is installed; empty for any other."""
    try:
        return registry.canonical("defense", defense)
    except registry.SpecStringError:  # what the run has will be said, and not what is installed
        return ""


def write_comparison(comparison: StoreComparison, folder: Path, reasons: Sequence[str] = ()) -> Path:
    """Write compare.html and compare.csv into a folder; returns the page.

    Args:
        comparison: of two sides.
        folder: will be created.
        reasons: why the two differ, one sentence each; they stand before the differences.
    """
    page = folder / "compare.html"
    html = render(
        "compare.html.jinja",
        comparison=comparison,
        remarks=remarks(comparison),
        reasons=reasons,
        headline=headline(comparison),
        tiles=_tiles(comparison),
        sections=[_section(comparison, title, number) for number, title in enumerate(comparison.titles, 1)],
        state_of=state_of,
    )
    write_atomically(folder / "compare.csv", comparison_csv(comparison).encode("utf-8", "replace"))
    write_atomically(page, html.encode("utf-8", "replace"))
    return page


def _tiles(comparison: StoreComparison) -> list[dict[str, Any]]:
    """The headline's measures: one difference in full, or of several how many say what."""
    tiles = []
    for title, differences in headline(comparison).by_measure:
        kinds = [kind for _, kind in differences]
        counts = [(SIGNS[kind], kind, kinds.count(kind)) for kind in SIGNS if kinds.count(kind)]
        one = shown_difference(differences[0][0]) if len(differences) == 1 else None
        tiles.append({"title": title[:1].upper() + title[1:], "one": one, "counts": counts, "of": len(kinds)})
    return tiles


def _section(comparison: StoreComparison, title: str, number: int) -> dict[str, Any]:
    """What the page shows of one attack. Measures that no seed changes are named, and have no row."""
    pairs = []
    for pair, rows in differing(comparison, title):
        kept = [row for row in rows if row["kind"] != "same"]
        pairs.append((pair, kept, [row["measure"] for row in rows if row["kind"] == "same"]))
    drawn = draw_differences([pair for pair, _, _ in pairs])
    count = sum(len(kept) for _, kept, _ in pairs)
    return {
        "title": title,
        "folded": count if count > OPEN_ROWS else 0,
        "settings": settings(comparison, title),
        "same": identical(comparison, title),
        "pairs": pairs,
        "plots": [
            {"name": panel.name, "about": panel.last, "svg": Markup(embed(panel, f"c{number}-{place}"))}
            for place, panel in enumerate(drawn)
        ],
    }


def remarks(comparison: StoreComparison) -> list[str]:
    """The remarks at the top: modified suites, and different ones."""
    sides = [comparison.one] if comparison.one.defense else [comparison.one, comparison.other]
    sentences = [
        f"{f'{side.name} is' if len(sides) > 1 else 'The suite is'} modified: {', '.join(side.modified)}."
        for side in sides
        if side.modified
    ]
    if comparison.one.fingerprint != comparison.other.fingerprint:
        sentences.append(
            "The suites have different fingerprints, so they are not the same set of cells; what differs in those "
            "that both have stands with each comparison."
        )
    return sentences


def settings(comparison: StoreComparison, title: str) -> list[str]:
    """The settings that differ between the cells of a comparison."""
    return list(dict.fromkeys(text for pair in comparison.of(title) for text in pair.settings))


def identical(comparison: StoreComparison, title: str) -> list[str]:
    """The lines of a comparison that are identical on both sides."""
    return [
        pair.name for pair in comparison.of(title) if pair.state == "identical" and not told(pair) and not pair.missing
    ]


def told(pair: LinePair) -> list[Difference]:
    """The differences to show: all, but for identical cells only differing comparative scores."""
    same = pair.state == "identical"
    return [each for each in pair.differences if not same or any(value for _, value in each.change.points)]


def shown_difference(each: Difference) -> dict[str, Any]:
    """A difference as text: A, B, and B - A with its interval or its points."""
    unit, change = each.column.unit, each.change
    percent = max(each.one, each.other) <= 1

    def signed(value: float) -> str:
        return write_signed(value, unit, percent)

    if change.kind == "interval":
        counted = f" {change.count.text()}" if change.count else ""
        detail = f"[{signed(change.low)}, {signed(change.high)}]{counted}"
    else:
        detail = f"({', '.join(signed(value) for value in sorted(value for _, value in change.points))})"
    alone = len(change.points) == 1
    return {
        "measure": each.column.title if percent or unit != "rate" else each.column.title.replace("ASR", "outcome"),
        "one": write_value(each.one, unit, percent),
        "other": write_value(each.other, unit, percent),
        "change": Shown(signed(change.mean), "" if alone else detail.replace(f"{NBSP}{POINTS}", "")),
        "seeds": len(change.points),
        "kind": verdict(each),
        "verdict": SIGNS[verdict(each)],
    }


def state_of(pair: LinePair) -> str:
    """The remark on a line, beside its differences."""
    if pair.state == "contradictory":
        return "same cell, different scores"
    if not pair.differences:
        return "no seed has a score on both sides"
    if pair.state == "identical":
        return "the very same cells with the same scores"
    return ""


def differing(comparison: StoreComparison, title: str) -> list[tuple[LinePair, list[dict[str, Any]]]]:
    """The other lines, each with its differences as text."""
    same = identical(comparison, title)
    return [
        (pair, [shown_difference(each) for each in told(pair)])
        for pair in comparison.of(title)
        if pair.name not in same
    ]


def comparison_as_data(comparison: StoreComparison) -> dict[str, Any]:
    """A comparison as plain data, unrounded; numbers that are not finite are None."""

    def side(run: ComparedRun) -> dict[str, Any]:
        of_suite = {"suite": run.title, "fingerprint": run.fingerprint, "modified": list(run.modified)}
        return {"store": run.where, "defense": run.defense or None, **of_suite}

    def difference(each: Difference) -> dict[str, Any]:
        change = each.change
        limits = {} if change.kind == "equal" else {"low": finite(change.low), "high": finite(change.high)}
        return {
            "measure": each.column.measure, "mean_a": finite(each.one), "mean_b": finite(each.other),
            "difference": finite(change.mean), "limits": change.kind, **limits,
            "by_seed": {str(seed): finite(value) for seed, value in change.points},
        }  # fmt: skip

    return {
        "a": side(comparison.one),
        "b": side(comparison.other),
        "remarks": remarks(comparison),
        "lines": [
            {
                "comparison": pair.title, "line": pair.name, "state": pair.state, "settings": list(pair.settings),
                "problems": [*pair.contradictions, *pair.missing],
                "differences": [difference(each) for each in pair.differences],
            }
            for pair in comparison.pairs
        ],
        "alone": list(comparison.alone),
    }  # fmt: skip


def comparison_csv(comparison: StoreComparison) -> str:
    """One line per comparison, line and measure, unrounded; A and B are means over common seeds.

    If the difference is the same at all seeds, there are no limits.
    """
    head = ["comparison", "line", "a", "b", "state", "measure", "seeds", "mean_a", "mean_b", "difference"]
    lines: list[list[object]] = [[*head, "low", "high", "limits", "differences", "problem"]]
    sides = [side.defense or side.where for side in (comparison.one, comparison.other)]
    for pair in comparison.pairs:
        by_measure = {each.column.measure: each for each in pair.differences}
        problem = "; ".join((*pair.contradictions, *pair.missing))
        for measure in (column.measure for column in MEASURES if column.measure in by_measure):
            each = by_measure[measure]
            change = each.change
            limits = ("", "") if change.kind == "equal" else (change.low, change.high)
            numbers = (each.one, each.other, change.mean, *limits)
            points = " ".join(f"{seed}:{value!r}" for seed, value in change.points)
            who = [pair.title, pair.name, *sides, pair.state, measure, len(change.points)]
            lines.append([*who, *numbers, change.kind, points, problem])
        if not by_measure:
            lines.append([pair.title, pair.name, *sides, pair.state, *[""] * 9, problem])
    return csv_of(lines)
