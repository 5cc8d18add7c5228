"""What a report says of the weakness that an attack uses: it is not the same in every swarm."""

from __future__ import annotations

import pytest

from thiefbench.suite.report.hole import how_the_hole_works


@pytest.mark.parametrize(
    ("cell", "said", "unsaid"),
    [
        ({}, "with a right answer", "judge"),
        ({"swarm": {"reward": "rule", "truth": "public"}}, "with a right answer", "judge"),
        ({"swarm": {"reward": "judge"}}, "whether or not it answers the question", "right answer"),
        ({"swarm": {"reward": "mixed"}}, "of the items that have no rule", "right answer"),
        ({"swarm": {"truth": "sender"}}, "right by them alone", "right answer"),
        ({"swarm": {}, "averaging": {"method": "mean"}}, "weights do not show what they were taught", "GRPO"),
        ({"swarm": {}, "pipeline": {"stages": 4}}, "a malicious stage", "GRPO"),
    ],
)
def test_each_kind_of_swarm_has_its_own(cell: dict[str, object], said: str, unsaid: str) -> None:
    text = how_the_hole_works(cell)
    assert said in text
    assert unsaid not in text
