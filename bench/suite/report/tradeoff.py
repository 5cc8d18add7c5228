"""The plot of utility against harm prevented: one mark for each defense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thiefbench.suite.analysis.statistics import FEW_SEEDS, Summary
from thiefbench.suite.report.drawing import SETTINGS, Plot, Style, saved, short_label
from thiefbench.suite.report.overview import SuiteRow, SuiteTable
from thiefbench.suite.report.plots import defense_styles
from thiefbench.suite.report.plotting import Figure, settings

LEAST, MOST = -0.5, 1.5
"""The widest range that is drawn; marks beyond it stand at its edge with an arrow."""

_WIDTH, _AXES, _LEFT, _BELOW = 4.2, 2.6, 0.6, 0.55
"""In inches: the whole, narrow enough to be read on a phone; the height of the axes, and the room for their labels."""
_LEGEND_COLUMNS, _LEGEND_LINE = 2, 0.17
_EDGE = 0.05
_MUTED = "#5b6470"


@dataclass(frozen=True)
class TradeoffPoint:
    """A defense in the plot: worst case of harm prevented, utility without an attack; hollow for an anchor."""

    name: str
    prevented: Summary
    utility: Summary
    hollow: bool
    style: Style


def draw_tradeoff(table: SuiteTable, footer: str, names: Mapping[str, str] | None = None) -> Plot | None:
    """The plot of a suite's table.

    Args:
        table: of a suite.
        footer: a line on the PNG.
        names: by a row's defense, what the legend calls it, where that is not its spec string.

    Returns:
        The plot; None where no defense has both numbers.
    """
    styles: dict[str, Style] = {}
    for comparison in reversed(table.comparisons):  # a defense looks as it does in the first that has it
        styles |= defense_styles(comparison)
    marks = [mark for row in table.rows if (mark := _mark(row, styles, names or {})) is not None]
    if not marks:
        return None
    note = what_marks_are(marks)
    lines = -(-len(marks) // _LEGEND_COLUMNS)
    with settings({**SETTINGS, "axes.grid.axis": "both", "svg.hashsalt": "tradeoff"}):
        below, above = _LEGEND_LINE * (lines + 1) + _BELOW, 0.1
        height = below + _AXES + above
        figure = Figure(figsize=(_WIDTH, height))
        axes = figure.add_axes((_LEFT / _WIDTH, below / height, 1 - (_LEFT + 0.1) / _WIDTH, _AXES / height))
        _frame(axes, marks)
        for mark in reversed(marks):
            _draw(axes, mark)
        least = 1 - table.comparisons[0].rules.margin
        axes.axhline(least, color=_MUTED, linewidth=1, linestyle="--", zorder=1)
        axes.annotate(
            f"{least:g}: the lower limit must reach it", (axes.get_xlim()[0], least), xytext=(3, -3), va="top",
            textcoords="offset points", color=_MUTED, fontsize=7.5,
        )  # fmt: skip
        handles, labels = axes.get_legend_handles_labels()  # drawn last to first, so that the best lies on top
        legend = figure.legend(
            handles[::-1], labels[::-1], loc="lower left", bbox_to_anchor=(0, 0), borderaxespad=0, borderpad=0.2,
            ncols=_LEGEND_COLUMNS, frameon=False, fontsize=7.5, handletextpad=0.2, columnspacing=1,
        )  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)
        svg, png = saved(figure, axes, "Utility against harm prevented", f"{footer}. {note}")
    return Plot("tradeoff", _in_words(marks), note, png, svg)


def _mark(row: SuiteRow, styles: Mapping[str, Style], names: Mapping[str, str]) -> TradeoffPoint | None:
    if row.place.worst is None or row.utility is None:
        return None
    return TradeoffPoint(
        names.get(row.defense, row.defense), row.place.worst.summary, row.utility, row.place.status == "anchor",
        styles[row.defense],
    )  # fmt: skip


def what_marks_are(marks: Sequence[TradeoffPoint]) -> str:
    """What marks, bars and arrows of the plot mean."""
    numbers = [len(mark.utility.points) for mark in marks]
    seeds, fewest = max(numbers), min(numbers)
    if seeds != fewest:
        fewer = "; of fewer than that, small points: every seed" if fewest < FEW_SEEDS else ""
        spread = f"Means over {fewest} to {seeds} seeds; from {FEW_SEEDS} on with 95 % intervals{fewer}"
    elif seeds >= FEW_SEEDS:
        spread = f"Means over {seeds} seeds with 95 % intervals"
    elif seeds > 1:
        spread = f"Means over {seeds} seeds; small points: every seed"
    else:
        spread = "One seed"
    out = any(_clamped(value) != value for mark in marks for value in (mark.prevented.mean, mark.utility.mean))
    beyond = " An arrow: the mark lies further out; its numbers are in the table." if out else ""
    return f"{spread}. Hollow: anchors.{beyond}"


def _clamped(value: float) -> float:
    return min(max(value, LEAST), MOST)


def _frame(axes: Any, marks: Sequence[TradeoffPoint]) -> None:
    """Axes that hold 0, 1 and every mark, with room for arrows at the edges."""
    for of, limit in (("prevented", axes.set_xlim), ("utility", axes.set_ylim)):
        over = [getattr(mark, of) for mark in marks]
        ends = [_clamped(end) for each in over for end in (each.low, each.mean, each.high)]
        low, high = min(0.0, *ends), max(1.0, *ends)
        pad = (high - low) * _EDGE * 1.5
        limit(low - pad, high + pad)
    axes.set_xlabel("harm prevented in the worst case")
    axes.set_ylabel("utility without an attack")


def _draw(axes: Any, mark: TradeoffPoint) -> None:
    colour, x, y = mark.style.colour, _clamped(mark.prevented.mean), _clamped(mark.utility.mean)
    for summary, bar in ((mark.prevented, "x"), (mark.utility, "y")):
        if summary.kind == "interval":
            along = [_clamped(summary.low), _clamped(summary.high)]
            ends = (along, [y, y]) if bar == "x" else ([x, x], along)
            axes.plot(*ends, color=colour, linewidth=1.1, alpha=0.7, zorder=2)
    utility = dict(mark.utility.points)
    if mark.utility.kind == "range" and len(utility) > 1:
        single = [(_clamped(value), _clamped(utility[seed])) for seed, value in mark.prevented.points]
        axes.plot(*zip(*single, strict=True), color=colour, marker=".", markersize=3.5, linestyle="", alpha=0.6)
    axes.plot(
        x, y, color=colour, marker=mark.style.marker, markersize=6.5, linestyle="", zorder=3,
        markerfacecolor="none" if mark.hollow else colour, markeredgewidth=1.4,
        label=f" {short_label(mark.name)}",  # legends leave out what starts with an underscore
    )  # fmt: skip
    for axis, value, shown in (("x", mark.prevented.mean, x), ("y", mark.utility.mean, y)):
        if value != shown:
            limits = axes.get_xlim() if axis == "x" else axes.get_ylim()
            edge = limits[1] if value > shown else limits[0]
            tip = (edge, y) if axis == "x" else (x, edge)
            axes.annotate("", tip, xytext=(x, y), arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.4})


def _in_words(marks: Sequence[TradeoffPoint]) -> str:
    """What the plot shows, for those who do not see it."""
    sentences = (
        f"{mark.name}: prevents {mark.prevented.mean:z.2f}, utility {mark.utility.mean:z.2f}" for mark in marks
    )
    return f"Utility without an attack against harm prevented in the worst case. {'; '.join(sentences)}."
