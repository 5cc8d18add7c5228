"""The defense that the documentation shows keeps the whole contract, alone and composed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.test_defenses import check_defense
from thiefbench import registry

SPEC = f"{Path(__file__).with_name('my_defense.py')}:PlausibleOpening"


@pytest.mark.parametrize("spec", [SPEC, f"{SPEC}(floor=-3.0)+similarity"])
def test_it_keeps_the_contract(spec: str) -> None:
    check_defense(lambda: registry.make("defense", spec))
