"""An entry's files are checked without running them, and without more time or memory than such a check may take."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest

from tests.leaderboard import made_entries
from thiefbench.errors import UserError
from thiefbench.leaderboard import _parsing_worker
from thiefbench.leaderboard.entry import EntryError, read_entry
from thiefbench.leaderboard.entry_validation import cells_of, check_source, unreadable
from thiefbench.suite.suite_yaml import load_suite


def refused(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> str:
    """Why an entry with this source is refused."""
    monkeypatch.setattr(made_entries, "SOURCE", source.encode())
    entry = made_entries.entry(folder)
    with pytest.raises(EntryError) as raised:
        check_source(entry)
    return str(raised.value)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            "import a" + ".b" * 450_000,
            id="a dotted name, whose parts Python joins again for each",
            marks=pytest.mark.slow,
        ),
        pytest.param("not " * 200_000 + "1", id="an expression too deep for the parser's stack"),
    ],
)
def test_a_source_that_takes_hours_to_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    began = time.process_time()
    assert refused(tmp_path, monkeypatch, source).startswith("mine.py is more than Python can parse in 5 s and 2 GiB")
    assert time.process_time() - began < 5, "another process takes the time"


def test_a_parser_that_did_not_start_says_nothing_about_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installing the package anew takes its script away for a moment."""
    monkeypatch.setattr(_parsing_worker, "__file__", str(tmp_path / "away.py"))
    (source := tmp_path / "mine.py").write_text("1")
    with pytest.raises(UserError, match="the installed package changed while this command ran"):
        unreadable([source])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("# coding: utf-7\n+AGkAbQBwAG8AcgB0 os", "mine.py names the encoding utf-7; write it in UTF-8"),
        ("# coding: unicode_escape\n# \\x0aimport os", "mine.py names the encoding unicode_escape; write it in UTF-8"),
        ("# coding: none\n", "mine.py is not valid Python: unknown encoding"),
        ("import torch\n", "line 1 of mine.py imports torch"),
    ],
)
def test_a_source_is_what_readers_see_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    assert refused(tmp_path, monkeypatch, source).startswith(reason)


@pytest.mark.parametrize(
    "name", ["__pycache__/mine.cpython-312.pyc", "mine.cpython-312-x86_64-linux-gnu.so", "table.npy"]
)
def test_nothing_runs_that_the_hash_of_the_source_does_not_cover(tmp_path: Path, name: str) -> None:
    """Python runs a compiled module in place of the source that readers see, and an extension module beside it."""
    entry = made_entries.entry(tmp_path)
    file = entry.folder / "defense" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"anything")
    told = json.loads((entry.folder / "entry.json").read_text())
    told["files"][f"defense/{name}"] = hashlib.sha256(b"anything").hexdigest()
    (entry.folder / "entry.json").write_text(json.dumps(told))
    with pytest.raises(EntryError, match=f"{file.name} is in the entry, and no part of the source that its cells name"):
        check_source(read_entry(entry.folder))


def test_a_row_of_the_benchmark_itself_has_the_suite_s_arguments(tmp_path: Path) -> None:
    suite = load_suite("trial")
    for known in ("none", "oracle", "oracle(reject='drop')"):
        cells_of(made_entries.entry(tmp_path / known, defense=known), suite)
    other = made_entries.entry(tmp_path / "other", defense="oracle(reject='mask', note='This board has moved')")
    with pytest.raises(EntryError, match="oracle, a row of the benchmark itself, in another form"):
        cells_of(other, suite)


@pytest.mark.parametrize(
    ("defense", "said"),
    [
        ("oracle(reject='drop')+length_budget", "holds oracle, a row of the benchmark itself"),
        ("length_budget+none", "holds none, a row of the benchmark itself"),
        ("guard(note='place 1')", "cannot be made: .*unexpected keyword argument 'note'"),
        ("guard(beacon=True)", "is written guard in entries"),
        ("max_tokens(limit=-1)", "cannot be made: "),
        ("logit(reject='THE BEST DEFENSE')", "cannot be made: "),
        ("defense/mine.py:Mine(# the best\n)", "is written defense/mine.py:Mine in entries"),
        ("static_code(allow=[':'], unused=True)", "is written static_code"),
        ("max_tokens(limit=-1)+static_code(allow=[':'])", "cannot be made: "),
        ("defense/mine.py:Mine+guard(beacon=True)", "is written defense/mine.py:Mine.guard in entries"),
        ("defense/mine.py:Mine+max_tokens(limit=-1)", "cannot be made: "),
    ],
)
def test_what_an_entry_calls_its_defense_can_be_made_and_sees_no_labels(
    tmp_path: Path, defense: str, said: str
) -> None:
    """A row is shown by it, and a verification that runs no cell would not find out."""
    entry = made_entries.entry(tmp_path, defense=defense)
    with pytest.raises(EntryError, match=said):
        cells_of(entry, load_suite("trial"))


def test_folders_deep_in_one_another_are_no_traceback(tmp_path: Path) -> None:
    entry = made_entries.entry(tmp_path)
    deep = entry.folder / "defense" / "/".join("d" * 40)
    for each in reversed([deep, *deep.parents][: -len(entry.folder.parts)]):
        each.mkdir(exist_ok=True)
    with pytest.raises(EntryError, match="holds folders that lie more than 16 deep in one another"):
        read_entry(entry.folder)
