"""The archive of an entry: full records, raw completions and submitted weights, in one plain tar file.

Equal content gives equal bytes: members are in a fixed order, and their headers hold no owner and no time. This also
makes it simple to read a stranger's archive: the entry determines the members and their order, and any header that
`pack` would not have written (a link, a device, a path outside) raises an error.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from thiefbench.errors import UserError
from thiefbench.leaderboard.cell_scores import CellScores
from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.isolation.limits import (
    ARCHIVE_BYTES,
    COMPLETIONS_BYTES,
    EXCHANGES_BYTES,
    RECORD_BYTES,
    STAGES_BYTES,
    WEIGHTS_BYTES,
)
from thiefbench.leaderboard.manifest import Packed
from thiefbench.leaderboard.verification.foreign_tables import check_tables
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import HALF_WRITTEN, BrokenRecordError, CellDir, Record, Store, file_sha256

_BLOCK = tarfile.BLOCKSIZE
_END = bytes(2 * _BLOCK)
_PART = 1 << 20
_MOST = {
    "completions.parquet": COMPLETIONS_BYTES,
    "exchanges.parquet": EXCHANGES_BYTES,
    "stages.parquet": STAGES_BYTES,
}
"""Bytes that each table of a cell may have."""


class WrongArchiveError(UserError):
    """A file is not the archive that an entry names, which says nothing about the entry. One sentence for the user."""


@dataclass(frozen=True)
class Member:
    """A file of an archive.

    Attributes:
        name: its path.
        sha256: SHA-256 of its content.
        most: how many bytes it may have.
    """

    name: str
    sha256: str
    most: int


class Named(Protocol):
    """What the manifest of an entry says of its archive."""

    @property
    def slug(self) -> str:
        """The entry's folder."""

    @property
    def archive(self) -> Packed:
        """The archive."""

    @property
    def weights(self) -> tuple[Packed, ...]:
        """Files of weights in it."""


class Archived(Protocol):
    """An entry with an archive: a defense's or an attack's."""

    @property
    def manifest(self) -> Named:
        """Names the archive."""

    @property
    def cells(self) -> Sequence[CellScores]:
        """All cells, in the order of their specs."""

    @property
    def brought(self) -> Sequence[CellScores]:
        """Those whose files are in the archive."""


def members(cells: Sequence[CellScores], weights: Sequence[Packed]) -> list[Member]:
    """The members of an entry's archive, in their order.

    Raises:
        EntryError: two would have the same name.
    """
    listed = []
    for cell in sorted(cells, key=lambda cell: cell.cell_id):
        listed.append(Member(f"cells/{cell.cell_id}/record.json", cell.record_sha256, RECORD_BYTES))
        listed += [Member(f"cells/{cell.cell_id}/{name}", sha256, _MOST[name]) for name, sha256 in cell.tables.items()]
    listed += [Member(f"weights/{each.name}", each.sha256, WEIGHTS_BYTES) for each in sorted(weights, key=_name)]
    if twice := next((name for name, count in Counter(each.name for each in listed).items() if count > 1), None):
        raise EntryError(f"the entry lists {twice} twice; each cell and file must be listed once")
    return listed


def pack(path: Path, store: Store, cells: Sequence[CellScores], weights: Sequence[Path] = ()) -> Packed:
    """Write the archive of an entry.

    Args:
        path: of the archive.
        store: where the cells' files are.
        cells: of the entry.
        weights: files that belong to it, with different names.

    Returns:
        Its description for the manifest.

    Raises:
        EntryError: a file does not match its cell's hash, or is larger than an archive may hold.
    """
    named = [packed_file(file) for file in weights]
    beside = {f"weights/{file.name}": file for file in weights}
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", suffix=HALF_WRITTEN)
    try:
        with os.fdopen(descriptor, "wb") as out:
            os.fchmod(out.fileno(), 0o644)
            for member in members(cells, named):
                _add(out, member, beside.get(member.name, store.root / member.name))
            out.write(_END)
            out.flush()
            os.fsync(out.fileno())
        size = Path(part).stat().st_size
        if size > ARCHIVE_BYTES:
            raise EntryError(f"the archive would have {size:,} bytes, and at most {ARCHIVE_BYTES:,} are allowed")
        packed = Packed(name=path.name, sha256=file_sha256(Path(part)), bytes=size)
        Path(part).replace(path)
    finally:
        Path(part).unlink(missing_ok=True)
    return packed


def packed_file(file: Path) -> Packed:
    """A file's description for the manifest."""
    return Packed(name=file.name, sha256=file_sha256(file), bytes=file.stat().st_size)


def unpack(archive: Path, entry: Archived, folder: Path, specs: Sequence[CellSpec] = ()) -> Store:
    """Unpack a stranger's archive; only content whose hash is in the entry is accepted.

    Args:
        archive: the file.
        entry: the entry to which it is said to belong.
        folder: will be created; weights go into its folder `weights`. If the archive is broken, the members before the
            fault remain.
        specs: the suite's cells in the entry's order; their shape limits the size of tables. Without them, the records'
            own parameters do.

    Returns:
        The store of the entry's cells: every record is valid, and every table has the stored schema and fits in memory.

    Raises:
        WrongArchiveError: it is not the entry's archive.
        EntryError: it contains anything else than it should.
    """
    expected = entry.manifest.archive
    if not archive.is_file():
        raise WrongArchiveError(f"{archive} is not a regular file; {entry.manifest.slug} names {expected.name}")
    size = archive.stat().st_size
    if size != expected.bytes:
        raise WrongArchiveError(f"{archive} is not the entry's archive: it has {size:,} bytes, not {expected.bytes:,}")
    if size > ARCHIVE_BYTES:
        raise EntryError(f"{archive} has {size:,} bytes, and at most {ARCHIVE_BYTES:,} are allowed")
    if file_sha256(archive) != expected.sha256:
        raise WrongArchiveError(f"{archive} is not the entry's archive: its SHA-256 differs")
    if folder.exists() and any(folder.iterdir()):
        raise EntryError(f"{folder} is not empty; name a new folder")
    wanted = members(entry.brought, entry.manifest.weights)
    with archive.open("rb") as file:
        for number, member in enumerate(wanted):
            _take(file, member, folder / member.name, {before.name for before in wanted[:number]})
        rest = file.read(_PART)
        if rest[: len(_END)] != _END or rest.strip(b"\0") or file.read(1):
            raise EntryError(f"the archive holds {_after_last(rest)} after its last member, {wanted[-1].name}")
    store = Store(folder)
    records = {cell.cell_id: _checked_record(store.cell(cell.cell_id), cell) for cell in entry.brought}
    shapes = (
        {cell.cell_id: spec.as_dict() for cell, spec in zip(entry.cells, specs, strict=True)}
        if specs
        else {cell_id: record.cell for cell_id, record in records.items()}
    )
    tables: dict[Path, Mapping[str, Any]] = {}
    for cell in entry.brought:
        tables |= {store.cell(cell.cell_id).path / name: shapes[cell.cell_id] for name in cell.tables}
    check_tables(tables)
    return store


def _name(file: Packed) -> str:
    return file.name


def _header(name: str, size: int) -> bytes:
    """The only header that a member with this name and size may have.

    Raises:
        EntryError: its name does not fit into a header.
    """
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
    except ValueError as error:
        raise EntryError(
            f"{name} cannot be put into an archive: {error}; give it a short name of ASCII letters"
        ) from error


def _add(out: BinaryIO, member: Member, file: Path) -> None:
    try:
        size = file.stat().st_size
        if size > member.most:
            raise EntryError(f"{file} has {size:,} bytes, and at most {member.most:,} are allowed")
        out.write(_header(member.name, size))
        digest = hashlib.sha256()
        with file.open("rb") as content:
            while part := content.read(_PART):
                digest.update(part)
                out.write(part)
    except FileNotFoundError as error:
        raise EntryError(f"{file} is missing; run the same command again") from error
    if digest.hexdigest() != member.sha256:
        raise EntryError(f"{file} changed while it was being packed; run the same command again")
    out.write(bytes(-size % _BLOCK))


def _take(file: BinaryIO, member: Member, target: Path, before: set[str]) -> None:
    """Read the next member, which must be this one, into a file; `before` are the names that were read already."""
    header = file.read(_BLOCK)
    try:
        info = tarfile.TarInfo.frombuf(header, "ascii", "strict")
    except (tarfile.HeaderError, ValueError) as error:
        fault = "ends" if not header.strip(b"\0") else "holds something that is not a header"
        raise EntryError(f"the archive {fault} where {member.name} is expected") from error
    if info.name != member.name:
        twice = ", for the second time," if info.name in before else ""
        raise EntryError(f"the archive holds {info.name[:200]!r}{twice} where {member.name} is expected")
    if not info.type == tarfile.REGTYPE:
        raise EntryError(f"{member.name} in the archive is not a plain file")
    if info.size > member.most or info.size < 0:
        raise EntryError(
            f"{member.name} in the archive has {info.size:,} bytes, and at most {member.most:,} are allowed"
        )
    if header != _header(member.name, info.size):
        raise EntryError(
            f"{member.name} in the archive has a header that thiefbench leaderboard submit does not write; make the "
            "archive with that command"
        )
    digest, left = hashlib.sha256(), info.size
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as out:
        while left:
            part = file.read(min(left, _PART))
            if not part:
                raise EntryError(f"the archive ends within {member.name}")
            left -= len(part)
            digest.update(part)
            out.write(part)
    if file.read(-info.size % _BLOCK).strip(b"\0"):
        raise EntryError(f"{member.name} in the archive is followed by something that is not a member")
    if digest.hexdigest() != member.sha256:
        raise EntryError(f"{member.name} in the archive is not the one that the entry names: its SHA-256 differs")


def _after_last(rest: bytes) -> str:
    """What follows the last member, in words."""
    try:
        return repr(tarfile.TarInfo.frombuf(rest[:_BLOCK], "ascii", "replace").name[:200])
    except (tarfile.HeaderError, ValueError):
        return "something other than an end" if rest else "no end"


def _checked_record(directory: CellDir, cell: CellScores) -> Record:
    name = f"cells/{cell.cell_id}/record.json"
    try:
        record = directory.read()
    except BrokenRecordError as error:
        raise EntryError(f"{name} in the archive is not a record of this version") from error
    expected = (cell.cell_id, cell.status, cell.completions_sha256)
    if record is None or (record.cell_id, record.status, record.completions_sha256) != expected:
        raise EntryError(f"{name} in the archive is the record of another cell than the one that the entry names")
    return record
