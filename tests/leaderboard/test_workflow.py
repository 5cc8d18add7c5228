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


def script_with(command: str) -> str:
    """The script of the step that calls a command."""
    return next(str(step["run"]) for step in TOLD["jobs"]["verify"]["steps"] if command in step.get("run", ""))


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
    command = ["bash", "-e", "-c", script_with("git diff")]
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


ADDRESS = "https://example.org/{a,b}[1-9].tar"
"""It holds what curl would take for several addresses."""


@pytest.mark.parametrize(
    ("given", "read", "code"),
    [
        (f"{ADDRESS}", [ADDRESS], 0),
        (f"  {ADDRESS}?1 \n\t{ADDRESS}?2\n", [f"{ADDRESS}?1", f"{ADDRESS}?2"], 0),
        ("https://example.org/* --output", ["https://example.org/*", "--output"], 0),
        ("https://example.org/$(touch${IFS}made);`touch made` x", None, 0),
        (f"{ADDRESS}?1 https://example.org/absent {ADDRESS}?2", [f"{ADDRESS}?1", "https://example.org/absent"], 22),
        (" \n", [], 1),
    ],
)
def test_every_archive_is_fetched_and_all_are_verified_together(
    tmp_path: Path, given: str, read: list[str] | None, code: int
) -> None:
    """The step's own script, with a curl and a thiefbench that write down how they were called."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, rest in (("curl", 'case "$*" in *absent) exit 22;; esac\ntouch "$OUTPUT"'), ("thiefbench", "")):
        script = f'printf "%s\\0" "$@" end >> "$RUNNER_TEMP/{name}.said"\n'
        script += 'while [ "$1" != --output ] && [ $# -gt 0 ]; do shift; done; OUTPUT="$2"\n' if rest else ""
        (tools / name).write_text(f"#!/bin/sh\nset -e\nALL=$*\n{script}{rest}\n".replace('"$*" in', '"$ALL" in'))
        (tools / name).chmod(0o755)
    surroundings = {
        "PATH": f"{tools}:{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path), "GITHUB_WORKSPACE": "/workspace",
        "ENTRY": "mine", "ARCHIVES": given,
    }  # fmt: skip
    command = ["bash", "-e", "-c", script_with("curl")]
    done = subprocess.run(command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr

    def said(name: str) -> list[list[str]]:
        path = tmp_path / f"{name}.said"
        words = path.read_text().split("\0") if path.exists() else []
        calls = "\0".join(words).split("\0end\0")
        return [call.split("\0") for call in calls if call]

    fetched = said("curl")
    if read is not None:
        assert [call[-1] for call in fetched] == read
    assert not (tmp_path / "made").exists()
    for number, call in enumerate(fetched):
        assert call[-2] == "--", "an address is never an option"
        assert {"--fail", "--globoff", "--proto", "=https", "--proto-redir", "--max-filesize"} <= set(call)
        assert call[call.index("--output") + 1] == f"archive-{number}.tar"
    archives = [word for number in range(len(fetched)) for word in ("--archive", f"archive-{number}.tar")]
    entry = "/workspace/submitted/leaderboard/entries/mine"
    expected = [["leaderboard", "verify", entry, *archives]] if code == 0 else []
    assert said("thiefbench") == expected, "all archives together, and none where one is missing"


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
