# test_my_aggregation.py
from thiefbench.testing.contracts import AggregationContract


class TestSimilarLength(AggregationContract):
    aggregation = "my_aggregation.py:SimilarLength(most=3.0)"
