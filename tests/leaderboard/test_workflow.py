"""The workflow that reads submissions trusts none of them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
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


def script_of_changes() -> str:
    """The script that names what a pull request changes."""
    return next(str(step["run"]) for step in TOLD["jobs"]["verify"]["steps"] if "git diff" in step.get("run", ""))


@pytest.mark.parametrize("change", ["rename", "copy", "delete", "edit", "add", "file", "link", "submodule"])
def test_a_pull_request_with_an_entry_changes_nothing_else(tmp_path: Path, change: str) -> None:
    """The step's own script, on a repository in which a stranger also moved a file of the benchmark into an entry."""

    def git(*words: str) -> str:
        own = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *own, *words], cwd=submitted, check=True, capture_output=True, text=True).stdout

    submitted, tools = tmp_path / "submitted", tmp_path / "bin"
    entry = submitted / "leaderboard/entries/mine"
    entry.mkdir(parents=True)
    tools.mkdir()
    (tools / "thiefbench").write_text("#!/bin/sh\nexit 0\n")
    (tools / "thiefbench").chmod(0o755)
    (entry / "entry.json").write_text("{}")
    judge = submitted / "judge.py"
    judge.write_text("".join(f"line {number}\n" for number in range(50)))
    git("init", "--quiet", "--initial-branch", "main")
    git("config", "diff.renames", "copies")
    git("add", ".")
    git("commit", "--quiet", "--message", "before")
    base = git("rev-parse", "HEAD").strip()
    (entry / "entry.json").write_text('{"slug": "mine"}')
    if change == "rename":
        git("mv", "judge.py", "leaderboard/entries/mine/judge.py")
    elif change == "copy":
        (entry / "judge.py").write_text(judge.read_text())
        judge.write_text("line 0\n")
    elif change == "delete":
        judge.unlink()
    elif change == "edit":
        judge.write_text("line 0\n")
    elif change == "add":
        (submitted / "more.py").touch()
    elif change == "file":
        (submitted / "leaderboard/entries/README.md").write_text("Send archives to me.")
    elif change == "link":
        (submitted / "leaderboard/entries/best").symlink_to("mine")
    git("add", "--all")
    if change == "submodule":
        git("update-index", "--add", "--cacheinfo", f"160000,{base},leaderboard/entries/module")
    git("commit", "--quiet", "--message", "after")
    surroundings = {
        "PATH": f"{tools}:{os.environ['PATH']}", "BASE": base, "RUNNER_TEMP": str(tmp_path),
        "GITHUB_WORKSPACE": str(tmp_path), "HOME": str(tmp_path),
    }  # fmt: skip
    command = ["bash", "-e", "-c", script_of_changes()]
    done = subprocess.run(command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    elsewhere = {
        "add": "more.py", "file": "leaderboard/entries/README.md", "link": "leaderboard/entries/best",
        "submodule": "leaderboard/entries/module",
    }.get(change, "judge.py")  # fmt: skip
    assert done.stdout.splitlines() == [
        f"a pull request with an entry changes nothing else, and this one changes {elsewhere}",
        "::warning::this pull request changes the entry mine, which is there already; its authors have to agree",
    ]


def test_a_push_does_not_stop_what_a_maintainer_started() -> None:
    assert "github.event_name" in TOLD["concurrency"]["group"]


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
