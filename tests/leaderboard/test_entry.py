"""An entry is read as it was written, and every kind of damage has its sentence."""

from __future__ import annotations

import errno
import gzip
import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.leaderboard import made_entries
from tests.leaderboard.scores_files import put_scores, scores_of, scores_sha256, scores_text
from thiefbench.cli import app
from thiefbench.console import err, escaped, fail, stranger_s
from thiefbench.errors import UserError
from thiefbench.leaderboard import entry as entries
from thiefbench.leaderboard import rows
from thiefbench.leaderboard.cell_scores import CURVES, SHARED_SCORES, Scores, trimmed
from thiefbench.leaderboard.entry import ENTRY_BYTES, Entry, EntryError, read_entry, write_entry
from thiefbench.leaderboard.gzipped import compressed, decompressed
from thiefbench.leaderboard.manifest import MANIFEST, SCORES, STORED_SCORES
from thiefbench.leaderboard.published import WORDS_BYTES
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import Point, Record, Score
from thiefbench.suite.suite_yaml import load_suite

SPEC = "defense/mine.py:Mine(floor=-3.0)"
NO_HEADER = "scores.json.gz has a gzip header that thiefbench does not write"
FAILED = "it failed, and the record of a failed cell holds no scores"


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    """An entry of a submitted file, on the suite to rehearse on."""
    return made_entries.entry(tmp_path, defense=SPEC)


def edit(entry: Entry, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Edit one of the two JSON files, hashes left as they are."""
    path = entry.folder / name
    data = scores_of(entry.folder) if name == SCORES else json.loads(path.read_bytes())
    change(data)
    if name == SCORES:
        put_scores(entry.folder, json.dumps(data))
    else:
        path.write_text(json.dumps(data))


def put(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.update(changes)


def renamed(data: dict[str, Any]) -> None:
    data["slug"] = "other"
    data["archive"]["name"] = "other.tar"


# --- round trip ---


def test_what_is_read_is_what_was_written(entry: Entry) -> None:
    again = read_entry(entry.folder)
    assert (again.manifest, again.cells) == (entry.manifest, entry.cells)
    assert again.manifest.defense == SPEC
    assert [path.name for path in again.source] == ["mine.py"]
    assert {cell.defense for cell in again.own} == {SPEC}, "own cells are those of the submitted defense"


def test_equal_content_gives_equal_bytes(entry: Entry, tmp_path: Path) -> None:
    source = {"defense/mine.py": made_entries.SOURCE}
    again = write_entry(tmp_path / "again" / "mine", entry.manifest, Scores(cells=entry.cells), source)
    for name in (MANIFEST, STORED_SCORES, "defense/mine.py"):
        assert (again.folder / name).read_bytes() == (entry.folder / name).read_bytes(), name


def test_scores_are_read_line_by_line(entry: Entry) -> None:
    lines = scores_text(entry.folder).splitlines()
    assert sum('"cell_id"' in line for line in lines) == len(entry.cells), "a cell has a line, for a diff that tells"


def test_shared_cells_keep_what_the_row_is_measured_against(entry: Entry) -> None:
    for cell in entry.cells:
        if cell.defense == SPEC:
            assert set(cell.curves) == set(CURVES)
            assert cell.scores.keys() > set(SHARED_SCORES)
            assert cell.seconds
        else:
            assert cell.scores.keys() == set(SHARED_SCORES)
            assert bool(cell.seconds) == (cell.role == "attack" and cell.defense == "none")


def test_its_row_is_that_of_the_numbers(entry: Entry) -> None:
    from thiefbench.leaderboard.submit import row_of, row_summary

    row = row_of(entry)
    assert row.place.status == "unplaced"
    assert row_summary(row)[0].startswith("worst case of harm prevented: 0.9")
    assert row_summary(row)[-1] == (
        "it will be listed without a place: the suite has 1 seed, and a ranking takes 5 or more"
    )


def test_an_unranked_row_says_why(tmp_path: Path) -> None:
    from thiefbench.leaderboard.submit import row_of, row_summary

    weak = made_entries.entry(tmp_path, "weak", made_entries.prevents(0.9, utility=0.5), "standard-v1")
    assert row_summary(row_of(weak))[-1] == (
        "it will be listed as unranked: its utility without an attack is 0.500 (one-sided 95 % limit over seeds: "
        "0.500), and 0.9 is asked"
    )
    fit = made_entries.entry(tmp_path, "fit", made_entries.prevents(0.9), "standard-v1")
    assert row_summary(row_of(fit))[-1] == "it will be ranked"


def test_spec_strings_follow_their_files(tmp_path: Path) -> None:
    nested = "logit+reputation(defense='defense/mine.py:Mine(floor=1)')+defense/mine.py:Mine"
    entry = made_entries.entry(tmp_path, defense=nested.replace("logit+", "defense/mine.py:Mine+"))
    moved = f"{entry.folder}/defense/mine.py"
    assert entry.spec == f"{moved}:Mine+reputation(defense='{moved}:Mine(floor=1)')+{moved}:Mine"


def test_a_built_in_defense_has_no_source(tmp_path: Path) -> None:
    entry = made_entries.entry(tmp_path, defense="logit(reject='drop')")
    assert entry.source == []
    assert entry.spec == "logit(reject='drop')"


def test_the_cells_of_an_anchor_are_there_once() -> None:
    suite = load_suite("trial")
    for anchor in ("none", "oracle(reject='drop')"):
        cells = rows.wanted(suite, suite.seeds, made_entries.NUMERICS, anchor)
        assert len(set(cells)) == len(cells), anchor
        assert any((cell.role, cell.defense) == ("control", anchor) for cell in cells), "and its utility is among them"


def long_numbers(cell: CellSpec) -> Record:
    """A record whose numbers all need their digits."""
    rng = random.Random(str(cell))
    made = made_entries._record(cell, made_entries.Numbers())
    names = ("asr", "peak_asr", "stop_rate", "false_rejection_rate", "masked_rate", *SHARED_SCORES[1:], "mean_length")
    scores = {
        name: Score(value=(v := rng.random() / 30), low=v * rng.random(), high=v + (1 - v) * rng.random(), count=19_560)
        for name in names
    }
    rounds = range(0, cell.rounds + 1, cell.evaluation.every)
    curves = {name: [Point(round=number, value=rng.random() / 30) for number in rounds] for name in CURVES}
    phases = ("attack", "evaluate", "gather", "inspect", "reward", "sample", "update")
    seconds = {name: 1000 * rng.random() for name in phases}
    return made.model_copy(update={"scores": scores, "curves": curves, "seconds": seconds})


def test_an_entry_of_the_standard_suite_fits(tmp_path: Path) -> None:
    suite = load_suite("standard-v1")
    defense = "defense/a_longer_name.py:PlausibleOpening(floor=-3.0, reject='drop')+similarity(threshold=0.25)"
    some = made_entries.entry(tmp_path, defense=defense.replace("a_longer_name", "mine"), says=made_entries.prevents())
    cells = []
    for cell in rows.wanted(suite, suite.seeds, made_entries.NUMERICS, defense):
        part = suite.part_of(replace(cell, defense="none"))
        record = long_numbers(cell)
        drift = dict.fromkeys(("drift", "divergence"), record.scores["asr"])
        cells.append(trimmed(record, part, cell.defense == defense, "0" * 64, drift))
    assert len(cells) == 195, "5 seeds, 6 attacks, 3 parts"
    written = len(entries.written(Scores(cells=tuple(cells)))) + len(entries.written(some.manifest))
    assert written < 0.95 * ENTRY_BYTES, "it fits, with room for longer names"


# --- damage ---


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (MANIFEST, put(note="x"), "entry.json: note: Extra inputs are not permitted"),
        (MANIFEST, put(schema_version=4), "entry.json: schema_version: Input should be 1, 2 or 3"),
        (MANIFEST, put(slug="Mine"), "entry.json: slug: .*write 1 to 48 lower-case letters, digits and hyphens"),
        (MANIFEST, renamed, "entry.json: the slug is other, but the folder has another name"),
        (MANIFEST, put(authors=[]), "entry.json: authors: .*at least 1 item"),
        (MANIFEST, put(name="two\nlines"), "entry.json: name: String should match"),
        (MANIFEST, put(paper="javascript:alert(1)"), "entry.json: paper: String should match"),
        (MANIFEST, put(paper='https://a"onclick='), "entry.json: paper: String should match"),
        (MANIFEST, put(submitted="yesterday"), "entry.json: submitted: "),
        (MANIFEST, put(defense="/etc/evil.py:Mine"), "defense names the file /etc/evil.py, which is not part"),
        (MANIFEST, put(defense="defense/../../x.py:Mine"), r"names the file defense/\.\./\.\./x.py, which is not part"),
        (MANIFEST, put(defense="none+x.py:Mine"), "defense names the file x.py, which is not part of the entry"),
        (MANIFEST, put(defense="reputation(defense='x.py:M')"), "defense names the file x.py, which is not part"),
        (MANIFEST, put(defense="defense/mine.py:Mine("), "entry.json: defense: malformed defense spec"),
        (MANIFEST, put(files={"defense/mine.py": "0" * 64}), "entry.json: files: .*scores.json is not listed"),
        (MANIFEST, put(files={SCORES: "0" * 64, "../x": "0" * 64}), "'../x' is neither scores.json nor a path in def"),
        (MANIFEST, put(files={SCORES: "0" * 64, "x.py": "0" * 64}), "'x.py' is neither scores.json nor a path in def"),
        (MANIFEST, put(files={SCORES: "0" * 64}), "holds defense/mine.py, which entry.json does not list"),
        (
            MANIFEST,
            put(weights=[{"name": f"../net-{'0' * 64}.safetensors", "sha256": "0" * 64, "bytes": 1}]),
            "is not named NAME-SHA256.safetensors",
        ),
        (
            MANIFEST,
            put(weights=[{"name": f"net-{'0' * 64}.safetensors", "sha256": "1" * 64, "bytes": 1}]),
            "is not named NAME-SHA256.safetensors",
        ),
        (MANIFEST, put(authors=["A. Author", "ThiefBench"]), "the author 'ThiefBench' is kept for the benchmark's own"),
        (MANIFEST, put(authors=["Thi\u0435fBench"]), "the author .* mixes Cyrillic and Latin letters"),
        (MANIFEST, put(name="reject-all"), "the name 'reject-all' is kept for reject_all, a row of the benchmark"),
        (MANIFEST, put(name="mine \u202e"), "has characters that cannot be seen"),
        (MANIFEST, put(name="\u3164"), "has characters that cannot be seen"),
        (MANIFEST, put(name="mine\u034f"), "has characters that cannot be seen"),
        (MANIFEST, put(name="mine" + "\u0301" * 5), "has more than 4 marks on one letter"),
        (MANIFEST, put(name="OracIe"), "the name 'OracIe' is kept for oracle, a row of the benchmark"),
        (MANIFEST, put(name="bIack1ist on trial"), "is kept for blacklist, a row of the benchmark"),
        (MANIFEST, put(name="Randorn"), "is kept for random, a row of the benchmark"),
        (MANIFEST, put(name="\u043f\u043e\u043f\u0435"), "is kept for none, a row of the benchmark"),
        (MANIFEST, put(authors=["Th\u0131efBench"]), "is kept for the benchmark's own entries"),
        (MANIFEST, put(name="\u039d\u039f\u039d\u0395"), "is kept for none, a row of the benchmark"),
        (MANIFEST, put(name="none\u02bc"), "is kept for none, a row of the benchmark"),
        (MANIFEST, put(name="guard by ThiefBench"), "the name 'guard by ThiefBench' is kept for the benchmark's own"),
        (MANIFEST, put(name="guard (re-executed)"), "gives a verdict, as only the board does"),
        (MANIFEST, put(authors=["verdict: re-executed"]), "the author 'verdict: re-executed' gives a verdict"),
        (MANIFEST, put(defense="defense/mine.py:Mine(note='rescored')"), "the defense .* gives a verdict"),
        (MANIFEST, put(defense="none"), "the name 'Mine' is given to none, a row of the benchmark itself"),
        (MANIFEST, put(authors=["Th!efBench"]), "is kept for the benchmark's own entries"),
        (MANIFEST, put(authors=["Thief\u02ccBench"]), "is kept for the benchmark's own entries"),
        (
            MANIFEST,
            put(authors=["\u03a4\u0397\u0399\u0395\u03dc\u0392\u0395\u039d\u03f9\u0397"]),
            "is kept for the benchmark's own entries",
        ),
        (
            MANIFEST,
            put(authors=["\u1d1b\u029c\u026a\u1d07\ua730\u0299\u1d07\u0274\u1d04\u029c"]),
            "is kept for the benchmark's own entries",
        ),
        (MANIFEST, put(authors=["Th1ef Bench team"]), "is kept for the benchmark's own entries"),
        (MANIFEST, put(archive={"name": "x.tar", "sha256": "0" * 64, "bytes": 1}), "archive must be named mine.tar"),
        (SCORES, lambda data: None, "scores.json does not match entry.json: its SHA-256 differs"),
    ],
)  # fmt: skip
def test_damage_has_its_sentence(entry: Entry, name: str, change: Callable[[dict[str, Any]], Any], said: str) -> None:
    edit(entry, name, change)
    with pytest.raises(EntryError, match=said) as raised:
        read_entry(entry.folder)
    assert "\n" not in str(raised.value), "it is one line"


def test_a_folder_s_name_gives_no_verdict_either(entry: Entry) -> None:
    """It stands in the rows of others, which are told apart from it or not."""
    archive = {"name": "rescored-guard.tar", "sha256": "0" * 64, "bytes": 1}
    edit(entry, MANIFEST, put(slug="rescored-guard", archive=archive))
    with pytest.raises(EntryError, match="the name 'rescored-guard' gives a verdict, as only the board does"):
        read_entry(entry.folder.rename(entry.folder.with_name("rescored-guard")))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (gzip.decompress, "scores.json.gz cannot be decompressed: .*incorrect header"),
        (lambda stream: stream[:-9], "scores.json.gz is damaged: its end is missing"),
        (lambda stream: stream * 2, "scores.json.gz is damaged: something follows its end"),
        (lambda stream: gzip.compress(bytes(ENTRY_BYTES + 1)), "scores.json.gz holds more than 200,000 bytes"),
        (lambda stream: compressed(bytes(ENTRY_BYTES)), "have 20.,... bytes, and at most 200,000 are allowed"),
        (lambda stream: stream + bytes(ENTRY_BYTES), "scores.json.gz .*200,000 bytes"),
        (lambda stream: stream + gzip.compress(b""), "scores.json.gz is damaged: something follows its end"),
        (lambda stream: stream[:3] + b"\x08" + stream[4:10] + b"said\0" + stream[10:], NO_HEADER),
        (lambda stream: stream[:3] + b"\x10" + stream[4:10] + b"said\0" + stream[10:], NO_HEADER),
        (lambda stream: stream[:3] + b"\x04" + stream[4:10] + b"\x04\0said" + stream[10:], NO_HEADER),
        (lambda stream: stream[:4] + b"said" + stream[8:], NO_HEADER),
        (lambda stream: stream[:9] + b"!" + stream[10:], NO_HEADER),
        (
            lambda stream: stream[:10] + b"\0\0\0\xff\xff" * 200 + stream[10:],
            "many more than its content compresses to",
        ),
    ],
    ids=[
        "plain",
        "truncated",
        "doubled",
        "too much",
        "too much with the manifest",
        "a large file",
        "a further member",
        "a name",
        "a comment",
        "an extra field",
        "a time",
        "another system",
        "empty blocks",
    ],
)
def test_damaged_scores_have_their_sentence(entry: Entry, damage: Callable[[bytes], bytes], said: str) -> None:
    path = entry.folder / STORED_SCORES
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(EntryError, match=said) as raised:
        read_entry(entry.folder)
    assert "\n" not in str(raised.value), "it is one line"


def test_every_file_of_the_repository_is_read() -> None:
    """Compressed by whatever machine, its header is the one that is written today."""
    files = sorted((Path(__file__).parents[2] / "leaderboard").rglob("*.json.gz"))
    assert len(files) > 300
    for path in files:
        assert decompressed(path, path.read_bytes(), WORDS_BYTES)


def forged(entry: Entry, own: bool = True, **changes: Any) -> None:
    """Change what a cell says, attacked with the entry's own defense or undefended, and sign it anew."""

    def change(data: dict[str, Any]) -> None:
        wanted = SPEC if own else "none"
        cell = next(each for each in data["cells"] if (each["role"], each["defense"]) == ("attack", wanted))
        for name, value in changes.items():
            cell[name] = cell[name] | value if isinstance(value, dict) and value else value

    edit(entry, SCORES, change)
    edit(entry, MANIFEST, lambda data: data["files"].update({SCORES: scores_sha256(entry.folder)}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scores": {"asr": [7.0, 6.0, 8.0, 100]}}, "its asr is 7, and it cannot be above 1"),
        ({"scores": {"stop_rate": [-0.5, None, None, 100]}}, "its stop_rate is -0.5, and it cannot be below 0"),
        ({"scores": {"mean_length": [-3.0, -4.0, 5.0, 9]}}, "its mean_length is -3, and it cannot be below 0"),
        ({"scores": {"clean_reward": [0.9, 0.8, 1.5, 9]}}, "its clean_reward is 1.5, and it cannot be above 1"),
        ({"scores": {"clean_reward of micro-math": [2, 2, 2, 9]}}, "its clean_reward of micro-math is 2, and it"),
        ({"scores": {"asr": [0.5, 0.6, 0.7, 100]}}, "its asr is 0.5, outside of its interval from 0.6 to 0.7"),
        ({"scores": {"asr": [0.5, None, 0.4, 100]}}, "its asr is 0.5, outside of its interval from nothing to 0.4"),
        ({"scores": {"asr": [None, 0.1, 0.2, 100]}}, "its asr has an interval and no value"),
        ({"scores": {"asr": [0.5, 0.4, 0.6, -1]}}, "Input should be greater than or equal to 0"),
        ({"scores": {"drift": [1.1, 1.0, 1.2, 10]}}, "its drift is 1.1, and it cannot be above 1"),
        ({"curves": {"eval_asr": [[0, 0.0], [60, 3.0]]}}, "in round 60 of its curve, its eval_asr is 3, and it cannot"),
        ({"curves": {"eval_asr": [[60, 0.0], [60, 0.5]]}}, "its curve eval_asr has round 60 after round 60"),
        ({"error": "an error"}, "it has scores and an error"),
        ({"completions_sha256": ""}, "it has scores and no completions that they could follow from"),
        ({"scores": {"glory\n": [5, 5, 5, 5]}}, "it has 'glory', which no cell has"),
        ({"curves": {"fame": [[0, 1.0]]}}, "it has 'fame', which no cell has"),
        ({"status": "error"}, FAILED),
        ({"status": "error", "curves": {}, "seconds": {}, "completions_sha256": ""}, FAILED),
        ({"status": "error", "scores": {}, "seconds": {}, "completions_sha256": ""}, FAILED),
        ({"status": "error", "scores": {}, "curves": {}, "seconds": {}}, FAILED),
    ],
)  # fmt: skip
@pytest.mark.parametrize("own", [True, False])
def test_numbers_that_nothing_measures_are_refused(entry: Entry, own: bool, changes: dict[str, Any], said: str) -> None:
    forged(entry, own, **changes)
    with pytest.raises(EntryError, match=rf"scores\.json: cells\..*: {said}") as raised:
        read_entry(entry.folder)
    assert "\n" not in str(raised.value), "it is one line"


def test_a_failed_cell_without_scores_is_read(entry: Entry) -> None:
    nothing: dict[str, Any] = {"scores": {}, "curves": {}, "seconds": {}, "completions_sha256": ""}
    forged(entry, status="error", error="ValueError: no", **nothing)
    assert next(cell for cell in read_entry(entry.folder).own if cell.role == "attack").status == "error"


def test_a_divergence_may_be_negative_and_a_length_long(entry: Entry) -> None:
    forged(entry, scores={"divergence": [-0.004, -0.01, 0.002, 50], "mean_length": [96.0, 90.0, 99.0, 50]})
    assert read_entry(entry.folder)


def test_scores_beside_the_compressed_ones_are_refused(entry: Entry) -> None:
    """A reader would look at these, and the board at the others."""
    (entry.folder / SCORES).write_text(scores_text(entry.folder))
    with pytest.raises(EntryError, match=r"scores.json is not compressed; an entry has scores.json.gz"):
        read_entry(entry.folder)


def test_names_of_every_language_are_taken(entry: Entry) -> None:
    for name in (
        "Zo\u00eb's filter",
        "\u03c3 \u03b1",
        "Фильтр 2",
        "検出フィルター v2",
        "K\u2082O + logit",
        "random forest",
        "None left",
    ):
        edit(
            entry,
            MANIFEST,
            put(
                name=name, authors=["Ó. Nagy-Łoś", "გიორგი", "김민수 Kim", "\u041e\u02bc\u0411\u0440\u0430\u044f\u043d"]
            ),
        )
        assert read_entry(entry.folder).manifest.name == name


def test_what_comes_with_the_benchmark_may_bear_its_name(tmp_path: Path) -> None:
    for place, (name, defense) in enumerate([("logit", "logit"), ("oracle", "oracle"), ("none on trial", "none")]):
        entry = made_entries.entry(tmp_path, f"own-{place}", defense=defense, name=name, authors=("ThiefBench",))
        assert read_entry(entry.folder).manifest.name == name


def test_files_are_those_that_are_listed(entry: Entry) -> None:
    folder = entry.folder
    (folder / "defense/notes.txt").touch()
    with pytest.raises(EntryError, match=r"holds defense/notes\.txt, which entry\.json does not list"):
        read_entry(folder)
    (folder / "defense/notes.txt").unlink()
    (folder / "defense/__pycache__").mkdir()
    (folder / "defense/__pycache__/mine.cpython-311.pyc").touch()
    with pytest.raises(EntryError, match=r"mine\.cpython-311\.pyc, which entry\.json does not list"):
        read_entry(folder)
    shutil.rmtree(folder / "defense/__pycache__")
    (folder / "defense/mine.py").write_text("x = 1\n")
    with pytest.raises(EntryError, match=r"mine\.py does not match entry\.json: its SHA-256 differs"):
        read_entry(folder)
    (folder / "defense/mine.py").unlink()
    with pytest.raises(EntryError, match=r"lacks defense/mine\.py, which entry\.json lists"):
        read_entry(folder)
    (folder / "defense/mine.py").symlink_to("/etc/passwd")
    with pytest.raises(EntryError, match=r"mine\.py is not a plain file"):
        read_entry(folder)


@pytest.mark.parametrize("how", ["at one stroke", "in two steps", "file by file"])
def test_a_version_takes_the_place_of_another(entry: Entry, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """As a whole, which is another folder, or where a file system cannot rename folders, all of its files."""
    if how != "at one stroke":
        monkeypatch.setattr(entries, "_exchanged", lambda one, other: False)
    replace_path = Path.replace

    def refused(path: Path, target: Path) -> Path:
        if path.is_dir():
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return replace_path(path, target)

    if how == "file by file":
        monkeypatch.setattr(Path, "replace", refused)
    (entry.folder / "defense" / "left.py").write_text("of the earlier version")
    before = entry.folder.stat().st_ino
    scores = scores_of(entry.folder)
    entries.write_files(entry.folder, {MANIFEST: b"{}", SCORES: json.dumps(scores).encode()})
    assert sorted(path.name for path in entry.folder.rglob("*")) == [MANIFEST, STORED_SCORES]
    assert (entry.folder.stat().st_ino != before) == (how != "file by file")
    assert [path.name for path in entry.folder.parent.iterdir() if path.name.startswith(".")] == []


def test_a_stop_between_two_renames_leaves_the_earlier_version(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_exchanged", lambda one, other: False)
    replace_path, number = Path.replace, 0

    def stopped(path: Path, target: Path) -> Path:
        nonlocal number
        number += entry.folder in (path, target)
        if number == 2:
            number += 1
            raise KeyboardInterrupt
        return replace_path(path, target)

    content = {path: path.read_bytes() for path in entry.folder.rglob("*") if path.is_file()}
    monkeypatch.setattr(Path, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        entries.write_files(entry.folder, {MANIFEST: b"{}", SCORES: b"{}"})
    assert {path: path.read_bytes() for path in entry.folder.rglob("*") if path.is_file()} == content


def test_lines_that_pip_reads_hold_versions_alone(entry: Entry) -> None:
    manifest = json.loads((entry.folder / MANIFEST).read_text())
    for name, version in (
        ("numpy", "2.4.0\n--extra-index-url https://example.org"),
        ("-r evil.txt", "1"),
        ("torch", ""),
    ):
        changed = manifest | {"versions": manifest["versions"] | {name: version}}
        (entry.folder / MANIFEST).write_text(json.dumps(changed))
        with pytest.raises(EntryError, match=r"entry.json: versions.*String should match pattern"):
            read_entry(entry.folder)


def test_sizes_are_bounded(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EntryError, match="there is no entry"):
        read_entry(entry.folder / "nowhere")
    monkeypatch.setattr(entries, "ENTRY_BYTES", len(scores_text(entry.folder)))
    with pytest.raises(EntryError, match=r"entry\.json and scores\.json of .* have [\d,]+ bytes, and at most \d"):
        read_entry(entry.folder)
    monkeypatch.setattr(entries, "ENTRY_BYTES", 1000)
    with pytest.raises(EntryError, match=r"scores\.json\.gz .*1,000 bytes"):
        read_entry(entry.folder)
    with pytest.raises(EntryError, match=r"the entry would have [\d,]+ bytes, and at most 1,000 are allowed"):
        write_entry(entry.folder, entry.manifest, Scores(cells=entry.cells), {})
    monkeypatch.undo()
    monkeypatch.setattr(entries, "FILE_BYTES", 10)
    with pytest.raises(EntryError, match=r"the source in .* has [\d,]+ bytes, and at most 10 are allowed"):
        read_entry(entry.folder)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000, b'{"slug": 1e999}', b"null"])
def test_what_is_no_json_of_ours_is_refused(entry: Entry, content: bytes) -> None:
    (entry.folder / MANIFEST).write_bytes(content)
    with pytest.raises(EntryError, match=r"entry\.json: "):
        read_entry(entry.folder)
    (entry.folder / MANIFEST).unlink()
    with pytest.raises(EntryError, match=r"is not an entry: it has no entry\.json"):
        read_entry(entry.folder)


# --- what is shown of an entry ---

LIE = "x\nok      the archive is the entry's\r\x1b[2K\x1b[1A\u202e\u2028\x85" + " " * 300 + "mine: re-executed"


def with_a_file(folder: Path) -> None:
    (folder / "defense" / LIE[:200].replace("/", "")).touch()


def with_a_key(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {LIE: 1}))


def with_a_spec(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"defense": f"defense/{LIE}.py:Mine"}))


def with_a_suite(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    named = manifest["suite"] | {"name": "x\x85\u2028ok      the archive is the entry's"}
    (folder / MANIFEST).write_text(json.dumps(manifest | {"suite": named}))


def with_a_part(folder: Path) -> None:
    scores = scores_of(folder)
    scores["cells"][0]["part"] = LIE[:150]
    put_scores(folder, json.dumps(scores))
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][SCORES] = scores_sha256(folder)
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("lie", [with_a_file, with_a_key, with_a_spec, with_a_suite, with_a_part])
def test_a_stranger_s_text_is_one_line_of_what_is_shown(entry: Entry, lie: Callable[[Path], None]) -> None:
    lie(entry.folder)
    for words in (["verify", str(entry.folder)], ["diff", str(entry.folder), str(entry.folder)]):
        result = CliRunner().invoke(app, ["leaderboard", *words])
        told = str(result.exception) if isinstance(result.exception, UserError) else result.output
        assert result.exit_code, told
        if isinstance(result.exception, UserError):  # `main` prints it so
            with pytest.raises(SystemExit), err.capture() as captured:
                fail(told)
            told = captured.get()
        assert not re.search(r"[^\n -~\u00a0-\u2027]", told), "no character moves the cursor or turns the text"
        forged_lines = [line for line in told.splitlines() if re.match(r"\s*(ok\s+the archive|mine: re-exec)", line)]
        assert forged_lines == [], told
        assert " " * 10 not in told.replace("ok      ", ""), "nor padding"


def test_messages_are_one_line() -> None:
    assert escaped("a\nb [bold]\x1b[1m\u202e") == "a b \\[bold]<U+001B>[1m<U+202E>"
    assert stranger_s("a\n\t   b\x1b") == "a b<U+001B>"
