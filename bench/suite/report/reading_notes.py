"""Sentences on how to read a table of results, which the terminal and the pages share."""

from __future__ import annotations

from typing import Final

CLUSTERED: Final = (
    "Stop rate and false rejection have wider intervals than as many independent verdicts would, because verdicts on "
    "the same sender or item are alike."
)


def doubt_note(why: str) -> str:
    """What is said of an attack that does not work without a defense.

    Args:
        why: a clause, as in `Comparison.why_inconclusive`.
    """
    return f"{why}. So these results do not show how well any defense works against this attack."


def honest_drift_note(controls: int) -> str:
    """What the drift and the divergence of a control are measured against, as it has no control of its own.

    Args:
        controls: how many of its attack are finished, one for each seed.
    """
    if controls > 1:
        return (
            "In the row \u201cno attack\u201d, drift compares the next seed's swarm without an attack with this one, "
            "which shows how much honest swarms differ."
        )
    return (
        "In the row \u201cno attack\u201d, drift compares the swarm's own answers with each other; an honest swarm "
        "trained with other random numbers is expected to drift at least as much. The others are compared with it."
    )
