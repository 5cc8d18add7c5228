"""An entry: what a submission leaves for the board, a folder small enough to be a pull request.

    NAME/entry.json     who, which defense, which suite, how it was run; hashes of all other files and of the archive
    NAME/scores.json    one trimmed record per cell: those of the defense, and the shared ones they are measured against
    NAME/defense/       the submitted file or package, as it was run; absent for a defense that comes with the package

Beside it lies one archive with the full records and raw completions, which is no part of the folder. Everything read
here comes from a stranger: sizes are bounded, names are checked, and an unknown field is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from thiefbench import registry, strict_json
from thiefbench.engine.spec import Role
from thiefbench.errors import UserError
from thiefbench.leaderboard.isolation.limits import FILE_BYTES, WEIGHTS_NAME
from thiefbench.leaderboard.isolation.sandbox_paths import relocated
from thiefbench.suite.analysis.comparison import HEADLINE_EVALUATIONS
from thiefbench.suite.store.records import Point, Record, Score, write_atomically

ENTRY_SCHEMA: Final = 1
ENTRY_BYTES = 200_000
"""Of an entry's two JSON files together; its source has at most `limits.FILE_BYTES`."""
MANIFEST, SCORES, SOURCE = "entry.json", "scores.json", "defense"
DIGITS = 6
"""Significant digits of the numbers in an entry; the archive has them in full."""
CURVES = ("eval_asr", "eval_reward", "eval_length")
"""Those that an entry keeps of the defense's own cells; of shared ones it keeps what harm is made of."""
PATH: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,7}")
"""What a path in an entry looks like."""
SHARED_SCORES = ("asr", "clean_reward", "start_reward")
"""What an entry keeps of shared cells' scores: what its row is measured against."""

_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?")
_FILES = 200

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Line = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""One line of text."""


class EntryError(UserError):
    """An entry cannot be read or made. One sentence for the user."""


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Packed(_Plain):
    """A file that is no part of the folder, by content.

    Attributes:
        name: of the file.
        sha256, bytes: of its content.
    """

    name: Line
    sha256: Sha256
    bytes: int = Field(ge=0)


class SuiteName(_Plain):
    """Which suite a defense was run on; `fingerprint` is `Suite.fingerprint()`."""

    name: Line
    version: int
    fingerprint: Sha256


class Numerics(_Plain):
    """What changes the last bits of every cell; see `CellSpec`."""

    device: Line
    dtype: Literal["float32", "bfloat16"]
    threads: int = Field(ge=1, le=1024)


class Manifest(_Plain):
    """What entry.json holds.

    Attributes:
        schema_version: of this format.
        slug: the folder's name.
        name, authors, paper: for people; the paper's address begins with https:// or is empty.
        defense: the spec string as it was run in the cells; it names what a built-in defense is called or, relative to
            the entry's folder, its own file: ``defense/mine.py:Mine(floor=-3.0)``.
        suite: on which it was run.
        seeds: at which.
        submitted: the day.
        numerics: of every cell.
        versions: of Python and the distributions that made the results: the lock.
        machine: hardware and commit, as records say it.
        source_sha256: hash of the defense's source as the cells' identities have it.
        files: of the folder, each path with its SHA-256; entry.json itself is not among them.
        weights: safetensors beside the defense's file; they travel in the archive.
        archive: full records and raw completions.
    """

    schema_version: Literal[1] = ENTRY_SCHEMA
    slug: str
    name: Line
    authors: tuple[Line, ...] = Field(min_length=1, max_length=50)
    paper: str = Field(default="", max_length=300, pattern=r"^(https://[^\s<>\"']+)?$")
    defense: Annotated[str, Field(min_length=1, max_length=2000)]
    suite: SuiteName
    seeds: tuple[int, ...] = Field(min_length=1, max_length=100)
    submitted: date
    numerics: Numerics
    versions: dict[str, str]
    machine: dict[str, str | int | bool | None]
    source_sha256: Sha256
    files: dict[str, Sha256]
    weights: tuple[Packed, ...] = ()
    archive: Packed

    @field_validator("slug")
    @classmethod
    def _slug(cls, slug: str) -> str:
        if not _SLUG.fullmatch(slug):
            raise ValueError("1 to 48 small letters, digits and hyphens")
        return slug

    @field_validator("files")
    @classmethod
    def _paths(cls, files: dict[str, str]) -> dict[str, str]:
        for name in files:
            if not PATH.fullmatch(name) or (name != SCORES and PurePosixPath(name).parts[0] != SOURCE):
                raise ValueError(f"{name!r} is no path of {SCORES} or in {SOURCE}/")
        if SCORES not in files:
            raise ValueError(f"{SCORES} is not listed")
        if len(files) > _FILES:
            raise ValueError(f"more than {_FILES} files")
        return files

    @field_validator("weights")
    @classmethod
    def _weights(cls, weights: tuple[Packed, ...]) -> tuple[Packed, ...]:
        for each in weights:
            named = WEIGHTS_NAME.fullmatch(each.name)
            if named is None or named.group(2) != each.sha256:
                raise ValueError(
                    f"{each.name!r} is not named NAME-SHA256.safetensors, with at most 23 letters of a name"
                )
        return weights

    @model_validator(mode="after")
    def _archive(self) -> Manifest:
        if self.archive.name != (expected := f"{self.slug}.tar"):
            raise ValueError(f"the archive is called {expected}, not {self.archive.name!r}")
        return self


Number = Annotated[float, Field(ge=-1e9, le=1e9)]
"""No measure of a cell comes near the limits, so no sum of them overflows."""
Numbers = tuple[Number | None, Number | None, Number | None, Annotated[int, Field(ge=0)]]
"""Value, low, high and count of a score."""


class CellScores(_Plain):
    """A cell's record, trimmed.

    Attributes:
        cell_id: names its folder in the archive.
        part, role, attack, defense, seed: which cell of the suite it is.
        status, error: as in its record.
        scores: its record's, rounded; of a shared cell `SHARED_SCORES`.
        curves: round and value, rounded: `CURVES`, or of a shared cell the end of "eval_asr".
        seconds: by phase, rounded; of the shared cells only the undefended attacked ones, which own ones are timed by.
        record_sha256, completions_sha256: of its two files in the archive; a failed cell has no completions.
    """

    cell_id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    part: Annotated[str, Field(max_length=200)]
    role: Role
    attack: Annotated[str, Field(min_length=1, max_length=2000)]
    defense: Annotated[str, Field(min_length=1, max_length=2000)]
    seed: int
    status: Literal["ok", "error"] = "ok"
    error: Annotated[str, Field(max_length=300)] = ""
    scores: dict[str, Numbers] = {}
    curves: dict[str, tuple[tuple[Annotated[int, Field(ge=0, le=10**6)], Number | None], ...]] = {}
    seconds: dict[str, Annotated[Number, Field(ge=0)]] = {}
    record_sha256: Sha256
    completions_sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class Scores(_Plain):
    """What scores.json holds: the suite's cells that a defense's row is made of, in the suite's order."""

    cells: tuple[CellScores, ...] = Field(max_length=5000)


class Entry:
    """A folder that was read and found whole.

    Attributes:
        folder: where it lies.
        manifest, cells: its two files.
    """

    def __init__(self, folder: Path, manifest: Manifest, cells: Sequence[CellScores]) -> None:
        self.folder, self.manifest, self.cells = folder, manifest, tuple(cells)

    @property
    def own(self) -> Iterator[CellScores]:
        """The cells in which the defense takes part."""
        return (cell for cell in self.cells if cell.defense == self.manifest.defense)

    @property
    def spec(self) -> str:
        """The defense's spec string, with the path that its file has here; it may be a stranger's code.

        Its weights are not here: see `staging.stage`.
        """
        return relocated(self.manifest.defense, lambda file: str(self.folder.resolve() / file))

    @property
    def source(self) -> list[Path]:
        """The submitted files, sorted; none for a defense that comes with the package."""
        return sorted(self.folder / name for name in self.manifest.files if name != SCORES)


def read_entry(folder: Path) -> Entry:
    """Read an entry; nothing of it is loaded or run.

    Raises:
        EntryError: something is missing, malformed, too large, or other than its hash says.
    """
    if not folder.is_dir():
        raise EntryError(f"there is no entry {folder}")
    present = _present(folder)
    sizes = {name: path.stat().st_size for name, path in present.items()}
    if (total := sum(sizes.get(name, 0) for name in (MANIFEST, SCORES))) > ENTRY_BYTES:
        raise EntryError(
            f"{MANIFEST} and {SCORES} of {folder} have {total:,} bytes, and at most {ENTRY_BYTES:,} are taken"
        )
    if (rest := sum(sizes.values()) - total) > FILE_BYTES:
        raise EntryError(f"{folder / SOURCE} has {rest:,} bytes, and at most {FILE_BYTES:,} are taken")
    manifest = read_manifest(folder)
    if manifest.slug != folder.resolve().name:
        raise EntryError(f"{folder / MANIFEST}: slug is {manifest.slug}, and the folder's name is another")
    if unlisted := sorted(present.keys() - manifest.files.keys() - {MANIFEST}):
        raise EntryError(f"{folder} holds {unlisted[0]}, which {MANIFEST} does not list")
    try:
        elsewhere = sorted(set(_named_in(manifest.defense)) - manifest.files.keys())
    except registry.SpecStringError as error:
        raise EntryError(f"{folder / MANIFEST}: defense: {error}") from error
    if elsewhere:
        raise EntryError(f"{folder / MANIFEST}: defense names the file {elsewhere[0]}, which is not the entry's own")
    for name, expected in manifest.files.items():
        path = present.get(name)
        if path is None:
            raise EntryError(f"{folder} lacks {name}, which {MANIFEST} lists")
        if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            raise EntryError(f"{folder / name} is not what {MANIFEST} says: its SHA-256 is another")
    return Entry(folder, manifest, _parsed(Scores, folder / SCORES).cells)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an entry, whatever else the folder holds.

    Raises:
        EntryError: there is none, or it is malformed.
    """
    return _parsed(Manifest, folder / MANIFEST)


def write_entry(folder: Path, manifest: Manifest, scores: Scores, source: Mapping[str, bytes]) -> Entry:
    """Write an entry and read it back.

    Args:
        folder: to be made; its name is the manifest's slug.
        manifest: its `files` are filled in here.
        scores: of all cells.
        source: the submitted files by their path in the entry.

    Raises:
        EntryError: it is larger than an entry may be.
    """
    content = {SCORES: _written(scores), **source}
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(content.items())}
    content[MANIFEST] = _written(manifest.model_copy(update={"files": hashes}))
    if (total := len(content[MANIFEST]) + len(content[SCORES])) > ENTRY_BYTES:
        raise EntryError(f"the entry would have {total:,} bytes, and at most {ENTRY_BYTES:,} are taken")
    if (total := sum(map(len, source.values()))) > FILE_BYTES:
        raise EntryError(f"the submitted source has {total:,} bytes, and at most {FILE_BYTES:,} are taken")
    for name, data in content.items():
        write_atomically(folder / name, data)
    return read_entry(folder)


def trimmed(record: Record, part: str, own: bool, record_sha256: str) -> CellScores:
    """A record as an entry holds it; `own` is whether the submitted defense takes part."""
    named = {name: record.cell[name] for name in ("role", "attack", "defense", "seed")}
    if own:
        curves = {name: record.curves[name] for name in CURVES if name in record.curves}
    else:
        curves = {"eval_asr": record.curves.get("eval_asr", [])[-HEADLINE_EVALUATIONS:]}
    timed = own or (named["role"], named["defense"]) == ("attack", "none")
    return CellScores(
        **named,
        cell_id=record.cell_id,
        part=part,
        status=record.status,
        error=record.error[:300],
        scores={
            name: (rounded(score.value), rounded(score.low), rounded(score.high), score.count)
            for name, score in record.scores.items()
            if own or name in SHARED_SCORES
        },
        curves={name: tuple((each.round, rounded(each.value)) for each in points) for name, points in curves.items()},
        seconds={name: float(f"{value:.4g}") for name, value in record.seconds.items() if timed},
        record_sha256=record_sha256,
        completions_sha256=record.completions_sha256,
    )


def untrimmed(cell: CellScores, parameters: Mapping[str, Any], machine: Mapping[str, Any]) -> Record:
    """A record with what an entry keeps of it; `parameters` are the cell's, `machine` its provenance."""
    scores = {
        name: Score(value=value, low=low, high=high, count=count)
        for name, (value, low, high, count) in cell.scores.items()
    }
    curves = {name: [Point(round=r, value=value) for r, value in points] for name, points in cell.curves.items()}
    return Record(
        cell_id=cell.cell_id,
        cell=dict(parameters),
        identity={},
        status=cell.status,
        error=cell.error,
        scores=scores,
        curves=curves,
        seconds=cell.seconds,
        provenance=dict(machine),
        completions_sha256=cell.completions_sha256,
    )


def rounded(value: float | None) -> float | None:
    """A number to `DIGITS` significant digits."""
    return None if value is None else float(f"{value:.{DIGITS}g}")


def _named_in(spec: str) -> list[str]:
    """The paths that a spec string names."""
    found: list[str] = []

    def note(file: str) -> str:
        found.append(file)
        return file

    relocated(spec, note)
    return found


_Of = TypeVar("_Of", Manifest, Scores)


def _parsed(kind: type[_Of], path: Path) -> _Of:
    try:
        with path.open("rb") as file:
            data = file.read(ENTRY_BYTES + 1)
        strict_json.loads(data, most_bytes=ENTRY_BYTES)  # what pydantic takes too, such as a key that stands twice
        return kind.model_validate_json(data)
    except FileNotFoundError as error:
        raise EntryError(f"{path.parent} is no entry: it has no {path.name}") from error
    except strict_json.JsonError as error:
        raise EntryError(f"{path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise EntryError(f"{path}: {where}: {str(first['msg']).removeprefix('Value error, ')[:200]}") from error


def _present(folder: Path) -> dict[str, Path]:
    """The files of a folder by their path in it; anything but plain files and folders is refused."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise EntryError(f"{path} is no plain file")
        if path.is_file():  # what Python compiled counts too: it could run in place of the source that was read
            found[path.relative_to(folder).as_posix()] = path
        if len(found) > _FILES + 2:
            raise EntryError(f"{folder} holds more than {_FILES} files")
    return found


def _written(model: BaseModel) -> bytes:
    """JSON that is short and still read line by line: one line per field, one per cell."""
    data = model.model_dump(mode="json", exclude_defaults=True)
    data |= {"schema_version": ENTRY_SCHEMA} if isinstance(model, Manifest) else {}
    lines = []
    for name, value in data.items():
        if name == "cells":
            cells = ",\n  ".join(json.dumps(cell, separators=(",", ":")) for cell in value)
            lines.append(f'"cells": [\n  {cells}\n ]')
        else:
            lines.append(f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}")
    return ("{\n " + ",\n ".join(lines) + "\n}\n").encode()
