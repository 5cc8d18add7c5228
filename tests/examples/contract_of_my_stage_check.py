# test_my_stage_check.py
from thiefbench.testing.contracts import StageCheckContract


class TestLongStep(StageCheckContract):
    stage_check = "my_stage_check.py:LongStep(factor=4)"
