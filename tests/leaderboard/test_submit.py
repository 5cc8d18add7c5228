"""A submission runs what its row needs, and leaves an entry that says what the store holds."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.bench import tiny
from thiefbench import registry
from thiefbench.cli import app
from thiefbench.errors import UserError
from thiefbench.leaderboard import entry as entry_module
from thiefbench.leaderboard import rows, submit
from thiefbench.leaderboard.archive import unpack
from thiefbench.leaderboard.cell_scores import drifts, trimmed
from thiefbench.leaderboard.checking.check import Finding, Subject
from thiefbench.leaderboard.checking.passed import read_pass, write_pass
from thiefbench.leaderboard.defense_kinds import rankable
from thiefbench.leaderboard.entry import EntryError, read_entry
from thiefbench.leaderboard.made_with import machine, versions
from thiefbench.leaderboard.manifest import Numerics
from thiefbench.leaderboard.names import OWN
from thiefbench.leaderboard.submit import Submission, credits_of, prepare, released
from thiefbench.registry import SpecStringError
from thiefbench.suite.scenario import Evaluation, Suite
from thiefbench.suite.store.records import Record, Store, file_sha256
from thiefbench.suite.suite_yaml import load_suite

NUMERICS = Numerics(device="cpu", dtype="float32", threads=1)
SWARMS = [tiny.SWARM]
SOURCE = """
from thiefbench.defenses.base import ACCEPT, Defense, Verdict


class Mine(Defense):
    name = "mine"

    def __init__(self, word="hail"):
        self.word = word

    def inspect(self, view):
        return [Verdict("drop") if self.word in offered.text.lower() else ACCEPT for offered in view.completions]


class Raises(Mine):
    def inspect(self, view):
        raise RuntimeError("this defense gives up")
"""


def suite() -> Suite:
    """All that a ranking needs, in six cells."""
    return tiny.suite(
        "none", 'oracle(reject="drop")', placebo=True, utility=True, rounds=2,
        evaluation=Evaluation(every=1, completions=8, final=8),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _released(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny suite counts as one of the package's own."""
    monkeypatch.setattr(submit, "load_suite", lambda name: suite() if name == "tiny" else load_suite(name))
    monkeypatch.setattr(rows, "released", lambda: {"tiny": suite()})
    declared = registry.entry
    tiny_suite = EntryPoint("tiny", "tests.bench:tiny.yaml", "thiefbench.suites")
    monkeypatch.setattr(
        registry, "entry", lambda kind, name: tiny_suite if (kind, name) == ("suite", "tiny") else declared(kind, name)
    )


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Subject]:
    """Whom the check was asked about; its questions have their own tests."""
    made: list[Subject] = []

    def check(subject: Subject) -> Iterator[Finding]:
        made.append(subject)
        yield Finding("is good", "FAILED" if "/bad.py" in subject.spec else "ok")

    monkeypatch.setattr("thiefbench.leaderboard.checking.check.check", check)
    monkeypatch.setattr("thiefbench.leaderboard.checking.samples.samples", list)
    return made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that holds the cells which every row is measured against, and `Mine`'s."""
    folder = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submit, "load_suite", lambda name: suite())
        made = made_in(folder)
        submit.run(made, tiny.Watcher())
    return made.store.root


@pytest.fixture
def store(shared: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(shared, tmp_path / "store")
    return tmp_path / "store"


def mine(folder: Path, source: str = SOURCE) -> Path:
    file = folder / "mine.py"
    file.write_text(source)
    return file


def made_in(folder: Path, spec: str = "Mine(word='hail')", **options: Any) -> Submission:
    credits = credits_of("My filter", "A. Author, B. Author", "https://example.org/paper")
    fields: dict[str, Any] = {"store": folder / "store", "out": folder / "entries"} | options
    return prepare(f"{mine(folder)}:{spec}", credits, suite(), NUMERICS, **fields)


def invoke(folder: Path, defense: str, *more: str) -> Result:
    words = [
        "leaderboard", "submit", defense, "--suite", "tiny", "--store", str(folder / "store"),
        "--out", str(folder / "entries"), "--threads", "1",
    ]  # fmt: skip
    return CliRunner().invoke(app, [*words, *more])


CREDITS = ("--name", "My filter", "--authors", "A. Author, B. Author", "--paper", "https://example.org/paper")


# --- what is made ---


def test_the_command_leaves_an_entry_and_its_archive(store: Path, tmp_path: Path, asked: list[Subject]) -> None:
    here = Path.cwd()
    done = invoke(tmp_path, f"{mine(tmp_path)}:Mine(word='hail')", *CREDITS)
    assert done.exit_code == 0, done.output
    assert Path.cwd() == here, "one stands where one stood"
    entry = read_entry(tmp_path / "entries/my-filter")
    told = entry.manifest
    assert told.defense == "defense/mine.py:Mine", "in canonical form, by its place in the entry"
    assert (told.name, told.authors, told.paper) == (
        "My filter",
        ("A. Author", "B. Author"),
        "https://example.org/paper",
    )
    assert (told.suite.name, told.seeds, told.numerics) == ("tiny", (0,), NUMERICS)
    assert {"python", "torch", "transformers", "numpy", "scipy", "safetensors", "thiefbench"} <= told.versions.keys()
    assert (tmp_path / "entries/my-filter/defense/mine.py").read_text() == SOURCE
    assert [subject.spec for subject in asked] == [f"{store}/submissions/{copy_of(store)}/defense/mine.py:Mine"]
    for said in (
        "inconclusive",
        "the entry: ",
        "its archive: ",
        "leaderboard verify",
        "pull request",
        "60 s of the defense's own time",
    ):
        assert said in done.output, said
    assert not list((tmp_path / "entries/my-filter").rglob("*.tar")), "the archive is no part of the folder"


def copy_of(store: Path) -> str:
    (found,) = (store / "submissions").iterdir()
    return found.name


def test_the_entry_says_what_its_archive_holds(store: Path, tmp_path: Path) -> None:
    made = made_in(tmp_path)
    watcher = tiny.Watcher()
    entry = submit.write(made, submit.run(made, watcher))
    assert (watcher.cached, watcher.missing) == (6, []), "a control, a placebo, an oracle, none, and two of its own"
    found = unpack(made.archive, entry, tmp_path / "unpacked")
    records = {record.cell_id: record for record in found.records()}
    assert {record.cell["defense"] for record in records.values()} == {"none", "oracle(reject='drop')", made.defense}
    drift = drifts([("", record) for record in found.records()], found)
    assert drift.keys() == records.keys(), "every cell has a control beside it"
    for cell in entry.cells:
        record = records[cell.cell_id]
        own = cell.defense == entry.manifest.defense
        again = trimmed(record, cell.part, own, cell.record_sha256, drift[cell.cell_id])
        assert again == cell, "scores are those of the raw record, and drift is that of the completions"
    assert {cell.role for cell in entry.own} == {"attack", "control"}
    sources = {
        record.identity["sources"]["defense"] for record in records.values() if record.cell["defense"] == made.defense
    }
    assert sources == {entry.manifest.source_sha256}


def test_it_begins_with_an_estimate(store: Path, tmp_path: Path) -> None:
    printed = invoke(tmp_path, f"{mine(tmp_path)}:Mine(word='hail')", *CREDITS).output
    assert printed.index("tiny-v1: 0 cells to run, 6 in the store already") < printed.index("first the rules")


def test_a_plan_says_so_and_runs_nothing(tmp_path: Path, asked: list[Subject]) -> None:
    done = invoke(tmp_path, f"{mine(tmp_path)}:Mine(word='hail')", *CREDITS, "--plan")
    assert done.exit_code == 0, done.output
    assert "6 cells to run, 0 in the store already" in done.stdout
    assert asked == [], "nothing is checked"
    assert not (tmp_path / "entries").exists() and not (tmp_path / "store/cells").exists()


def test_the_estimate_goes_by_what_the_store_tells(store: Path, tmp_path: Path) -> None:
    empty = submit.estimate(made_in(tmp_path, store=tmp_path / "empty"))
    assert empty[:2] == [
        "tiny-v1: 6 cells to run, 0 in the store already", "how long the rounds take is not known"
    ], "and no option is named that submit does not have"  # fmt: skip
    lines = submit.estimate(made_in(tmp_path, "Mine(word='thief')"))
    assert lines[0] == "tiny-v1: 2 cells to run, 4 in the store already"
    assert "measured on " in lines[1]


def test_what_a_constructor_raises_is_a_sentence_with_its_line(tmp_path: Path) -> None:
    source = SOURCE.replace("self.word = word", "raise RuntimeError(word)")
    credits = credits_of("My filter", "A. Author", "")
    with pytest.raises(SpecStringError, match=r"RuntimeError: hail \(mine.py, line 9\)"):
        prepare(f"{mine(tmp_path, source)}:Mine", credits, suite(), NUMERICS, tmp_path / "store", tmp_path / "entries")


def test_a_class_built_around_another_by_its_spec_string_is_refused(tmp_path: Path) -> None:
    """Also where it has inherited the argument, which its own source does not show."""
    source = "from thiefbench.defenses.reputation import Reputation\nclass Mine(Reputation):\n    name = 'mine'\n"
    file, credits = mine(tmp_path, source), credits_of("My filter", "A. Author", "")
    with pytest.raises(EntryError, match=r"^what a class of your own is built around by its spec string cannot be ver"):
        prepare(f"{file}:Mine(defense='none')", credits, suite(), NUMERICS, tmp_path / "store", tmp_path / "entries")


def test_a_check_that_passed_is_not_repeated(store: Path, tmp_path: Path, asked: list[Subject]) -> None:
    def submitted(source: str = SOURCE, *more: str) -> str:
        done = invoke(tmp_path, f"{mine(tmp_path, source)}:Mine(word='hail')", *CREDITS, *more)
        assert done.exit_code == 0, done.output
        return done.output

    assert "not checked again" not in submitted()
    assert "not checked again: the same files passed" in submitted()
    assert len(asked) == 1
    assert "not checked again" not in submitted(SOURCE + "\n# another byte\n"), "other bytes are checked"
    assert len(asked) == 2
    for file in (store / "checks").glob("*.json"):
        file.write_text(file.read_text().replace('"ok"', '"warning"'))
    assert "not checked again" not in submitted(), "an edited file counts for nothing"
    assert len(asked) == 3


def test_a_remembered_warning_is_told_again(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doubt = Finding("poison is stopped", "warning", "stops 4 of 144, almost nothing")
    monkeypatch.setattr("thiefbench.leaderboard.checking.check.check", lambda subject: iter([doubt]))
    for _ in range(2):
        done = invoke(tmp_path, f"{mine(tmp_path)}:Mine(word='hail')", *CREDITS)
        assert "almost nothing" in done.output


def test_a_failure_is_not_remembered(store: Path, tmp_path: Path, asked: list[Subject]) -> None:
    (tmp_path / "bad.py").write_text(SOURCE)
    for number in (1, 2):
        assert invoke(tmp_path, f"{tmp_path}/bad.py:Mine", *CREDITS).exit_code == 1
        assert len(asked) == number


def test_another_version_of_the_package_checks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_in(tmp_path)
    write_pass(made.store, made.staged, False, SWARMS, [Finding("is good", "ok")])
    assert read_pass(made.store, made.staged, False, SWARMS)
    assert read_pass(made.store, made.staged, True, SWARMS) is None, "a baseline is checked by other rules"
    believing = [replace(tiny.SWARM, topology="vertical", truth="sender")]
    assert read_pass(made.store, made.staged, False, believing) is None, "other swarms give a defense something else"
    monkeypatch.setattr("thiefbench.provenance.source_sha256", lambda: "other sources")
    assert read_pass(made.store, made.staged, False, SWARMS) is None


def test_verifiers_take_no_remembered_pass() -> None:
    package = Path(str(submit.__file__)).parent
    users = [file.name for file in package.rglob("*.py") if "checking.passed" in file.read_text()]
    assert users == ["cli.py"], "verification puts its questions itself"
    assert "read_pass" not in (package / "cli.py").read_text().partition("def verify")[2].partition("@app.command")[0]


def test_twice_gives_equal_bytes(store: Path, tmp_path: Path) -> None:
    def once() -> dict[str, bytes]:
        assert invoke(tmp_path, f"{mine(tmp_path)}:Mine", *CREDITS).exit_code == 0
        files = [*(tmp_path / "entries").rglob("*"), store / "my-filter.tar"]
        return {path.name: path.read_bytes() for path in files if path.is_file()}

    before = once()
    assert set(before) == {"entry.json", "scores.json.gz", "mine.py", "my-filter.tar"}
    assert once() == before
    os.utime(tmp_path / "mine.py")
    assert once() == before


def test_a_new_version_replaces_the_old_files(store: Path, tmp_path: Path) -> None:
    made = made_in(tmp_path)
    records = submit.run(made, tiny.Watcher())
    submit.write(made, records)
    (made.folder / "defense/deep").mkdir()
    (made.folder / "defense/deep/old.py").touch()
    assert submit.write(made, records).source == [made.folder / "defense/mine.py"]
    assert not (made.folder / "defense/deep").exists()


def test_a_stopped_run_goes_on(tmp_path: Path, shared: Path) -> None:
    here = Path.cwd()
    made = made_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        submit.run(made, tiny.Watcher(stop_after=5))
    assert Path.cwd() == here
    again = made_in(tmp_path)
    assert (again.defense, again.staged.folder) == (made.defense, made.staged.folder), "it is the same submission"
    watcher = tiny.Watcher()
    records = submit.run(again, watcher)
    assert watcher.cached >= 1, "finished cells stay"
    entry = submit.write(again, records)
    before = {record.cell_id: record.scores for record in Store(shared).records()}
    assert {record.cell_id: record.scores for record in records} == before, "as if it had never been stopped"
    assert len(entry.cells) == 6


def test_another_argument_and_another_source_are_other_cells(tmp_path: Path) -> None:
    plain, other = made_in(tmp_path), made_in(tmp_path, "Mine(word='thief')")
    assert other.defense == "defense/mine.py:Mine(word='thief')"
    (tmp_path / "edited").mkdir()
    mine(tmp_path / "edited", SOURCE + "# edited\n")
    credits = plain.credits
    edited = prepare(
        f"{tmp_path}/edited/mine.py:Mine", credits, suite(), NUMERICS, tmp_path / "store", tmp_path / "entries"
    )
    assert edited.defense == plain.defense, "by name it is the same, "
    assert edited.staged.folder != plain.staged.folder, "but it lies elsewhere, and its source is part of the identity"


def test_baseline_entries_are_made_by_the_same_command(store: Path, tmp_path: Path, asked: list[Subject]) -> None:
    for spec, slug in (("none", "none"), ("oracle(reject='drop')", "oracle-reject-drop")):
        done = invoke(tmp_path, spec, "--baseline")
        assert done.exit_code == 0, done.output
        entry = read_entry(tmp_path / "entries" / slug)
        assert (entry.manifest.authors, entry.manifest.name, entry.source) == (("ThiefBench",), spec, [])
        assert {cell.role for cell in entry.own} >= {"attack", "control"}
        assert "it will be listed as anchor" in done.output
    assert asked == [], "anchors break the rules of submissions, and are not asked"


def test_a_baseline_entry_of_a_defense_is_checked_as_such(store: Path, tmp_path: Path, asked: list[Subject]) -> None:
    for words in (["--baseline"], CREDITS):
        assert invoke(tmp_path, "length_quantile", *words).exit_code == 0
    assert [subject.baseline for subject in asked] == [True, False]


# --- what is not taken ---


@pytest.mark.parametrize(
    "spec", ["none", "oracle", "oracle(reject='drop')", "random(rate=0.1)", "reject_all", "blacklist"]
)
def test_anchors_are_refused(tmp_path: Path, spec: str) -> None:
    done = invoke(tmp_path, spec, *CREDITS)
    assert isinstance(done.exception, EntryError)
    assert "is a row of the benchmark itself" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"--name": ""}, "--name says what the board calls the entry"),
        ({"--name": "x" * 201}, "--name says what the board calls the entry"),
        ({"--name": "two\nlines"}, "--name says what the board calls the entry"),
        ({"--name": "\u9632\u5fa1"}, "holds no letter or digit that a folder could be called after"),
        (
            {"--authors": " , "},
            '--authors names 1 to 50 people, separated by commas, as in --authors "A. Author, B. Author"',
        ),
        ({"--authors": "x," * 51}, "--authors names 1 to 50 people"),
        (
            {"--paper": "http://example.org"},
            "--paper is an address that begins with https://, not 'http://example.org'",
        ),
        ({"--paper": "https://a b"}, "--paper is an address"),
        (
            {"--suite": "smoke"},
            "no defense can be ranked on smoke: it has no placebo to beat and no cells with a defense but",
        ),
        ({"--own-shared": "two\nlines"}, "--own-shared gives the reason in one line of at most 300 characters"),
        ({"--own-shared": " "}, "--own-shared gives the reason in one line of at most 300 characters"),
        ({"--own-shared": "x" * 301}, "--own-shared gives the reason in one line of at most 300 characters"),
        ({"--suite": "mine.yaml"}, "mine.yaml is a file of your own; write --suite tiny"),
        ({"--suite": "standart-v1"}, "there is no suite named 'standart-v1'; did you mean standard-v1 or standard-v2"),
        ({"--dtype": "float16"}, "--dtype must be float32 or bfloat16"),
        ({"--authors": "A. Author, ThiefBench"}, "the author 'ThiefBench' is kept for the benchmark's own entries"),
        ({"--authors": "The Thief-Bench Team"}, "is kept for the benchmark's own entries; name who made the defense"),
        ({"--authors": "Th\u0456efBench"}, "mixes Cyrillic and Latin letters, some of which look the same"),
        ({"--authors": "A.\u200b Author"}, "has characters that cannot be seen; leave them out"),
        ({"--name": "Reject All"}, "the name 'Reject All' is kept for reject_all, a row of the benchmark itself"),
        ({"--name": "oracle(reject='drop')"}, "is kept for oracle, a row of the benchmark itself"),
        ({"--name": "none on standard-v1"}, "is kept for none, a row of the benchmark itself"),
        ({"--name": "l\u043egit"}, "mixes Cyrillic and Latin letters"),
        ({"--name": "ABC \ua4d4"}, "has Lisu letters, which few readers can tell from others"),
    ],
)
def test_bad_words_are_told(tmp_path: Path, words: dict[str, str], said: str) -> None:
    given = dict(zip(CREDITS[::2], CREDITS[1::2], strict=True)) | words
    done = invoke(tmp_path, f"{mine(tmp_path)}:Mine", *(word for pair in given.items() for word in pair))
    assert said in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not (tmp_path / "store").exists(), "nothing is done before"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nowhere.py:Mine", "there is no file nowhere.py"),
        ("loggit", "did you mean logit"),
        ("{file}:Yours", "has no class Yours; it has Mine, Raises"),
        ("{file}:Mine(sword=1)", "its arguments: word"),
        ("{file}:Mine(", "malformed defense spec"),
    ],
)
def test_bad_spec_strings_are_told(tmp_path: Path, spec: str, said: str) -> None:
    done = invoke(tmp_path, spec.format(file=mine(tmp_path)), *CREDITS)
    assert isinstance(done.exception, SpecStringError)
    assert said in str(done.exception)


def test_what_only_one_machine_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Declared:
        name = "logit"

        class dist:  # noqa: N801
            name = "thiefbench-extras"

    monkeypatch.setattr("thiefbench.registry.entry", lambda kind, name: Declared)
    with pytest.raises(EntryError, match="logit is installed by thiefbench-extras, which others do not have"):
        prepare("logit", credits_of("x", "y", ""), suite(), NUMERICS, tmp_path / "store", tmp_path / "entries")


def test_a_folder_that_is_a_file_or_absent_is_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = invoke(tmp_path, f"{mine(tmp_path)}:Mine", *CREDITS, "--out", str(tmp_path / "file"), "--plan")
    file = tmp_path / "file"
    assert f"--out: no entry can be written to {file} ({file} is a file)" in str(done.exception)
    for command in (["submit", f"{mine(tmp_path)}:Mine", *CREDITS, "--suite", "tiny"], ["build", str(tmp_path)]):
        for shared in ("nowhere", str(tmp_path / "file")):
            done = CliRunner().invoke(app, ["leaderboard", *command, "--shared", shared])
            assert (done.exit_code, "'--shared'" in done.output) == (2, True), done.output


def planned_or_done(folder: Path, *more: str) -> str:
    """What a plan says."""
    done = invoke(folder, f"{mine(folder)}:Mine", *CREDITS, *more, "--plan")
    return f"{done.exception or ''}{done.output}"


def planned(folder: Path, *more: str) -> str:
    """What a plan says of a command that cannot end well."""
    done = invoke(folder, f"{mine(folder)}:Mine", *CREDITS, *more, "--plan")
    assert isinstance(done.exception, UserError), done.output
    return str(done.exception)


def test_places_where_nothing_can_be_written_are_found_before_anything_runs(tmp_path: Path) -> None:
    said = planned(tmp_path, "--out", "/proc/entries")
    assert "--out: no entry can be written to /proc/entries (No such file" in said
    said = planned(tmp_path, "--store", "/proc/store")
    assert "no cell can be stored in /proc/store (No such file" in said
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    assert "dangling is a broken link" in planned(tmp_path, "--out", str(tmp_path / "dangling" / "entries"))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "loop is a broken link" in planned(tmp_path, "--out", str(tmp_path / "loop"))
    store, entry = tmp_path / "store", tmp_path / "entries" / "my-filter"
    assert "--out names cells in the store" in planned(tmp_path, "--out", str(store / "cells"))
    inside = "lies in the folder of the entry"
    assert inside in planned(tmp_path, "--store", str(entry))
    assert inside in planned(tmp_path, "--store", str(entry / "store"))
    other = tmp_path / "entries" / "other"
    other.mkdir(parents=True)
    (other / "entry.json").touch()
    assert f"--out {other}" not in planned_or_done(tmp_path, "--out", str(other)), "that alone makes no entry"
    (other / "scores.json.gz").touch()
    before = sorted(other.rglob("*"))
    for words in (("--store", str(other / "store")), ("--store", str(other)), ("--out", str(other))):
        assert f"{words[0]} {words[1]} lies in the entry {other}" in planned(tmp_path, *words)
    for among in (tmp_path / "entries", tmp_path / "entries" / "store"):
        assert f"--store {among} lies among the entries of --out" in planned(tmp_path, "--store", str(among))
    assert sorted(other.rglob("*")) == before
    assert not entry.exists(), "nothing is done before"


@pytest.mark.parametrize("there", ["file", "folder", "link"])
def test_nothing_but_an_archive_gives_way_to_an_archive(store: Path, tmp_path: Path, there: str) -> None:
    path = store / "my-filter.tar"
    if there == "folder":
        path.mkdir()
    elif there == "file":
        path.write_text("a precious backup")
    else:
        (tmp_path / "elsewhere").write_text("cells/ of somebody")
        path.symlink_to(tmp_path / "elsewhere")
    said = planned(tmp_path)
    assert f"{path}, where the entry's archive will be written, is not the archive of an entry" in said


def test_an_earlier_archive_is_replaced(store: Path, tmp_path: Path) -> None:
    for word in ("hail", "thief"):
        made = made_in(tmp_path, spec=f"Mine(word={word!r})")
        entry = submit.write(made, submit.run(made, tiny.Watcher()))
        assert entry.manifest.archive.sha256 == file_sha256(store / "my-filter.tar")


def test_a_folder_without_published_cells_is_not_taken_for_one_with_none(store: Path, tmp_path: Path) -> None:
    board = tmp_path / "board"
    (board / "other-v1").mkdir(parents=True)
    assert f"--shared {board} holds no suite's published cells" in planned(tmp_path, "--shared", str(board))
    (board / "other-v1" / "sets" / "cpu" / "cells").mkdir(parents=True)
    said = planned(tmp_path, "--shared", str(board / "other-v1"))
    assert said.endswith(f"holds no suite's published cells; write --shared {board}")
    done = invoke(tmp_path, f"{mine(tmp_path)}:Mine", *CREDITS, "--shared", str(board), "--plan")
    assert f"no shared cell of tiny-v1 is published in {board}" in done.output.replace("\n", " ")


def test_an_entry_on_another_suite_or_of_another_defense_is_not_replaced(store: Path, tmp_path: Path) -> None:
    made = made_in(tmp_path)
    submit.write(made, submit.run(made, tiny.Watcher()))
    content = (made.folder / "entry.json").read_bytes()
    with pytest.raises(
        EntryError, match="my-filter is an entry on tiny-v1, and this one, on other-v1, would replace it"
    ):
        prepare(
            f"{mine(tmp_path)}:Mine(word='hail')", credits_of("My filter", "A. Author, B. Author", ""),
            replace(suite(), name="other"), NUMERICS, store, tmp_path / "entries",
        )  # fmt: skip
    same_folder = credits_of("\u9632\u5fa1: my filter", "A. Author, B. Author", "")
    assert same_folder.slug == "my-filter"
    fields: dict[str, Any] = {"numerics": NUMERICS, "store": store, "out": tmp_path / "entries"}
    with pytest.raises(EntryError, match=r"is the entry 'My filter' of another defense \(defense/mine.py:Mine\)"):
        prepare(f"{mine(tmp_path)}:Mine(word='thief')", same_folder, suite(), **fields)
    assert (made.folder / "entry.json").read_bytes() == content
    assert prepare(f"{mine(tmp_path)}:Mine(word='hail')", same_folder, suite(), **fields), "the same under a new name"


def test_a_full_disk_leaves_an_entry_as_it_was(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_in(tmp_path)
    records = submit.run(made, tiny.Watcher())
    submit.write(made, records)
    before = {path: path.read_bytes() for path in made.folder.rglob("*") if path.is_file()}
    write = entry_module.write_atomically

    def full(path: Path, data: bytes) -> None:
        if path.name == "entry.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(entry_module, "write_atomically", full)
    other = made_in(tmp_path, spec="Mine(word='thief')")
    with pytest.raises(OSError, match="No space left"):
        submit.write(other, submit.run(other, tiny.Watcher()))
    assert {path: path.read_bytes() for path in made.folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in made.folder.parent.iterdir()] == ["my-filter"]


def test_other_peoples_folders_stay(store: Path, tmp_path: Path) -> None:
    made = made_in(tmp_path)
    submit.write(made, submit.run(made, tiny.Watcher()))
    others = [*CREDITS[:2], "--authors", "C. Author"]
    done = invoke(tmp_path, f"{mine(tmp_path)}:Mine", *others)
    assert "my-filter is an entry of A. Author, B. Author; give yours another --name" in str(done.exception)
    (tmp_path / "entries/yours").mkdir()
    (tmp_path / "entries/yours/notes").touch()
    done = invoke(tmp_path, f"{mine(tmp_path)}:Mine", "--name", "Yours", "--authors", "me")
    assert "yours already exists and is not an entry; give another --name or --out" in str(done.exception)


def test_a_broken_rule_stops_it(tmp_path: Path) -> None:
    file = mine(tmp_path).rename(tmp_path / "bad.py")
    done = invoke(tmp_path, f"{file}:Mine", *CREDITS)
    assert done.exit_code == 1, done.output
    assert "FAILED  is good" in done.output
    assert "is not ready" in done.output
    assert not (tmp_path / "store/cells").exists(), "nothing was run"
    assert not (tmp_path / "entries").exists(), "and nothing written"


def test_a_failed_cell_stops_it(store: Path, tmp_path: Path) -> None:
    done = invoke(tmp_path, f"{mine(tmp_path)}:Raises", *CREDITS)
    assert done.exit_code == 1, done.output
    assert "failed: defense/mine.py:Raises against text" in done.output
    assert "this defense gives up" in done.output
    assert "the same command tries these again" in done.output
    assert not (tmp_path / "entries").exists(), "an error is never a score"


# --- the lock ---


def changed(name: str, value: str) -> Callable[[Record], Record]:
    return lambda record: record.model_copy(update={"provenance": record.provenance | {name: value}})


def test_an_entry_has_one_version_of_everything(shared: Path) -> None:
    records = Store(shared).records()
    lock = versions(records, Store(shared))
    assert all(lock.values())
    mixed = [changed("torch", "1.0")(records[0]), *records[1:]]
    with pytest.raises(
        EntryError, match=rf"were made with torch 1\.0 and {lock['torch'].split('+')[0]}.*another --store"
    ):
        versions(mixed, Store(shared))


def test_machines_that_differ_are_all_named(shared: Path) -> None:
    records = Store(shared).records()
    told = machine(records)
    assert {"processor", "cores", "threads", "device_name", "git_commit"} <= told.keys()
    assert not {"torch", "python", "started", "finished", "ended"} & told.keys()
    mixed = [changed("processor", "Abacus")(records[0]), *records[1:]]
    assert machine(mixed)["processor"] == f"{' / '.join(sorted(['Abacus', told['processor']]))}"
    just_run = [each.model_copy(update={"provenance": dict(reversed(each.provenance.items()))}) for each in records]
    assert list(machine(just_run).items()) == list(told.items()), "stored records are sorted, those just run are not"


def test_suites_that_rank_are_taken() -> None:
    assert [released(name).title for name in ("trial", "standard-v2")] == ["trial-v1", "standard-v2"]


def test_the_suites_that_take_a_defense_are_those_that_rank_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    inspecting = ["standard-v2", "heterogeneous-v1", "paper", "rewards-v1", "trial", "truth-v1"]
    assert rankable("defense") == inspecting, "the current one first, and no superseded one"
    assert (rankable("aggregation"), rankable("stage_check")) == (["averaging-v1"], ["pipeline-v1"])
    assert sorted(rankable()) == sorted([*inspecting, "averaging-v1", "pipeline-v1"])
    with pytest.raises(EntryError, match=r"write --suite standard-v2, heterogeneous-v1, .*, trial or truth-v1$"):
        released("smoke", "defense")
    with pytest.raises(EntryError, match=r"write --suite pipeline-v1$"):
        released("mine.yaml", "stage_check")


def test_every_built_in_defense_has_a_standing_entry() -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    loop = text.partition("for defense in ")[2].partition("; do")[0].replace("\\", " ")
    specs = shlex.split(loop)
    named = {registry.canonical("defense", spec).partition("(")[0] for spec in specs}
    needs = {name: registry.find("defense", name).requires for name in registry.names("defense")}
    unranked = {"versions", "answer_keys", "rule_rewards"}
    absent = {name for name, each in needs.items() if isinstance(each, frozenset) and unranked & each}
    assert named == set(registry.names("defense")) - absent, "the loop names all that a ranked suite's swarm can have"
    slugs = [credits_of(spec, OWN, "").slug for spec in specs]
    assert len(set(slugs)) == len(specs), "each has a folder of its own"
