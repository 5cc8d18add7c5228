from __future__ import annotations

import pytest

from tests.defenses.pools import actions, offer, view
from thiefbench.defenses.staleness import Staleness


@pytest.mark.parametrize(
    ("version", "action", "score", "reason"),
    [
        (9, "accept", None, ""),
        (7, "accept", None, ""),
        (6, "drop", 3.0, "3 updates old"),
        (0, "drop", 9.0, "9 updates old"),
        (10, "drop", -1.0, "-1 updates old"),
        (None, "drop", 10.0, "says no version"),
    ],
)
def test_what_is_too_old_or_impossible_is_dropped(
    version: int | None, action: str, score: float | None, reason: str
) -> None:
    (verdict,) = Staleness(limit=2).inspect(view([offer("a b", version=version)], number=10))
    assert (verdict.action, verdict.score, verdict.reason) == (action, score, reason), (
        "in round 10 the current weights are 9 updates old; the limit counts from them, and there are no later ones"
    )


def test_rejection_may_be_the_papers() -> None:
    pool = [offer("a", version=0), offer("b", version=8)]
    assert actions(Staleness(limit=0, reject="zero").inspect(view(pool, number=9))) == ["zero", "accept"]


def test_it_needs_versions() -> None:
    assert Staleness.requires == {"versions"}


@pytest.mark.parametrize(("given", "message"), [({"limit": -1}, "limit"), ({"reject": "mask"}, "reject")])
def test_settings_that_make_no_sense_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"staleness: {message}"):
        Staleness(**given)  # type: ignore[arg-type]
