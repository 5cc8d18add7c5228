"""What all tests of the leaderboard share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from thiefbench import trust


@pytest.fixture(autouse=True)
def trusting() -> Iterator[None]:
    """The tiny suite that counts as released here has an attack in a file of these tests."""
    with trust.plugins():
        yield
