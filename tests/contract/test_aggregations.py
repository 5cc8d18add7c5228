"""Every registered aggregation keeps the contract."""

from __future__ import annotations

import pytest

from thiefbench import registry
from thiefbench.testing.contracts import AggregationContract

FORMS = (
    "multi_krum(f=2, keep=2)",
    "centered_clipping(radius=0.5, steps=3)",
    "norm_bound(rule='coordinate_median')",
    "nearest_mixing(rule='krum')",
    "held_out(measure='reward')",
    "held_out(rule='norm_bound(rule=\"trimmed_mean(f=2)\")')",
)


@pytest.mark.parametrize("spec", [*registry.names("aggregation"), *FORMS])
class TestRegistered(AggregationContract):
    @pytest.fixture(autouse=True)
    def _chosen(self, spec: str) -> None:
        self.aggregation = spec  # type: ignore[misc]


@pytest.mark.parametrize("name", registry.names("aggregation"))
def test_its_name_is_the_registered_one(name: str) -> None:
    assert registry.find("aggregation", name).name == name
    assert registry.find("defense", name) is registry.find("aggregation", name), "it is named wherever a defense is"
    assert name not in registry.names("defense"), "defenses that inspect completions are listed alone"
