"""Curves over seeds: what a line of a plot is made of, how it is drawn, and what its band means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thiefbench.suite.analysis.statistics import FEW_SEEDS, summarize
from thiefbench.suite.report.drawing import Style
from thiefbench.suite.store.records import Point


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


@dataclass(frozen=True)
class Scale:
    """The vertical axis of a plot.

    Attributes:
        percent: whether its values are written in percent.
        rate: whether none lies above 1.
    """

    percent: bool
    rate: bool

    @classmethod
    def of(cls, name: str, series: Sequence[Series]) -> Scale:
        """The axis of a plot of this name that holds all these lines."""
        rate = max(value for one in series for _, value in one.mean) <= 1
        return cls(name != "reward" and rate, rate)

    @property
    def factor(self) -> int:
        """What values are multiplied by."""
        return 100 if self.percent else 1

    def end(self, highest: float) -> float:
        """Where the axis ends to show values up to `highest`, both in units of the axis: a rate's at most at 1."""
        return max(min(highest, self.factor), self.factor / 10) if self.rate else highest

    def written(self, value: float) -> str:
        """A value of the axis, in words."""
        return f"{100 * value:.1f} %" if self.percent else f"{value:.3f}"


def draw_series(axes: Any, one: Series, factor: int, sparse: bool) -> None:
    """Single curves where they are few, the band, then the mean on top."""
    look = {"color": one.style.colour, "linestyle": one.style.dashes}
    for curve in one.faint if one.seeds < 2 else one.curves if one.seeds < FEW_SEEDS else ():
        points = [(p.round, p.value * factor) for p in curve if p.value is not None]
        if points:
            axes.plot(*zip(*points, strict=True), linewidth=0.7, alpha=0.4, **look)
    alone = [p for curve in one.curves for p in curve] if one.seeds < 2 else []
    band = one.band or [(p.round, p.low, p.high) for p in alone if p.low is not None and p.high is not None]
    if band:
        scaled = [(number, low * factor, high * factor) for number, low, high in band]
        axes.fill_between(*zip(*scaled, strict=True), color=one.style.colour, alpha=0.16, linewidth=0)
    marker = {"marker": one.style.marker, "markersize": 4} if sparse else {}
    width = 1.9 if sparse else 1.3
    mean = [(number, value * factor) for number, value in one.mean]
    axes.plot(*zip(*mean, strict=True), linewidth=width, clip_on=False, **look, **marker)


def frame(axes: Any, scale: Scale) -> None:
    """Whole rounds along, and upwards from 0 with what a rate needs."""
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(0, scale.end(axes.get_ylim()[1]))
    if scale.percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")


def in_words(title: str, series: Sequence[Series], scale: Scale) -> str:
    """What a plot shows, for those who do not see it: where each line starts and ends."""

    def ends(mean: list[tuple[int, float]]) -> str:
        return ", ".join(f"{scale.written(value)} at round {number}" for number, value in (mean[0], mean[-1]))

    parts = [f"{one.name}: {ends(one.mean)}" for one in series]
    return f"{title} by round. {'; '.join(parts)}."
