"""The colours of a heat map's fields."""

from __future__ import annotations

from thiefbench.suite.report.plotting import mpl, to_hex, to_rgb

SCALE = (0, 25, 50, 75, 100)
"""Percent that a map's legend shows."""


def shade(rate: float) -> str:
    """Colours of a field as CSS: white to dark blue, which every kind of sight and a black-and-white print tells apart.

    The text is black or white, whichever contrasts more (WCAG 2.2, at least 4.5:1 on any shade).
    """
    background = to_hex(mpl.colormaps["Blues"](rate))
    channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(background)]
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), channels, strict=True))
    text = "#ffffff" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "#000000"
    return f"background:{background};color:{text}"


def legend() -> list[tuple[str, str]]:
    """What a map's legend shows: a share in writing, and its field's style."""
    return [(f"{percent}\u00a0%", shade(percent / 100)) for percent in SCALE]
