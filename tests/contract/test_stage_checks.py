"""Every registered stage check keeps the contract."""

from __future__ import annotations

import pytest

from thiefbench import registry
from thiefbench.testing.contracts import StageCheckContract

FORMS = ("recomputation(share=1.0)", "stage_monitor(warmup=2, decay=0.0)", "neighbour_distance(tolerance=0.001)")


@pytest.mark.parametrize("spec", [*registry.names("stage_check"), *FORMS])
class TestRegistered(StageCheckContract):
    @pytest.fixture(autouse=True)
    def _chosen(self, spec: str) -> None:
        self.stage_check = spec  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["stage_check", "stage_attack"])
def test_its_name_is_the_registered_one(kind: registry.Kind) -> None:
    wider: registry.Kind = "defense" if kind == "stage_check" else "attack"
    for name in registry.names(kind):
        assert registry.find(kind, name).name == name
        assert registry.find(wider, name) is registry.find(kind, name), f"it is named wherever a {wider} is"
        assert name not in registry.names(wider), f"each {wider} on completions is listed alone"
