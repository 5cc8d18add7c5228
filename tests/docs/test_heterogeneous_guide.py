"""docs/heterogeneous.md says what is true."""

from __future__ import annotations

import re
from pathlib import Path

from thiefbench import registry
from thiefbench.engine.learning.grpo import LEARNERS
from thiefbench.suite.suite_yaml import load_suite, parse_suite

GUIDE = (Path(__file__).parents[2] / "docs" / "heterogeneous.md").read_text()


def test_the_suite_of_the_guide_is_one() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    suite = parse_suite(text, "docs/heterogeneous.md")
    swarm = suite.swarm
    assert [each.model for each in swarm.population] == ["micro-math", "micro-math-small"]
    assert swarm.delay is not None and swarm.churn is not None, "the guide shows delay and churn"
    assert suite.cells("cpu", "float32", 1)[0].models == ["micro-math", "micro-math-small"]


def test_all_learners_and_names_of_the_guide_exist() -> None:
    tables = "\n".join(line for line in GUIDE.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", tables)) >= set(LEARNERS), "every learner is in the table"
    for name in re.findall(r"^\| `(\w+)` \| (?!.*arXiv)", GUIDE, re.MULTILINE):
        registry.make("attack", name)
    for name in ("sender_cap", "staleness", "reputation"):
        registry.make("defense", name)


def test_heterogeneous_v1_has_a_part_for_every_regime() -> None:
    swarms = [part.swarm for part in load_suite("heterogeneous-v1").scenes]
    for regime in ("population", "delay", "churn", "sharing"):
        assert any(getattr(swarm, regime) for swarm in swarms), f"a part with {regime}"
    attacks = " ".join(attack for part in load_suite("heterogeneous-v1").scenes for attack in part.attacks)
    for name in ("misreport", "flood", "stale_replay", "late_poison", "poisoned_peer"):
        assert name in attacks, f"a part in which {name} lives"
