"""What the report's plots share: colours, labels, and how a drawing becomes a PNG and a part of the page."""

from __future__ import annotations

import io
import re
import textwrap
from dataclasses import dataclass
from typing import Any

from markupsafe import escape

from thiefbench.suite.report.plotting import Figure

# Okabe and Ito's palette, darkened to 4.5:1 on white; the page exchanges every colour for a variable of this name.
INK = {"#1b1f24": "--ink", "#5b6470": "--muted", "#dfe3e8": "--rule"}
FIXED = {("attack", "none"): ("#c2410c", "--c-none"), ("control", "none"): ("#00795a", "--c-control")}
PLACEBO = ("#6b7480", "--c-placebo")
DEFENSES = (
    ("#0060a8", "--c-1"), ("#a3478f", "--c-2"), ("#8a6100", "--c-3"), ("#1f7d94", "--c-4"), ("#5a4fcf", "--c-5"),
)  # fmt: skip
MARKERS = ("s", "D", "^", "v", "P", "X", "*")
SETTINGS = {
    "font.size": 9.0, "font.family": "sans-serif", "axes.spines.top": False, "axes.spines.right": False,
    "axes.spines.left": False, "axes.edgecolor": "#5b6470", "axes.labelcolor": "#5b6470", "text.color": "#1b1f24",
    "xtick.color": "#5b6470", "ytick.color": "#5b6470", "ytick.left": False, "axes.grid": True, "axes.grid.axis": "y",
    "grid.color": "#dfe3e8", "grid.linewidth": 0.8, "axes.axisbelow": True, "svg.fonttype": "none",
    "axes.titlelocation": "left", "axes.titlesize": 10.0,
}  # fmt: skip
LABEL_LIMIT = 28
_LETTERS_PER_INCH = 20


@dataclass(frozen=True)
class Style:
    """How a line of the comparison looks in every plot, and which CSS variable holds its colour on the page."""

    colour: str
    variable: str
    marker: str
    dashes: str


@dataclass(frozen=True)
class PanelDrawing:
    """A part of a plot.

    Attributes:
        name: of the line that it shows.
        alt: what it shows, in words.
        last: where its line ends, in writing; empty where it has none.
        svg: its markup, safe to embed.
    """

    name: str
    alt: str
    last: str
    svg: str


@dataclass(frozen=True)
class Plot:
    """A finished plot.

    Attributes:
        name: a short one, for its file.
        alt: what it shows, in words.
        note: what its lines and bands are, where that is not one seed.
        png, svg: its bytes, empty where none were asked for, and its markup, safe to embed.
        panels: its parts, where each line has one of its own; `svg` is empty then.
        right: where its axes end, as a share of the drawing's width; what lies further right is labels.
    """

    name: str
    alt: str
    note: str
    png: bytes
    svg: str
    panels: tuple[PanelDrawing, ...] = ()
    right: float = 1.0


def short_label(name: str) -> str:
    """The end of a long name."""
    return name if len(name) <= LABEL_LIMIT else f"\u2026{name[1 - LABEL_LIMIT :]}"


def saved(figure: Figure, axes: Any, title: str, footer: str, png: bool = True) -> tuple[str, bytes]:
    """A drawing as SVG, for a page that gives it its title, and as PNG with title and footer where that is wanted."""
    svg = svg_of(figure)
    if not png:
        return svg, b""
    axes.set_title(title, color="#1b1f24", pad=8)
    return svg, png_of(figure, footer)


def svg_of(figure: Figure) -> str:
    """A drawing for a page."""
    svg = io.StringIO()
    figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
    return svg.getvalue()


def png_of(figure: Figure, footer: str) -> bytes:
    """A drawing as a file of its own, with a footer."""
    image = io.BytesIO()
    lines = "\n".join(textwrap.wrap(footer, round(figure.get_figwidth() * _LETTERS_PER_INCH)))
    # Below the figure: the layout would put it over a legend that stands outside the axes.
    figure.text(0.01, -0.015, lines, va="top", size=6.5, color="#5b6470", parse_math=False)
    figure.savefig(image, format="png", dpi=200, facecolor="white", bbox_inches="tight", pad_inches=0.08)
    return image.getvalue()


def embed(plot: Plot | PanelDrawing, prefix: str) -> str:
    """The SVG as part of a page: no document head, ids of its own, colours from the page, a text alternative.

    Args:
        plot: what to embed.
        prefix: makes its ids unique on the page.
    """
    svg = plot.svg[plot.svg.index("<svg") :]
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.DOTALL)
    head, _, body = svg.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    body = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{prefix}-", body)
    body = re.sub(r"font-family: [^;\"]*;?", "", body)
    for colour, variable in (*INK.items(), *FIXED.values(), PLACEBO, *DEFENSES):
        body = body.replace(colour, f"var({variable})")
    return f'<svg {box.group()} role="img" aria-label="{escape(plot.alt)}">{body}'
