# test_my_aggregation.py
from thiefbench.testing.contracts import AggregationContract


class TestSameDirection(AggregationContract):
    aggregation = "my_aggregation.py:SameDirection(least=0.1)"
