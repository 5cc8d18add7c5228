# tests/test_filter.py
import pytest
from my_defense import PlausibleOpening

from thiefbench.testing import assert_robust


@pytest.mark.thiefbench(attack="text")
def test_recorded_rounds(thiefbench):
    result = thiefbench.replay(defense=PlausibleOpening())
    assert_robust(result, stop_rate=">0.95", false_rejection_rate="<0.05", placebo_rejection_rate="<0.05")
