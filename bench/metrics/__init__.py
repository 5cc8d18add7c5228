"""The benchmark's measures as modules of Hugging Face's `evaluate`: `evaluate.load(metrics.path("stop_rate"))`.

They need `pip install '.[metrics]'` in a checkout and no network. Nothing else in the package imports `evaluate`.
"""

from __future__ import annotations

from pathlib import Path

NAMES = ("attack_success_rate", "harm_prevented", "stop_rate")


def path(name: str) -> str:
    """The folder to give to `evaluate.load`.

    Raises:
        ValueError: there is no such metric; the message lists the existing ones.
    """
    if name not in NAMES:
        raise ValueError(f"there is no metric named {name!r}; known: {', '.join(NAMES)}")
    return str(Path(__file__).parent / name)
