"""What an entry's spec string may bring into the sandbox: the .py files that it names, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from thiefbench import registry
from thiefbench.leaderboard.isolation import sandbox_paths
from thiefbench.leaderboard.named_code import foreign_code
from thiefbench.suite.analysis.ranking import anchor_of

SOURCE = "class Mine: ...\n"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A defense's file, beside a file that is nobody's business."""
    (tmp_path / "secret.txt").write_text("a secret")
    (tmp_path / "mine.py").write_text(SOURCE)
    return tmp_path / "mine.py"


def test_a_file_that_is_no_python_comes_along_in_no_argument(mine: Path) -> None:
    secret = mine.with_name("secret.txt")
    spec = f"{mine}:Mine(x='{secret}:X(k=\"{mine}:Mine\")')"
    assert sandbox_paths.files(spec) == [mine]
    assert str(secret) in sandbox_paths.relocated(spec, lambda file: "/elsewhere.py"), "it is text like any other"


def test_a_nested_python_file_must_be_listed(mine: Path) -> None:
    other = mine.with_name("other.py")
    other.write_text(SOURCE)
    spec = f"{mine}:Mine(x='{other}:X(k=\"{mine}:Mine\")')"
    assert sandbox_paths.files(spec) == [mine, other]
    assert foreign_code(spec, [str(mine)]) == f"names the file {other}, which is not part of the entry"
    assert foreign_code(spec, [str(mine), str(other)]) == ""


@pytest.mark.parametrize("spec", ["none() #()", "none() #()+mine.py:Mine()", "none()  # )"])
def test_a_comment_hides_no_defense(spec: str) -> None:
    assert anchor_of(spec) == ""
    with pytest.raises(registry.SpecStringError, match="malformed"):
        [registry.parse("defense", part) for part in registry.parts("defense", spec)]


def test_anchors_are_still_anchors() -> None:
    assert [anchor_of(spec) for spec in ("none", "oracle(reject='drop')", "oracle+none", "logit")] == [
        "none", "oracle", "", "",
    ]  # fmt: skip
