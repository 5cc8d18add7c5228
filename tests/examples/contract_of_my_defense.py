# test_my_defense.py
from thiefbench.testing.contracts import DefenseContract


class TestPlausibleOpening(DefenseContract):
    defense = "my_defense.py:PlausibleOpening(floor=-2.5)"
