"""The contracts as test classes: subclass one in a test module, and pytest runs every rule on your plugin.

    class TestMine(AttackContract):
        attack = "my_attack.py:Mine"

These modules import pytest, so only tests import them.
"""

from thiefbench.testing.contracts.aggregation import AggregationContract
from thiefbench.testing.contracts.attack import AttackContract
from thiefbench.testing.contracts.defense import DefenseContract
from thiefbench.testing.contracts.stage_check import StageCheckContract
from thiefbench.testing.contracts.task import TaskContract

__all__ = ["AggregationContract", "AttackContract", "DefenseContract", "StageCheckContract", "TaskContract"]
