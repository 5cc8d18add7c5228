"""What it looks like when a filter is not good enough: these tests fail."""

import pytest
from my_filters import KnownPhrase, ShortAnswers

from thiefbench.testing import assert_robust

pytestmark = pytest.mark.thiefbench(attack="text")


def test_leaky(thiefbench):
    result = thiefbench.replay(defense=KnownPhrase())
    assert_robust(result, stop_rate=">0.95", false_rejection_rate="<0.05")


def test_overzealous(thiefbench):
    result = thiefbench.replay(defense=ShortAnswers())
    assert_robust(result, stop_rate=">0.95", false_rejection_rate="<0.05")
