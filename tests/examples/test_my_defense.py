"""The defense in the documentation also keeps the contract in a composition."""

from __future__ import annotations

from pathlib import Path

from thiefbench.testing.contracts import DefenseContract


class TestComposed(DefenseContract):
    defense = f"{Path(__file__).with_name('my_defense.py')}:PlausibleOpening(floor=-3.0)+similarity"
