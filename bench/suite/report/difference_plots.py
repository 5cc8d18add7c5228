"""Plots of paired differences: a panel for each measure, a row for each line, a point for each seed."""

from __future__ import annotations

from collections.abc import Sequence

from thiefbench.suite.analysis.differences import Difference, LinePair
from thiefbench.suite.analysis.measures import REJECTED, STOPPED, Column
from thiefbench.suite.report.drawing import FIXED, PLACEBO, SETTINGS, PanelDrawing, short_label, svg_of
from thiefbench.suite.report.plotting import Figure, settings
from thiefbench.suite.report.tables import write_signed
from thiefbench.suite.report.verdicts import SIGNS, WANTED, Kind, verdict

_WIDTH, _ROW, _MARGIN = 3.2, 0.36, 0.34
_PAD = 0.12
_PLOTTED = ("asr", "harm_prevented", *STOPPED, *REJECTED, "utility")
_LOOKS: dict[Kind, tuple[str, str]] = {
    "better": (FIXED["control", "none"][0], "^"),
    "worse": (FIXED["attack", "none"][0], "v"),
}
_OTHER_LOOK = (PLACEBO[0], "o")


def draw_differences(pairs: Sequence[LinePair]) -> list[PanelDrawing]:
    """A panel for each of the measures that matter most in which a line differs at a seed.

    A panel's `name` is the measure, its `last` the unit and what is better.
    """
    by_measure: dict[str, list[tuple[str, Difference]]] = {measure: [] for measure in _PLOTTED}
    for pair in pairs:
        for each in pair.differences:
            if each.column.measure in by_measure and verdict(each) != "same":
                by_measure[each.column.measure].append((pair.name, each))
    with settings({**SETTINGS, "font.size": 8.0, "axes.grid.axis": "x", "svg.hashsalt": "differences"}):
        return [_panel(rows[0][1].column, rows) for rows in by_measure.values() if rows]


def _panel(column: Column, rows: Sequence[tuple[str, Difference]]) -> PanelDrawing:
    rate = column.unit == "rate" and all(max(each.one, each.other) <= 1 for _, each in rows)
    factor = 100 if rate else 1
    figure = Figure(figsize=(_WIDTH, _ROW * len(rows) + _MARGIN))
    height = figure.get_figheight()
    figure.subplots_adjust(left=0.04, right=0.96, bottom=_MARGIN / height, top=1 - 0.02 / height)
    axes = figure.subplots()
    ends = [factor * end for _, each in rows for end in _ends(each)]
    low, high = min(0.0, *ends), max(0.0, *ends)
    pad = _PAD * (high - low)
    axes.set_xlim(low - pad, high + pad)
    axes.set_ylim(len(rows), 0)
    axes.set_yticks([])
    for number, (name, each) in enumerate(rows):
        colour, marker = _LOOKS.get(verdict(each), _OTHER_LOOK)
        y, change = number + 0.68, each.change
        axes.annotate(
            short_label(name), (0, number + 0.28), xycoords=("axes fraction", "data"), va="center", parse_math=False,
            fontweight="bold",
        )  # fmt: skip
        axes.plot([0, 0], [number + 0.48, number + 0.88], color="#5b6470", linewidth=1)
        if change.kind == "interval":
            axes.plot([factor * change.low, factor * change.high], [y, y], color=colour, linewidth=1.4)
        seeds = [factor * value for _, value in change.points]
        axes.plot(seeds, [y] * len(seeds), marker="|", markersize=6, linestyle="", color=colour, alpha=0.75)
        axes.plot(factor * change.mean, y, marker=marker, markersize=6, linestyle="", color=colour)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda value, _: write_signed(value, "seconds").rstrip("0").rstrip("."))
    said = "; ".join(
        f"{name} {write_signed(each.change.mean, column.unit, rate)}, {SIGNS[verdict(each)].partition(' ')[2]}"
        for name, each in rows
    )
    wanted = "more is better" if WANTED[column.measure] > 0 else "less is better"
    about = f"percentage points, {wanted}" if rate else wanted
    return PanelDrawing(column.title, f"{column.title}, B \u2212 A by line: {said}.", about, svg_of(figure))


def _ends(each: Difference) -> list[float]:
    limits = [each.change.low, each.change.high] if each.change.kind == "interval" else []
    return [value for _, value in each.change.points] + limits
