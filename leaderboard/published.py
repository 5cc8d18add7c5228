"""Shared cells that the board has published: what every defense of a suite is measured against, once for all.

    shared/SUITE/cells/CELL.json.gz     a control, undefended, placebo or oracle cell
    shared/SUITE/words/SHA256.json.gz   the words of a control's held-out answers, which drift is measured against
    shared/SUITE/sets/NAME/...          the same, computed with another version of torch, other vector instructions, ...

SUITE is a suite's title, as in standard-v1. What lies in its folder is its first set of cells; further sets lie beside
it, so that machines that compute otherwise have one too. A set is computed alike, and a further one is named after how
(`set_name`). An entry is measured against one set alone. The files are compressed text, are part of the repository and
of the installed package, and hold what the scores of a defense's own cells need of the cells that they are measured
against (hashes are of the text before compression):

- the record with its scores and its evaluation curves, in full: harm, harm prevented and utility follow from these;
- drift and divergence, and of controls the words of the held-out answers, so that an own cell's can be computed;
- a hash of the record, of the completions and of every round of these, so that a cell computed elsewhere can be
  compared with it bit for bit, and where they part can be said.

They hold no raw completions and no training curves. Who wants to compute a published cell's own scores again, replay a
defense on its pools or read its completions needs the store that it was published from, or runs the cell again.

Who may write here decides what every entry is measured against, so entries cannot: they name a cell and the hash of its
file, and are read beside the files that the reader's own installation holds.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import pyarrow as pa
from pydantic import Field, ValidationError

from thiefbench.errors import UserError
from thiefbench.leaderboard.cell_scores import CellScores, Numbers, score_of, trimmed
from thiefbench.leaderboard.gzipped import GzipError, compressed, decompressed
from thiefbench.leaderboard.manifest import EntryModel, MalformedError, Sha256, strictly_parsed
from thiefbench.regular_files import NotRegularError, read_regular
from thiefbench.suite.analysis.cell_drift import honest_drift, of_next_seed
from thiefbench.suite.analysis.drift import Answers
from thiefbench.suite.scenario import heading
from thiefbench.suite.store.arithmetic import arithmetic_of, maker_of
from thiefbench.suite.store.ranges import wrong_score
from thiefbench.suite.store.record_content import wrong_results
from thiefbench.suite.store.records import Record, Score, identify, write_atomically
from thiefbench.tasks.text import one_line

SHARED: Final = Path(__file__).parent / "shared"
"""The published cells that came with the installed package."""
SETS: Final = "sets"
"""The folder of a suite's further sets."""
PUBLISHED_SCHEMA: Final = 1
CELL_BYTES: Final = 1 << 20
"""Of a published cell; those of standard-v1 have about 10 kB."""
WORDS_BYTES: Final = 16 << 20
"""Of a control's words; those of standard-v1 have about 100 kB."""

_CELL_ID = re.compile(r"[0-9a-f]{16}")
_SET = re.compile(r"[a-z0-9][a-z0-9_.+-]{0,99}")
_TITLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SUFFIX = ".json.gz"
_DIGITS = 16
"""Hexadecimal digits of the hash of one round."""


class PublishedError(UserError):
    """A published cell cannot be read. One sentence for the user."""


class PublishedCell(EntryModel):
    """A shared cell as it is published.

    Attributes:
        schema_version: of this format.
        sealed: SHA-256 of all other fields; it tells an edit by mistake. One on purpose is told by the hash in entries.
        suite, part: whose cell it is.
        record: its record without the curves of training.
        record_sha256: of the whole record's file in the store that it was published from.
        rounds: a hash of the completions of every round and evaluation, by name, in their order.
        drift: drift and divergence beside the control of its seed, rounded; a control has none of its own, as its own
            are measured against another seed's control (`Published.scores`).
        words: SHA-256 of the words of its held-out answers; empty but for controls.
    """

    schema_version: Literal[1] = PUBLISHED_SCHEMA
    sealed: str
    suite: str
    part: str
    record: Record
    record_sha256: Sha256
    rounds: dict[str, Annotated[str, Field(pattern=rf"^[0-9a-f]{{{_DIGITS}}}$")]]
    drift: dict[str, Numbers] = Field(default={})
    words: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""

    @property
    def cell_id(self) -> str:
        """Of its record."""
        return self.record.cell_id

    @property
    def key(self) -> Key:
        """Which cell of its suite it is."""
        return key_of(self.part, self.record.cell)

    def numbers_apart(self, cell: CellScores) -> str:
        """How an entry's numbers of this cell, with equal completions, are others, in words; drift aside.

        Until the archive was read, nothing else says that they follow from the completions.
        """
        if cell.schema_version != self.record.schema_version:
            same = cell.record_sha256 == self.record_sha256
            return "its record is the published one, and its schema is not" if same else ""  # of other measures
        expected = trimmed(self.record, self.part, False, self.record_sha256)
        if cell.status != expected.status or cell.curves != expected.curves:
            return "its completions are the published ones, and its curves are not"
        apart = next((name for name, numbers in expected.scores.items() if cell.scores.get(name) != numbers), "")
        return f"its completions are the published ones, and its {apart} is not" if apart else ""

    @property
    def is_control(self) -> bool:
        """Whether drift is measured against it."""
        return bool(self.words)


Key = tuple[str, str, str, str, int]
"""Part, role, attack, defense and seed: a cell of a suite, whatever device, dtype and threads it was run with."""


class Words(EntryModel):
    """The words of a control's held-out answers (`thiefbench.suite.analysis.drift.Answers`), without their order.

    Attributes:
        items: every item that is named below.
        vocabulary: every word of any evaluation, separated by spaces; those that the last one uses most come first.
        writers: for each of these, the place among `items` of the one item whose answers hold it, or -1.
        answers: of the last evaluation, in its order: the place of its item, then those of its words, ascending.
    """

    schema_version: Literal[1] = PUBLISHED_SCHEMA
    items: tuple[str, ...]
    vocabulary: str
    writers: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]


def given(root: Path | None) -> Path:
    """The folder of published cells that the user named, or that of the installed package.

    A board may have published cells of other suites than the one that they are looked up for.

    Raises:
        PublishedError: it holds no suite's cells.
    """
    if root is None:
        return SHARED
    if not any(_has_cells(each) for each in root.iterdir()):
        above = f"; write --shared {root.resolve().parent}" if _has_cells(root) else ""
        raise PublishedError(f"--shared {root} holds no suite's published cells{above}")
    return root


def _has_cells(suite: Path) -> bool:
    return (suite / "cells").is_dir() or any((suite / SETS).glob("*/cells"))


def key_of(part: str, cell: Mapping[str, Any]) -> Key:
    """Which cell of a suite a record's parameters, or a spec's, describe."""
    return part, str(cell["role"]), str(cell["attack"]), str(cell["defense"]), int(cell["seed"])


def label_of(key: Key) -> str:
    """The name of a cell of a suite, for readers."""
    part, role, attack, defense, seed = key
    return f"{role} cell, {heading(part, attack)} x {defense}, seed {seed}"


class Published:
    """One set of the published cells of a suite.

    Args:
        root: the folder of all suites' published cells.
        title: of the suite, as in standard-v1; it may come from a stranger.
        name: of a further set; empty for the first one.
    """

    def __init__(self, root: Path, title: str, name: str = "") -> None:
        self.root, self.title, self.name = root, title, name
        known = _TITLE.fullmatch(title) and (not name or _SET.fullmatch(name))
        self.folder = (root / title / SETS / name if name else root / title) if known else None

    def beside(self, name: str) -> Published:
        """A further set of the same suite."""
        return Published(self.root, self.title, name)

    def find(self, cell_id: str) -> tuple[PublishedCell, str] | None:
        """A cell and the SHA-256 of its text; None where it is not published.

        Raises:
            PublishedError: its file is damaged, was edited, or belongs elsewhere.
        """
        if self.folder is None or not _CELL_ID.fullmatch(cell_id):
            return None
        path = cell_path(self.folder, cell_id)
        if (content := _content(path, CELL_BYTES)) is None:
            return None
        cell = _parsed_cell(path, content)
        if (cell.suite, cell.cell_id) != (self.title, cell_id):
            raise PublishedError(f"{path} holds the cell {cell.cell_id} of {cell.suite}, which belongs elsewhere")
        if self.name and (name := set_name(cell.record)) != self.name:
            raise PublishedError(f"{path} holds a cell of the set {name}, which belongs elsewhere")
        return cell, hashlib.sha256(content).hexdigest()

    def has(self, cell_id: str, sha256: str) -> bool:
        """Whether it has a cell, with this SHA-256 of its text; the text is not parsed.

        Raises:
            PublishedError: its file is not a regular file, damaged or too large.
        """
        if self.folder is None or not _CELL_ID.fullmatch(cell_id):
            return False
        content = _content(cell_path(self.folder, cell_id), CELL_BYTES)
        return content is not None and hashlib.sha256(content).hexdigest() == sha256

    @cached_property
    def cells(self) -> dict[Key, list[PublishedCell]]:
        """All of them; of one cell of the suite there are several where several engine revisions made it.

        Raises:
            PublishedError: a file is damaged, was edited, or belongs elsewhere.
        """
        found: dict[Key, list[PublishedCell]] = {}
        for cell_id in self._ids():
            known = self.find(cell_id)
            assert known is not None, "its file is there"
            found.setdefault(known[0].key, []).append(known[0])
        return found

    def answers(self, cell: PublishedCell) -> Answers:
        """The words of a published control's held-out answers; those of an answer are in another order.

        Raises:
            PublishedError: they are missing, or not those that the cell names.
        """
        return _answers(self.words(cell))

    def words(self, cell: PublishedCell) -> bytes:
        """The content of a published control's words' file; raises as `answers`."""
        assert self.folder is not None
        return _words(self.folder, cell.words)

    def scores(self, cells: Sequence[PublishedCell]) -> list[CellScores]:
        """Published cells as an entry that refers to them has them.

        A control's drift and divergence are what an honest swarm has: measured against the control of the next seed
        among these cells, or where there is one seed alone, of its own answers, split.

        Args:
            cells: those that the entry refers to.

        Raises:
            PublishedError: a control's words are missing or damaged.
        """
        of_row: dict[tuple[str, str], dict[int, PublishedCell]] = {}
        for cell in cells:
            if cell.is_control:
                of_row.setdefault((cell.part, cell.record.cell["attack"]), {})[cell.record.cell["seed"]] = cell
        scores = []
        for cell in cells:
            drift = {name: score_of(numbers) for name, numbers in cell.drift.items()}
            if cell.is_control:
                controls = of_row[cell.part, cell.record.cell["attack"]]
                drift = self._honest(cell, of_next_seed(controls, cell.record.cell["seed"]))
            scores.append(trimmed(cell.record, cell.part, False, cell.record_sha256, drift))
        return scores

    def _honest(self, control: PublishedCell, other: PublishedCell | None) -> dict[str, Score]:
        return _honest(self.words(control), None if other is None else self.words(other))

    def _ids(self) -> Iterator[str]:
        if self.folder is not None:
            names = (path.name.removesuffix(_SUFFIX) for path in sorted((self.folder / "cells").glob(f"*{_SUFFIX}")))
            yield from (name for name in names if _CELL_ID.fullmatch(name))


def published_sets(root: Path, title: str) -> list[Published]:
    """All sets of a suite's published cells, the first one first even if it is empty, the others by name.

    Args:
        root: the folder of all suites' published cells.
        title: of the suite; it may come from a stranger.
    """
    first = Published(root, title)
    further = [] if first.folder is None else sorted(path.name for path in (first.folder / SETS).glob("*"))
    return [first, *(Published(root, title, name) for name in further if _SET.fullmatch(name))]


def words_of(cells: Iterable[PublishedCell], published: Published) -> dict[str, Callable[[], Answers]]:
    """By cell id, what reads the words of those of a set's cells that are controls."""
    return {cell.cell_id: partial(published.answers, cell) for cell in cells if cell.is_control}


def set_name(record: Record) -> str:
    """The name of the further set that a cell belongs to: all that changes its last bits, as far as it is recorded."""
    cell, arithmetic = record.cell, arithmetic_of(record)
    said = [f"{cell['device']}", *(arithmetic[name] for name in ("capability",) if name in arithmetic), cell["dtype"]]
    said += [f"{cell['threads']}-threads", f"torch-{arithmetic.get('torch', 'unknown')}"]
    return re.sub(r"[^a-z0-9_.+-]", "-", "-".join(map(str, said)).lower())


def cell_path(folder: Path, cell_id: str) -> Path:
    """Where a suite's folder has a cell."""
    return folder / "cells" / f"{cell_id}{_SUFFIX}"


def words_path(folder: Path, sha256: str) -> Path:
    """Where a suite's folder has a control's words, compressed. Controls that wrote the same words share them.

    Args:
        folder: the suite's.
        sha256: of the words before compression.
    """
    return folder / "words" / f"{sha256}{_SUFFIX}"


def write_words(folder: Path, content: bytes) -> str:
    """Write a control's words (`words_file`) into its suite's folder; returns the SHA-256 that names them."""
    sha256 = hashlib.sha256(content).hexdigest()
    write_atomically(words_path(folder, sha256), compressed(content))
    return sha256


def published_cell(
    title: str,
    part: str,
    record: Record,
    record_sha256: str,
    table: pa.Table,
    drift: Mapping[str, Numbers],
    words: str,
) -> PublishedCell:
    """A finished cell as it is published.

    Args:
        title: of the suite.
        part: of the suite.
        record: of the cell.
        record_sha256: of the record's file.
        table: all of the cell's completions.
        drift: see `PublishedCell`.
        words: SHA-256 of its words' file; empty but for controls.
    """
    curves = {name: points for name, points in record.curves.items() if name.startswith("eval_")}
    kept = record.model_copy(update={"curves": curves, "pace": []})
    cell = PublishedCell(
        sealed="", suite=title, part=part, record=kept, record_sha256=record_sha256, rounds=round_hashes(table),
        drift=dict(drift), words=words,
    )  # fmt: skip
    return cell.model_copy(update={"sealed": _seal(cell)})


def write_cell(folder: Path, cell: PublishedCell) -> None:
    """Write a cell into its suite's folder."""
    data = _plain(cell)
    record = ",\n  ".join(f"{json.dumps(name)}: {_compact(value)}" for name, value in data.pop("record").items())
    lines = [f"{json.dumps(name)}: {_compact(value)}" for name, value in data.items()]
    content = "{\n " + ",\n ".join([*lines, '"record": {\n  ' + record + "\n }"]) + "\n}\n"
    write_atomically(cell_path(folder, cell.cell_id), compressed(content.encode()))


def words_file(answers: Answers) -> bytes:
    """The content of a control's words' file; equal answers give equal bytes."""
    uses = Counter(word for words in answers.words for word in words)
    vocabulary = sorted(answers.writers, key=lambda word: (-uses[word], word))
    places = {word: place for place, word in enumerate(vocabulary)}
    only = [answers.writers[word] for word in vocabulary]
    items = list(dict.fromkeys([*answers.items, *(item for item in only if item is not None)]))
    item_places = {item: place for place, item in enumerate(items)}
    rows = [
        [item_places[item], *sorted(places[word] for word in words)]
        for item, words in zip(answers.items, answers.words, strict=True)
    ]
    fields = {
        "schema_version": PUBLISHED_SCHEMA,
        "items": items,
        "vocabulary": " ".join(vocabulary),
        "writers": [-1 if item is None else item_places[item] for item in only],
    }
    lines = [f"{json.dumps(name)}: {_compact(value)}" for name, value in fields.items()]
    lines.append('"answers": [\n  ' + ",\n  ".join(map(_compact, rows)) + "\n ]")
    return ("{\n " + ",\n ".join(lines) + "\n}\n").encode()


def round_hashes(table: pa.Table) -> dict[str, str]:
    """A hash of the completions of every round and evaluation, by name.

    It covers what the rows say and not the bytes of the file that holds them, which another version of pyarrow writes
    otherwise.
    """
    phases, numbers = table["phase"].cast(pa.string()).to_pylist(), table["round"].to_pylist()
    hashes: dict[str, str] = {}
    at = 0
    for (train, number), rows in groupby(zip(phases, numbers, strict=True), lambda row: (row[0] == "train", row[1])):
        count = sum(1 for _ in rows)
        block = table.slice(at, count)
        columns = {name: block[name].to_pylist() for name in sorted(block.column_names)}
        digest = hashlib.sha256(_compact(columns).encode()).hexdigest()
        hashes[f"round {number}" if train else f"the evaluation after round {number}"] = digest[:_DIGITS]
        at += count
    return hashes


def first_apart(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The first round or evaluation in which two cells' `round_hashes` differ; empty where all are equal."""
    return next((name for name in (*one, *other) if one.get(name) != other.get(name)), "")


def made_with(record: Record) -> str:
    """The arithmetic and the processor that computed a record, in words."""
    named = [f"{name} {value}" for name, value in arithmetic_of(record).items()]
    return ", ".join([*named, str(record.provenance.get("processor", "an unknown processor"))])


def all_made_with(cells: Iterable[PublishedCell]) -> str:
    """`made_with` of published cells, each way once."""
    return "; ".join(dict.fromkeys(made_with(cell.record) for cell in cells))


def processors_apart(own: Mapping[str, Any], cells: Iterable[PublishedCell]) -> str:
    """How the processors of a row's own cells differ from those of the published ones; empty if they do not.

    Args:
        own: provenance of its own cells.
        cells: the published ones that it is measured against.
    """
    theirs = [cell.record.provenance for cell in cells]
    apart = []
    for what, named in (("vector instructions", _vectors), ("maker", maker_of)):
        there = " and ".join(dict.fromkeys(value for each in theirs if (value := named(each))))
        here = named(own)[:60]
        if here and there and here != there:
            apart.append(f"{what}: published {there}, own {here}")
    if not apart:
        return ""
    return (
        f"the published cells and the defense's own were computed on different processors ({'; '.join(apart)}): their "
        "last bits differ, so from some round on they are independent samples of one experiment"
    )


def _vectors(made_with: Mapping[str, Any]) -> str:
    """The vector instructions that torch used, from a record's provenance; empty if it does not say."""
    return str(made_with.get("capability") or "")


def _content(path: Path, most: int) -> bytes | None:
    """The text of a compressed file of at most so many bytes; None where there is no file."""
    try:
        return decompressed(path, read_regular(path, most), most)
    except FileNotFoundError:
        return None
    except (GzipError, NotRegularError) as error:
        raise PublishedError(str(error)) from error
    except OSError as error:
        raise PublishedError(f"{path} cannot be read: {error.strerror or error}") from error


@lru_cache(maxsize=1024)
def _parsed_cell(path: Path, content: bytes) -> PublishedCell:
    try:
        cell = strictly_parsed(PublishedCell, content)
    except MalformedError as error:
        raise PublishedError(f"{path}: {error}") from error
    if cell.sealed != _seal(cell):
        raise PublishedError(f"{path} was edited after it was published")
    if identify({"cell": cell.record.parameters, **cell.record.identity}) != cell.cell_id:
        raise PublishedError(f"{path} does not hold the cell that its name says: the hash of its identity differs")
    if wrong := wrong_results(cell.record) or _wrong_drift(cell):
        raise PublishedError(f"{path}: {wrong}")
    return cell


def _wrong_drift(cell: PublishedCell) -> str:
    wrong = (wrong_score(name, str(cell.record.cell.get("attack", "")), *each) for name, each in cell.drift.items())
    return one_line(next(filter(None, wrong), ""), 200)


def _words(folder: Path, sha256: str) -> bytes:
    """The content of a control's words' file."""
    path = words_path(folder, sha256)
    if (content := _content(path, WORDS_BYTES)) is None:
        raise PublishedError(f"{path} is missing: it holds the words of a published control")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise PublishedError(f"{path} was edited after it was published")
    return content


@lru_cache(maxsize=64)
def _answers(content: bytes) -> Answers:
    try:
        words = Words.model_validate_json(content)
        vocabulary = words.vocabulary.split(" ") if words.vocabulary else []
        return Answers(
            items=tuple(words.items[_place(line[0])] for line in words.answers),
            words=tuple(tuple(vocabulary[_place(place)] for place in line[1:]) for line in words.answers),
            writers={
                word: None if at == -1 else words.items[_place(at)]
                for word, at in zip(vocabulary, words.writers, strict=True)
            },
        )
    except (ValidationError, IndexError, ValueError) as error:
        raise PublishedError("what is published as the words of a control holds something else") from error


def _place(number: int) -> int:
    if number < 0:
        raise ValueError("a place is not negative")
    return number


@lru_cache(maxsize=256)
def _honest(control: bytes, other: bytes | None) -> dict[str, Score]:
    return honest_drift(_answers(control), None if other is None else _answers(other))


def _plain(cell: PublishedCell) -> dict[str, Any]:
    data: dict[str, Any] = cell.model_dump(mode="json", exclude_defaults=True)
    data["record"]["schema_version"] = cell.record.schema_version
    return {"schema_version": cell.schema_version, **data}


def _seal(cell: PublishedCell) -> str:
    content = {name: value for name, value in _plain(cell).items() if name != "sealed"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
