"""Small multiples: a panel for each defense, all with the same axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from thiefbench.suite.report.drawing import SETTINGS, PanelDrawing, Plot, png_of, short_label, svg_of
from thiefbench.suite.report.plotting import Figure, settings
from thiefbench.suite.report.series import Scale, Series, draw_series, frame, in_words, what_bands_are

_SIZE = (2.1, 1.3)
_MARGINS = {"left": 0.26, "right": 0.95, "bottom": 0.17, "top": 0.92}  # the same in each, so that axes line up
_FILE_COLUMNS, _FILE_PANEL = 4, (2.2, 1.7)
_FONT, _STEPS = 8.5, 3


@dataclass(frozen=True)
class Panel:
    """What a panel shows: one line with its band, and others to compare it with."""

    name: str
    one: Series
    others: tuple[Series, ...]

    @property
    def lines(self) -> list[Series]:
        """All that have a value, its own first."""
        return [series for series in (self.one, *self.others) if series.mean]


def draw_panels(name: str, title: str, panels: Sequence[Panel], footer: str, png: bool) -> Plot:
    """The panels of one plot, each as a drawing of its own, and all of them as one PNG, if `png` asks for it."""
    every = [one for panel in panels for one in panel.lines]
    scale = Scale.of(name, every)
    last, top = max(one.mean[-1][0] for one in every) or 1, _top(every, scale)
    note = what_bands_are([panel.one for panel in panels if panel.one.mean])

    def draw(axes: Any, panel: Panel) -> None:
        for other in panel.others:
            mean = [(number, value * scale.factor) for number, value in other.mean]
            look = {"color": other.style.colour, "linestyle": other.style.dashes}
            axes.plot(*zip(*mean, strict=True), linewidth=1.1, clip_on=False, **look)
        if panel.one.mean:
            draw_series(axes, replace(panel.one, faint=()), scale.factor, sparse=False)
        axes.set_xlim(0, last)
        axes.locator_params(axis="y", nbins=_STEPS)
        frame(axes, scale)
        axes.set_ylim(0, top)
        axes.set_xticks(sorted({0, round(last / 2), last}))

    def drawn(panel: Panel) -> PanelDrawing:
        figure = Figure(figsize=_SIZE)
        figure.subplots_adjust(**_MARGINS)
        draw(figure.subplots(), panel)
        end = scale.written(panel.one.mean[-1][1]).replace(" ", "\u00a0") if panel.one.mean else ""
        return PanelDrawing(panel.name, in_words(f"{title}, {panel.name}", panel.lines, scale), end, svg_of(figure))

    with settings({**SETTINGS, "font.size": _FONT, "svg.hashsalt": name}):
        drawings = tuple(drawn(panel) for panel in panels)
        image = b""
        if png:
            rows = -(-len(panels) // _FILE_COLUMNS)
            size = (_FILE_PANEL[0] * min(len(panels), _FILE_COLUMNS), _FILE_PANEL[1] * rows)
            figure = Figure(figsize=size, layout="constrained")
            figure.suptitle(f"{title} by round", x=0.01, ha="left", fontsize=10)
            grid = figure.subplots(rows, min(len(panels), _FILE_COLUMNS), squeeze=False).ravel()
            for axes, panel in zip(grid, panels, strict=False):
                draw(axes, panel)
                axes.set_title(short_label(panel.name), fontsize=7.5, color=panel.one.style.colour, parse_math=False)
            for empty in grid[len(panels) :]:
                empty.set_axis_off()
            image = png_of(figure, f"{footer}. {note}" if note else footer)
    names = dict.fromkeys(one.name for one in every)
    once = [next(one for one in every if one.name == each) for each in names]
    return Plot(name, in_words(title, once, scale), note, image, "", drawings)


def _top(every: Sequence[Series], scale: Scale) -> float:
    """The end of the vertical axis, so that all lines and bands lie below it."""
    highs = [high for one in every for _, _, high in one.band if high == high]
    highs += [p.high for one in every if one.seeds < 2 for curve in one.curves for p in curve if p.high is not None]
    highs += [value for one in every for _, value in one.mean]
    return scale.end(1.05 * max(highs) * scale.factor)
