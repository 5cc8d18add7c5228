"""The plots of one attack: curves by round, one line for each trained swarm."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from thiefbench.suite.analysis.comparison import Comparison
from thiefbench.suite.analysis.statistics import FEW_SEEDS, summarize
from thiefbench.suite.report.drawing import (
    DEFENSES,
    FIXED,
    MARKERS,
    PLACEBO,
    SETTINGS,
    Plot,
    Style,
    saved,
    short_label,
)
from thiefbench.suite.report.plotting import Figure, settings
from thiefbench.suite.store.records import Point

LABEL_WIDTH = 20


@dataclass(frozen=True)
class Series:
    """One line of a plot: a curve per seed, and optionally a finer one that is drawn faintly behind it."""

    name: str
    style: Style
    curves: tuple[tuple[Point, ...], ...]
    faint: tuple[tuple[Point, ...], ...] = ()

    @property
    def seeds(self) -> int:
        """How many seeds have a curve."""
        return sum(any(point.value is not None for point in curve) for curve in self.curves)

    @property
    def mean(self) -> list[tuple[int, float]]:
        """(round, mean over the seeds that have a value there)."""
        return [(number, sum(values) / len(values)) for number, values in self._by_round()]

    @property
    def band(self) -> list[tuple[int, float, float]]:
        """(round, low, high) of the mean over several seeds, see `Summary`; NaN where a seed has no value."""
        if self.seeds < 2:
            return []
        band = []
        for number, values in self._by_round():
            whole = len(values) == self.seeds
            over = summarize(dict(enumerate(values))) if whole else None
            band.append((number, over.low if over else math.nan, over.high if over else math.nan))
        return band

    def _by_round(self) -> list[tuple[int, list[float]]]:
        rounds: dict[int, list[float]] = {}
        for curve in self.curves:
            for point in curve:
                if point.value is not None:
                    rounds.setdefault(point.round, []).append(point.value)
        return sorted(rounds.items())


def styles(comparison: Comparison) -> dict[str, Style]:
    """A style for every trained line, by its name; colours follow the order of the defenses in the suite."""
    by_line: dict[str, Style] = {}
    by_defense = defense_styles(comparison)
    for line in comparison.lines:
        if line.how != "trained":
            continue
        dashes = "-" if line.role == "attack" else "--"
        if line.role == "placebo":
            by_line[line.name] = Style(*PLACEBO, "x", ":")
        elif (line.role, line.defense) in FIXED:
            by_line[line.name] = Style(*FIXED[line.role, line.defense], "o", dashes)
        else:
            by_line[line.name] = replace(by_defense[line.defense], dashes=dashes)
    return by_line


def defense_styles(comparison: Comparison) -> dict[str, Style]:
    """A style for every defense, trained or not, by its spec string."""
    styles_by_defense = {"none": Style(*FIXED["attack", "none"], "o", "-")}
    for number, defense in enumerate(dict.fromkeys(ln.defense for ln in comparison.lines if ln.defense != "none")):
        styles_by_defense[defense] = Style(*DEFENSES[number % len(DEFENSES)], MARKERS[number % len(MARKERS)], "-")
    return styles_by_defense


def draw_all(comparison: Comparison, footer: str, png: bool = True) -> list[Plot]:
    """The plots of one attack; those without data are left out. `footer` stands on every PNG, if `png` asks for it."""
    wide, small = (5.8, 3.2), (4.2, 2.9)
    attacked = [line.name for line in comparison.defended]
    every = [name for name in ("no attack", "placebo", "none") if comparison.line(name)] + attacked
    curves = (
        ("asr", "Attack success rate", "eval_asr", "train_asr", every, wide),
        ("reward", "Clean reward", "eval_reward", "", every, small),
        ("stop-rate", "Stop rate", "stop_rate", "", attacked, small),
        ("false-rejection", "False rejection rate", "false_rejection_rate", "", attacked, small),
    )
    plots = []
    for name, title, curve, faint, names, size in curves:
        found = [_series(comparison, line, curve, faint) for line in names]
        series = [one for one in found if one.mean]
        if series:
            plots.append(_draw(name, title, series, size, footer, png))
    return plots


def _series(comparison: Comparison, name: str, curve: str, faint: str) -> Series:
    records = [record for cell, record in comparison.finished if cell.name == name]

    def curves(key: str) -> tuple[tuple[Point, ...], ...]:
        return tuple(tuple(record.curves.get(key, ())) for record in records) if key else ()

    return Series(name, styles(comparison)[name], curves(curve), curves(faint))


def _draw(name: str, title: str, series: Sequence[Series], size: tuple[float, float], footer: str, png: bool) -> Plot:
    values = [value for one in series for _, value in one.mean]
    percent = name != "reward" and max(values) <= 1
    scale = 100 if percent else 1
    with settings({**SETTINGS, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        for one in reversed(series):
            _draw_series(axes, one, scale, sparse=name in ("asr", "reward"))
        axes.set_xlim(0, max(one.mean[-1][0] for one in series) or 1)
        _frame(axes, percent, max(values) <= 1)
        _label_ends(figure, axes, series, scale)
        note = what_bands_are(series)
        svg, image = saved(figure, axes, title, f"{footer}. {note}" if note else footer, png)
    return Plot(name, _in_words(title, series, percent), note, image, svg)


def what_bands_are(series: Sequence[Series]) -> str:
    """What lines and bands of a plot over several seeds mean; empty where every line has one seed."""
    if all(one.seeds < 2 for one in series):
        return ""
    named: dict[str, list[str]] = {}
    for one in series:
        if one.seeds >= FEW_SEEDS:
            band = f"95 % Student-t interval over {one.seeds} seeds"
        elif one.seeds > 1:
            band = f"smallest to largest of {one.seeds} seeds, which are the thin lines"
        else:
            band = "one seed, 95 % interval over its answers"
        named.setdefault(band, []).append(one.name)
    if len(named) == 1:
        return f"Line: mean over seeds; band: {next(iter(named))}."
    return (
        "Line: mean over seeds; band: " + "; ".join(f"{band} ({', '.join(who)})" for band, who in named.items()) + "."
    )


def _draw_series(axes: Any, one: Series, scale: int, sparse: bool) -> None:
    """Single curves where they are few, the band, then the mean on top."""
    look = {"color": one.style.colour, "linestyle": one.style.dashes}
    for curve in one.faint if one.seeds < 2 else one.curves if one.seeds < FEW_SEEDS else ():
        points = [(p.round, p.value * scale) for p in curve if p.value is not None]
        if points:
            axes.plot(*zip(*points, strict=True), linewidth=0.7, alpha=0.4, **look)
    alone = [p for curve in one.curves for p in curve] if one.seeds < 2 else []
    band = one.band or [(p.round, p.low, p.high) for p in alone if p.low is not None and p.high is not None]
    if band:
        scaled = [(number, low * scale, high * scale) for number, low, high in band]
        axes.fill_between(*zip(*scaled, strict=True), color=one.style.colour, alpha=0.16, linewidth=0)
    marker = {"marker": one.style.marker, "markersize": 4} if sparse else {}
    width = 1.9 if sparse else 1.3
    mean = [(number, value * scale) for number, value in one.mean]
    axes.plot(*zip(*mean, strict=True), linewidth=width, clip_on=False, **look, **marker)


def _frame(axes: Any, percent: bool, rate: bool) -> None:
    axes.set_xlabel("round")
    axes.xaxis.get_major_locator().set_params(integer=True)
    high = axes.get_ylim()[1]
    one = 100 if percent else 1
    axes.set_ylim(0, max(min(high, one), one / 10) if rate else high)
    if percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")


def _label_ends(figure: Figure, axes: Any, series: Sequence[Series], scale: int) -> None:
    """Write every name beside the end of its line, pushed apart where ends meet."""
    texts = [_label(one.name) for one in series]
    bottom, top = axes.get_ylim()
    line_height = (top - bottom) * 12 / (figure.get_figheight() * 72 * 0.8)
    heights = [line_height * (text.count("\n") + 1) for text in texts]
    ends = [one.mean[-1][1] * scale for one in series]
    right = max(one.mean[-1][0] for one in series)
    for one, text, y in zip(series, texts, _spread(ends, heights, bottom, top), strict=True):
        axes.annotate(
            text, (right, y), xytext=(9, 0), textcoords="offset points", va="center", color=one.style.colour,
            annotation_clip=False, parse_math=False, fontweight="bold", fontsize=8.5,
        )  # fmt: skip


def _label(name: str) -> str:
    """A name on lines short enough for the margin; of a long path the end is what tells."""
    return "\n".join(short_label(line) for line in textwrap.wrap(name, LABEL_WIDTH, break_long_words=False))


def _spread(ends: Sequence[float], heights: Sequence[float], bottom: float, top: float) -> list[float]:
    """Positions near `ends`, in their order, no two closer than half the sum of their heights.

    Labels are pushed up from `bottom`; where that ends above `top`, down again from there.
    """
    order = sorted(range(len(ends)), key=lambda i: ends[i])
    placed, floor, ceiling = list(ends), bottom - max(heights) / 2, top + max(heights) / 2
    for i in order:
        placed[i] = max(ends[i], floor + heights[i] / 2)
        floor = placed[i] + heights[i] / 2
    for i in reversed(order):
        placed[i] = min(placed[i], ceiling - heights[i] / 2)
        ceiling = placed[i] - heights[i] / 2
    return placed


def _in_words(title: str, series: Sequence[Series], percent: bool) -> str:
    """What the plot shows, for those who do not see it: where each line starts and ends."""

    def said(value: float) -> str:
        return f"{100 * value:.1f} %" if percent else f"{value:.3f}"

    def ends(mean: list[tuple[int, float]]) -> str:
        return ", ".join(f"{said(value)} at round {number}" for number, value in (mean[0], mean[-1]))

    parts = [f"{one.name}: {ends(one.mean)}" for one in series]
    return f"{title} by round. {'; '.join(parts)}."
