"""The manifest of an entry, entry.json: who submitted which defense, on which suite, and how its cells were made.

It comes from a stranger: names are checked, sizes are bounded, and unknown fields are errors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import date
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from thiefbench import strict_json
from thiefbench.error_messages import problem
from thiefbench.leaderboard.isolation.limits import WEIGHTS_NAME
from thiefbench.limits import MOST_THREADS
from thiefbench.tasks.text import one_line

ENTRY_SCHEMA: Final = 1
"""Of entries that bring all of their cells."""
REFERRING_SCHEMA: Final = 2
"""Of entries that refer to published shared cells, or say why they do not."""
GROWN_SCHEMA: Final = 3
"""Of entries that were brought in several deliveries; they may refer to published shared cells too."""
MANIFEST, SCORES, SOURCE = "entry.json", "scores.json", "defense"
STORED_SCORES = f"{SCORES}.gz"
"""The file that holds `SCORES`, compressed; the hash that a manifest has of `SCORES` is of its content."""
"""The two files of an entry, and the folder of its source."""
MOST_FILES: Final = 200
"""Most bytes of an entry's source and scores together."""
PATH: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,7}")
"""The pattern of paths in an entry."""

_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?")

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Line = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""One line of text."""

Reason = Annotated[str, Field(max_length=300, pattern=r"^([^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*)?$")]
"""One line, or nothing."""


Versions = dict[
    Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")],
    Annotated[str, Field(max_length=1000, pattern=r"^[A-Za-z0-9.+!_-]+$")],
]
"""By the name of a distribution; pages show them as lines that pip reads."""
Machine = dict[
    Annotated[str, Field(max_length=200)],
    Annotated[str, Field(max_length=2000)] | Annotated[int, Field(ge=-(1 << 50), le=1 << 50)] | bool | None,
]
"""Facts by their names; several values of one fact are one text."""


class EntryModel(BaseModel):
    """Part of an entry's JSON files: unknown fields, NaN and infinite numbers are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


_M = TypeVar("_M", bound=BaseModel)


class MalformedError(ValueError):
    """Bytes are not the expected JSON. One clause that names the field."""


def strictly_parsed(kind: type[_M], content: bytes, unnamed: Collection[str] = ()) -> _M:
    """A stranger's JSON, read strictly.

    Args:
        kind: what it must be.
        content: its bytes; the caller has bounded their number.
        unnamed: parts of a field's path that mean nothing to readers.

    Raises:
        MalformedError: it is not strict JSON, or something else.
    """
    try:
        strict_json.loads(content)  # what pydantic would accept, such as a duplicate key
        return kind.model_validate_json(content)
    except strict_json.JsonError as error:
        raise MalformedError(str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(each) for each in first["loc"] if each not in unnamed) or "the file"
        raise MalformedError(f"{one_line(where, 200)}: {one_line(problem(first), 200)}") from error


class Packed(EntryModel):
    """A file outside the entry's folder, identified by its content.

    Attributes:
        name: of the file.
        sha256, bytes: of its content.
    """

    name: Line
    sha256: Sha256
    bytes: int = Field(ge=0, le=1 << 50)


def checked_slug(slug: str) -> str:
    """A folder's name; raises ValueError where it is not allowed."""
    if not _SLUG.fullmatch(slug):
        raise ValueError("write 1 to 48 lower-case letters, digits and hyphens")
    return slug


def checked_paths(files: dict[str, str], source: str) -> dict[str, str]:
    """The files of an entry; raises ValueError where one is neither `SCORES` nor in the folder `source`."""
    for name in files:
        if not PATH.fullmatch(name) or (name != SCORES and PurePosixPath(name).parts[0] != source):
            raise ValueError(f"{name!r} is neither {SCORES} nor a path in {source}/")
    if SCORES not in files:
        raise ValueError(f"{SCORES} is not listed")
    if len(files) > MOST_FILES:
        raise ValueError(f"more than {MOST_FILES} files")
    return files


def checked_weights(weights: tuple[Packed, ...]) -> tuple[Packed, ...]:
    """Files of weights; raises ValueError where one is not named by its content."""
    for each in weights:
        named = WEIGHTS_NAME.fullmatch(each.name)
        if named is None or named.group(2) != each.sha256:
            raise ValueError(
                f"{each.name!r} is not named NAME-SHA256.safetensors, where NAME has at most 23 characters"
            )
    return weights


class SuiteName(EntryModel):
    """The suite that a defense was run on; `fingerprint` is `Suite.fingerprint()`."""

    name: Line
    version: int
    fingerprint: Sha256

    @property
    def title(self) -> str:
        """As `Suite.title`."""
        return f"{self.name}-v{self.version}"


class Numerics(EntryModel):
    """The settings that change the last bits of every cell; see `CellSpec`."""

    device: Line
    dtype: Literal["float32", "bfloat16"]
    threads: int = Field(ge=1, le=MOST_THREADS)


class Delivery(EntryModel):
    """Some of an entry's seeds, whose cells were brought together.

    Attributes:
        seeds: of the suite, in its order.
        submitted: the date.
        versions, machine, archive: as in `Manifest`, of the cells at these seeds.
    """

    seeds: tuple[int, ...] = Field(min_length=1, max_length=100)
    submitted: date
    versions: Versions
    machine: Machine
    archive: Packed


def archive_name(slug: str, later: Sequence[int] = ()) -> str:
    """What the archive of an entry is called; `later` are the seeds of a later delivery."""
    return f"{slug}.seed-{'-'.join(map(str, later))}.tar" if later else f"{slug}.tar"


class Manifest(EntryModel):
    """The content of entry.json.

    Attributes:
        schema_version: of this format.
        slug: the folder's name.
        name, authors, paper: for readers; the paper's address begins with https:// or is empty.
        defense: the spec string as it was run in the cells: the name of a built-in defense or a file of the entry,
            relative to its folder: ``defense/mine.py:Mine(floor=-3.0)``.
        suite: the suite it was run on.
        seeds: the first ones of the suite, or all of them, in its order.
        submitted: the date; of an entry that grew, as the next three, of its first delivery.
        numerics: the numerical settings of every cell.
        versions: the versions of Python and of the distributions with which the cells were run.
        machine: hardware and commit, from the records.
        source_sha256: hash of the defense's source, as in the cells' identities.
        files: the SHA-256 of every file in the folder except entry.json, by path.
        weights: safetensors files of the defense; they are in the archive.
        archive: full records and raw completions.
        own_shared: why the entry brings shared cells of its own although others are published; empty where it does not.
        later: the deliveries after the first one.
    """

    schema_version: Literal[1, 2, 3] = ENTRY_SCHEMA
    slug: str
    name: Line
    authors: tuple[Line, ...] = Field(min_length=1, max_length=50)
    paper: str = Field(default="", max_length=300, pattern=r"^(https://[^\s<>\"']+)?$")
    defense: Annotated[str, Field(min_length=1, max_length=2000)]
    suite: SuiteName
    seeds: tuple[int, ...] = Field(min_length=1, max_length=100)
    submitted: date
    numerics: Numerics
    versions: Versions
    machine: Machine
    source_sha256: Sha256
    files: dict[str, Sha256]
    weights: tuple[Packed, ...] = ()
    archive: Packed
    own_shared: Reason = ""
    later: tuple[Delivery, ...] = Field(default=(), max_length=100)

    @property
    def deliveries(self) -> tuple[Delivery, ...]:
        """All deliveries, the first one too."""
        first = self.seeds[: len(self.seeds) - sum(len(each.seeds) for each in self.later)]
        made = {name: getattr(self, name) for name in ("submitted", "versions", "machine", "archive")}
        return (Delivery.model_construct(seeds=first, **made), *self.later)

    def delivery_of(self, seed: int) -> Delivery:
        """The delivery that brought a seed, which must be one of the entry's."""
        return next(each for each in self.deliveries if seed in each.seeds)

    @field_validator("slug")
    @classmethod
    def _slug(cls, slug: str) -> str:
        return checked_slug(slug)

    @field_validator("files")
    @classmethod
    def _paths(cls, files: dict[str, str]) -> dict[str, str]:
        return checked_paths(files, SOURCE)

    @field_validator("weights")
    @classmethod
    def _weights(cls, weights: tuple[Packed, ...]) -> tuple[Packed, ...]:
        return checked_weights(weights)

    @model_validator(mode="after")
    def _seeds(self) -> Manifest:
        if twice := [seed for seed, count in Counter(self.seeds).items() if count > 1]:
            raise ValueError(f"the seed {twice[0]} is listed twice")
        later = tuple(seed for each in self.later for seed in each.seeds)
        if later and (len(later) >= len(self.seeds) or self.seeds[-len(later) :] != later):
            raise ValueError(f"the later deliveries hold the seeds {later}, which are not the last of {self.seeds}")
        return self

    @model_validator(mode="after")
    def _archives(self) -> Manifest:
        for number, each in enumerate(self.deliveries):
            later = each.seeds if number else ()
            if each.archive.name != (expected := archive_name(self.slug, later)):
                raise ValueError(f"the archive must be named {expected}, not {each.archive.name!r}")
        if len({each.archive.sha256 for each in self.deliveries}) < len(self.deliveries):
            raise ValueError("two deliveries name the same archive")
        return self

    @model_validator(mode="after")
    def _schema(self) -> Manifest:
        if self.own_shared and self.schema_version < REFERRING_SCHEMA:
            raise ValueError(f"own_shared belongs to schema version {REFERRING_SCHEMA}")
        if self.later and self.schema_version != GROWN_SCHEMA:
            raise ValueError(f"later deliveries belong to schema version {GROWN_SCHEMA}")
        return self
