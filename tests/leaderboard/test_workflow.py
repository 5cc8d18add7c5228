"""The workflow that reads submissions trusts none of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).parents[2] / ".github/workflows/verify-entry.yml"
TEXT = FILE.read_text(encoding="utf-8")
TOLD: dict[Any, Any] = yaml.safe_load(TEXT)


def test_it_may_read_and_nothing_else() -> None:
    assert TOLD["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in TOLD["jobs"].values()), "no job takes more"
    assert "secrets." not in TEXT
    on = TOLD[True]  # YAML 1.1 reads the word `on` so
    assert set(on) == {"pull_request", "workflow_dispatch"}, "pull_request_target would run with the branch's rights"


def test_actions_have_a_version() -> None:
    used = re.findall(r"uses: (\S+)", TEXT)
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in used), used


def test_what_strangers_say_is_no_part_of_a_script() -> None:
    for step in TOLD["jobs"]["verify"]["steps"]:
        assert "${{" not in step.get("run", ""), "it comes in by the environment, where a shell does not read it"


def test_it_judges_with_the_code_that_was_there() -> None:
    checkouts = {
        step["with"]["path"]: step["with"]["ref"]
        for step in TOLD["jobs"]["verify"]["steps"]
        if step.get("uses", "").startswith("actions/checkout")
    }
    assert "base.sha" in checkouts["judge"]
    assert "make -C judge install" in TEXT
    assert "make -C submitted" not in TEXT
    assert "pip install" not in TEXT
