# test_my_task.py
from thiefbench.testing.contracts import TaskContract


class TestDoubling(TaskContract):
    task = "my_task.py:Doubling"
