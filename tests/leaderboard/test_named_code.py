"""An entry names declared defenses and its own files; whatever else it names is refused, and nothing of it runs."""

from __future__ import annotations

import importlib
import json
import os
import sys
from contextvars import Context
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.leaderboard import made_entries
from tests.leaderboard.scores_files import put_scores, scores_of, scores_sha256
from thiefbench import registry
from thiefbench.cli import app
from thiefbench.leaderboard.attacking.submit import guarded_of
from thiefbench.leaderboard.entry import EntryError, read_entry
from thiefbench.leaderboard.isolation import isolated, limits
from thiefbench.leaderboard.isolation.isolated import DefenseError, Isolated
from thiefbench.leaderboard.manifest import MANIFEST, SCORES, STORED_SCORES
from thiefbench.leaderboard.named_code import foreign_code
from thiefbench.zoo.models import weights_fingerprint

STRANGE = ("leaderboard", "defense", "strange_package", "elsewhere")
PLACEHOLDER = "defense/mine.py:Mine"
EVIL = """
from pathlib import Path

Path({marker!r}).touch()

from thiefbench.defenses.base import Defense


class Mine(Defense):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose entries hold hostile source; it is the current folder. Running any of it leaves a file `ran`."""
    entries = tmp_path / "leaderboard" / "entries"
    evil = EVIL.format(marker=str(tmp_path / "ran")).encode()
    monkeypatch.setattr(made_entries, "SOURCE", evil)
    made_entries.entry(entries, defense=PLACEHOLDER)
    for path in (tmp_path / "strange_package.py", tmp_path / "defense.py", tmp_path / "elsewhere.py"):
        path.write_bytes(evil)
    monkeypatch.chdir(tmp_path)
    # As from a checkout: only the current folder holds modules of these names, and no test leaves one to the next.
    monkeypatch.setattr(sys, "path", [each for each in sys.path if not (Path(each) / "leaderboard").is_dir()])
    for name in [name for name in sys.modules if name.partition(".")[0] in STRANGE]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    return tmp_path


def verified(folder: Path, defense: str) -> str:
    """What `verify` prints of an entry whose defense was changed everywhere, with all hashes fitting."""
    entry = folder / "leaderboard" / "entries" / "mine"
    scores = scores_of(entry)
    for cell in scores["cells"]:
        cell["defense"] = defense if cell["defense"] == PLACEHOLDER else cell["defense"]
    put_scores(entry, json.dumps(scores))
    manifest = json.loads((entry / MANIFEST).read_text())
    manifest["defense"] = defense
    manifest["files"][SCORES] = scores_sha256(entry)
    (entry / MANIFEST).write_text(json.dumps(manifest))
    result = Context().run(CliRunner().invoke, app, ["leaderboard", "verify", "leaderboard/entries/mine"])
    assert not (folder / "ran").exists(), "nothing of an entry runs"
    assert result.exit_code == 1, result.output
    assert "rejected" in result.output
    assert isinstance(result.exception, SystemExit), "without a traceback"
    return result.output


NESTED = [
    "leaderboard.entries.mine.defense.mine:Mine",  # what a checkout's root lets Python import
    "defense.mine:Mine",
    "strange_package:Mine",
    "./elsewhere.py:Mine",
    "elsewhere.py:Mine",
    "leaderboard/entries/mine/defense/mine.py:Mine",
    "defense/../elsewhere.py:Mine",
    "../../../elsewhere.py:Mine",
    "~/elsewhere.py:Mine",
    "defense/mine:Mine",
    "defense/mine.pyc:Mine",
    "/dev/zero:Mine",
    "/dev/stdin:Mine",
    "os:system",
    "subprocess:Popen",
    "zipfile:ZipFile(file='ran', mode='w')",
    "logit+strange_package:Mine",
    "reputation(defense='strange_package:Mine')",
    "reputation(defense=\"reputation(defense='strange_package:Mine')\")",
    "guard+reputation(defense='./elsewhere.py:Mine')",
]  # fmt: skip


@pytest.mark.parametrize("inner", NESTED)
def test_verify_imports_nothing_that_an_entry_nests(folder: Path, inner: str) -> None:
    assert "defense" in verified(folder, f"reputation(defense={inner!r})")


@pytest.mark.parametrize("spec", [*NESTED, "defense/mine.py:Mine+strange_package:Mine"])
def test_verify_imports_nothing_that_an_entry_names(folder: Path, spec: str) -> None:
    assert "defense" in verified(folder, spec)


@pytest.mark.parametrize("inner", ["strange_package:Mine", "./elsewhere.py:Mine", "logit+elsewhere.py:Mine(a=1)"])
def test_a_submitted_class_gets_no_other_class_by_name(folder: Path, inner: str) -> None:
    assert "defense names" in verified(folder, f"defense/mine.py:Mine(inner={inner!r})")


def test_own_files_are_allowed_at_every_level() -> None:
    listed = {"defense/mine.py", "defense/other.py", "scores.json"}
    for spec in (
        "defense/mine.py:Mine",
        "reputation(defense='defense/mine.py:Mine')",
        "logit+reputation(defense=\"defense/mine.py:Mine(inner='defense/other.py:Other')\")",
        "defense/mine.py:Mine(inner='logit+defense/other.py:Other(a=1)', note='a remark: not a class', at='http://host:80/v1')",
        "judge(model='micro-judge')",
    ):
        assert foreign_code(spec, listed) == "", spec
    assert "names the file defense/other.py" in foreign_code(
        "reputation(defense=\"defense/mine.py:Mine(inner='defense/other.py:Other')\")", {"defense/mine.py"}
    )


def test_what_is_not_a_plain_file_is_refused(folder: Path) -> None:
    """A device has no end, and nobody writes to a pipe."""
    entry = folder / "leaderboard" / "entries" / "mine"
    for name in ("defense/mine.py", STORED_SCORES, MANIFEST):
        path = entry / name
        kept = path.read_bytes()
        for make in (
            lambda path: path.symlink_to("/dev/zero"),
            lambda path: path.symlink_to(folder / "elsewhere.py"),
            os.mkfifo,
        ):
            path.unlink()
            make(path)
            with pytest.raises(EntryError, match="is not a plain file"):
                read_entry(entry)
        path.unlink()
        path.write_bytes(kept)
    read_entry(entry)


def test_a_pipe_in_a_manifests_place_is_not_waited_for(folder: Path) -> None:
    entry = folder / "leaderboard" / "entries" / "mine"
    (entry / MANIFEST).unlink()
    os.mkfifo(entry / MANIFEST)
    result = Context().run(
        CliRunner().invoke, app, ["leaderboard", "verify", str(entry), "--archive", str(folder / "elsewhere.py")]
    )
    assert "is not a plain file" in result.output


class TestJudges:
    """A judge is loaded outside the sandbox, so only listed ones are ever opened for a submission."""

    def test_the_list_holds_the_released_judge(self) -> None:
        for name, fingerprint in limits.JUDGES.items():
            assert weights_fingerprint(name) == fingerprint, f"{name} was made again: write its fingerprint to JUDGES"

    @pytest.mark.parametrize(
        "model", ["any/hub-model", "./micro-judge", "micro-math", "/etc", "~", "", "micro-judge ", "micro-judge/."]
    )
    def test_no_other_model_is_looked_at(self, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
        looked: list[str] = []

        def look(name: str) -> str:
            looked.append(name)
            return ""

        for module in ("thiefbench.judges", "thiefbench.zoo.models", "thiefbench.leaderboard.isolation.isolated"):
            for function in ("resolve", "weights_fingerprint"):
                monkeypatch.setattr(f"{module}.{function}", look)
        with pytest.raises(DefenseError, match="no submission may ask; it may ask micro-judge"):
            Isolated(f"judge(model={model!r})")
        assert looked == []

    def test_a_changed_judge_is_refused_before_it_is_loaded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(isolated, "resolve", lambda name: str(tmp_path))
        monkeypatch.setattr(isolated, "JUDGE_BYTES", 100)
        isolated._is_listed.cache_clear()
        (tmp_path / "model.safetensors").write_bytes(b"0" * 101)
        try:
            with pytest.raises(DefenseError, match="differ from the released ones"):
                Isolated("judge")
        finally:
            isolated._is_listed.cache_clear()

    @pytest.mark.parametrize(
        "defense",
        [
            "judge(model='any/hub-model')",
            "judge(endpoint='http://localhost:1/v1')",
            "logit+judge(model='./mine')",
            "reputation(defense=\"judge(model='any/hub-model')\")",
        ],
    )
    def test_nor_for_a_listed_defense_that_an_attack_meets(self, tmp_path: Path, defense: str) -> None:
        """A listed entry without files of its own is run by whoever attacks it, and by whoever verifies the attack."""
        digest = registry.source_hash("defense", defense)
        listed = made_entries.entry(tmp_path, defense=defense, source_sha256=digest)
        with pytest.raises(EntryError, match="names a judge"):
            guarded_of(listed, None, tmp_path / "listed")

    def test_a_listed_judge_is_asked_from_the_sandbox(self, tmp_path: Path) -> None:
        """There, its votes and the length of its replies have limits."""
        for defense, isolated_there in (("judge(votes=1000000)", True), ("logit", False)):
            digest = registry.source_hash("defense", defense)
            listed = made_entries.entry(tmp_path, defense=defense, source_sha256=digest)
            assert guarded_of(listed, None, tmp_path / "listed").isolated is isolated_there

    def test_a_run_of_ones_own_may_ask_any_model(self) -> None:
        assert registry.make("defense", "judge(model='/my/model')").judge.model == "/my/model"
