"""The plots of one attack: curves by round, together while they are few, in a panel for each defense from then on."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from thiefbench.suite.analysis.comparison import Comparison, Line
from thiefbench.suite.analysis.line_scores import judges_completions
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
from thiefbench.suite.report.line_names import line_label
from thiefbench.suite.report.panels import Panel, draw_panels
from thiefbench.suite.report.plotting import Figure, settings
from thiefbench.suite.report.series import Scale, Series, draw_series, frame, in_words, what_bands_are

LABEL_WIDTH = 20
_DOTTED = "false rejection"
TOGETHER = 2
"""Up to so many defenses share a plot: the bands of more lie on top of each other, and their names beside no line."""


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


def draw_all(
    comparison: Comparison, footer: str, png: bool = True, names: Mapping[str, str] | None = None
) -> list[Plot]:
    """The plots of one attack; those without data are left out.

    Args:
        comparison: of the attack.
        footer: stands on every PNG.
        png: whether there is one.
        names: by a line's name, what the plots call it, where that is another one.
    """
    crowded = sum(bool(line.scores("asr")) for line in comparison.defended) > TOGETHER
    return (_in_panels if crowded else _together)(comparison, footer, png, names or {})


def drawn_lines(comparison: Comparison) -> list[str]:
    """The lines of plots that show all of them; those of defenses without an attack only have a row in the table."""
    beside = [name for name in ("no attack", "placebo", "none") if comparison.line(name)]
    return beside + [line.name for line in comparison.defended]


def _together(comparison: Comparison, footer: str, png: bool, called: Mapping[str, str]) -> list[Plot]:
    """All lines in each plot."""
    wide, small = (5.8, 3.2), (4.2, 2.9)
    attacked, every = [line.name for line in comparison.defended], drawn_lines(comparison)
    curves = (
        ("asr", "Attack success rate", "eval_asr", "train_asr", every, wide),
        ("reward", "Clean reward", "eval_reward", "", every, small),
        ("stop-rate", "Stop rate", "stop_rate", "", attacked, small),
        ("false-rejection", "False rejection rate", "false_rejection_rate", "", attacked, small),
    )
    plots = []
    for name, title, curve, faint, names, size in curves if _judges_completions(comparison) else curves[:2]:
        found = [_series(comparison, line, curve, faint, called) for line in names]
        series = [one for one in found if one.mean]
        if series:
            plots.append(_draw(name, title, series, size, footer, png))
    return plots


def _in_panels(comparison: Comparison, footer: str, png: bool, called: Mapping[str, str]) -> list[Plot]:
    """A panel for each defense, with the lines that it is to be compared with."""
    beside = [name for name in ("no attack", "none") if comparison.line(name)]

    def panels(curve: str, faint: str, others: Sequence[str], dotted: str = "") -> list[Panel]:
        shown = []
        for line in _best_first(comparison):
            one = _series(comparison, line.name, curve, faint, called)
            more = [_series(comparison, name, curve, "", called) for name in others] if one.mean else []
            if dotted:
                second = _series(comparison, line.name, dotted, "", called)
                more.append(replace(second, name=_DOTTED, style=replace(second.style, dashes=":")))
            more = [other for other in more if other.mean]
            if one.mean or more:
                shown.append(Panel(called.get(line.name, line.name), one, tuple(more)))
        return shown

    drawn = (
        ("asr", "Attack success rate", panels("eval_asr", "train_asr", beside)),
        ("reward", "Clean reward", panels("eval_reward", "", beside)),
        ("rejections", "Stop rate and false rejection rate", panels("stop_rate", "", (), "false_rejection_rate")),
    )
    wanted = drawn if _judges_completions(comparison) else drawn[:2]
    return [draw_panels(name, title, shown, footer, png) for name, title, shown in wanted if shown]


def _judges_completions(comparison: Comparison) -> bool:
    """Whether the defenses of all finished cells do."""
    return all(judges_completions(record) for _, record in comparison.finished)


def _best_first(comparison: Comparison) -> list[Line]:
    """The defended lines that have a score, by what the attack reaches in the end, least first."""
    return sorted((line for line in comparison.defended if line.scores("asr")), key=reached)


def reached(line: Line) -> float:
    """What the attack reaches in the end under a defense that has a score, as the mean over seeds."""
    return fmean(score.value for score in line.scores("asr") if score.value is not None)


def _series(comparison: Comparison, name: str, curve: str, faint: str, called: Mapping[str, str]) -> Series:
    records = [record for cell, record in comparison.finished if cell.name == name]

    def curves(key: str) -> tuple[tuple[Any, ...], ...]:
        return tuple(tuple(record.curves.get(key, ())) for record in records) if key else ()

    return Series(called.get(name, line_label(name)), styles(comparison)[name], curves(curve), curves(faint))


def _draw(name: str, title: str, series: Sequence[Series], size: tuple[float, float], footer: str, png: bool) -> Plot:
    scale = Scale.of(name, series)
    with settings({**SETTINGS, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        for one in reversed(series):
            draw_series(axes, one, scale.factor, sparse=name in ("asr", "reward"))
        axes.set_xlim(0, max(one.mean[-1][0] for one in series) or 1)
        frame(axes, scale)
        axes.set_xlabel("round")
        _label_ends(figure, axes, series, scale.factor)
        note = what_bands_are(series)
        svg, image = saved(figure, axes, title, f"{footer}. {note}" if note else footer, png)
        right = float(axes.get_position().x1)
    return Plot(name, in_words(title, series, scale), note, image, svg, right=right)


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
            text, (right, y), xytext=(12, 0), textcoords="offset points", va="center", color=one.style.colour,
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
