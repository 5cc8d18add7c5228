"""An entry: what a submission adds to the leaderboard, a folder small enough for a pull request.

    NAME/entry.json        who, which defense, which suite, how it was run; hashes of all other files and of the archive
    NAME/scores.json.gz    one trimmed record per cell: those of the defense, and the shared ones they are measured
                           against, or references to these where the board has published them
    NAME/defense/          the submitted file or package, as it was run; absent for one that comes with the package

Beside it lies an archive with the full records and raw completions, which is not part of the folder; an entry whose
seeds were brought in several deliveries (`thiefbench.leaderboard.deliveries`) has one for each. Everything read here
comes from a stranger: sizes are bounded, names are checked, and unknown fields are errors.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from pydantic import BaseModel

from thiefbench import registry
from thiefbench.errors import UserError
from thiefbench.leaderboard.cell_scores import LISTED, CellScores, Reference, Scores
from thiefbench.leaderboard.gzipped import GzipError, compressed, decompressed
from thiefbench.leaderboard.isolation.limits import FILE_BYTES
from thiefbench.leaderboard.isolation.sandbox_paths import relocated
from thiefbench.leaderboard.manifest import (
    MANIFEST,
    MOST_FILES,
    REFERRING_SCHEMA,
    SCORES,
    STORED_SCORES,
    MalformedError,
    Manifest,
    Numerics,
    strictly_parsed,
)
from thiefbench.leaderboard.named_code import foreign_code
from thiefbench.leaderboard.names import wrong_names
from thiefbench.leaderboard.published import SHARED, Published, PublishedCell, PublishedError, published_sets
from thiefbench.regular_files import NotRegularError, read_regular
from thiefbench.suite.store.records import write_atomically

ENTRY_BYTES: Final = 200_000
"""Most bytes of an entry's two JSON documents together; its source has at most `limits.FILE_BYTES`."""
_LOOSELY, _FEW = 1.125, 64
"""How much larger the compressed scores may be than zlib makes them here: others compress a little otherwise."""
_MOST_PATHS: Final = 10 * MOST_FILES
"""Most files and folders that are looked at: what is said to be an entry may be the root of a disk."""
_MOST_DEPTH: Final = 16
"""So deep may folders lie in one another; an entry's own lie less deep."""


_CURRENT_FOLDER, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of Linux' renameat2."""


class EntryError(UserError):
    """An entry cannot be read or written. One sentence for the user."""


class Entry:
    """An entry that was read and is complete.

    Attributes:
        folder: of the entry.
        manifest, cells: the content of its two JSON files; published cells that it refers to are among its cells.
        published: these, by cell id.
        shared_set: the name of the set of published cells that they are of; empty for a suite's first one.
        refers: whether it refers to published cells at any seed, also where a part of it (`deliveries.delivered`) does
            not.
        sha256: of its manifest as it was read, which names the hashes of everything else.
        shared: the folder of all suites' published cells.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        cells: Sequence[CellScores],
        published: Mapping[str, PublishedCell] = MappingProxyType({}),
        shared_set: str = "",
        sha256: str = "",
        shared: Path = SHARED,
    ) -> None:
        self.folder, self.manifest, self.cells = folder, manifest, tuple(cells)
        self.published, self.shared_set, self.sha256, self.shared = published, shared_set, sha256, shared
        self.refers = bool(published)

    @property
    def own(self) -> Iterator[CellScores]:
        """The cells in which the defense is used."""
        return (cell for cell in self.cells if cell.defense == self.manifest.defense)

    @property
    def brought(self) -> list[CellScores]:
        """The cells that it brings itself, whose files are in its archive."""
        return [cell for cell in self.cells if cell.cell_id not in self.published]

    @property
    def further(self) -> list[CellScores]:
        """The shared cells that it brings and that are not published, file by file, in the set that it refers to.

        An entry may be older than the publication of its cells, and might then as well refer to them.

        Raises:
            EntryError: a published cell cannot be read.
        """
        brought = [cell for cell in self.brought if cell.defense != self.manifest.defense]
        published = Published(self.shared, self.manifest.suite.title, self.shared_set)
        try:
            return [cell for cell in brought if not _is_published(cell, published)]
        except PublishedError as error:
            raise EntryError(f"{self.folder / SCORES}: {error}") from error

    @property
    def spec(self) -> str:
        """The defense's spec string with the path of its file on this machine; its code may be a stranger's.

        Its weights are not in the folder: see `staging.restage`.
        """
        return relocated(self.manifest.defense, lambda file: str(self.folder.resolve() / file))

    @property
    def source(self) -> list[Path]:
        """The submitted files, sorted; none for a defense that comes with the package."""
        return sorted(self.folder / name for name in self.manifest.files if name != SCORES)


class Slugged(Protocol):
    """A manifest, as far as the entry's name is concerned."""

    @property
    def slug(self) -> str:
        """The folder's name."""


class Listed(Protocol):
    """An entry of the board: a defense's or an attack's."""

    sha256: str

    @property
    def manifest(self) -> Slugged:
        """The file that names the hashes of all others; `sha256` is of it, as it was read."""


def read_entry(folder: Path, shared: Path = SHARED) -> Entry:
    """Read an entry; none of its code is loaded or run.

    Args:
        folder: of the entry.
        shared: the published cells that it may refer to: the reader's own, whatever lies beside the entry.

    Raises:
        EntryError: something is missing, malformed or too large, or does not match its hash.
    """
    if not folder.is_dir():
        raise EntryError(f"there is no entry {folder}")
    present = present_files(folder)
    scores = sized_scores(folder, present, MANIFEST, ENTRY_BYTES)
    manifest, sha256 = parsed_and_hashed(Manifest, folder / MANIFEST)
    if manifest.slug != folder.resolve().name:
        raise EntryError(f"{folder / MANIFEST}: the slug is {manifest.slug}, but the folder has another name")
    if unlisted := sorted(present.keys() - manifest.files.keys() - {MANIFEST}):
        raise EntryError(f"{folder} holds {unlisted[0]}, which {MANIFEST} does not list")
    try:
        foreign = foreign_code(manifest.defense, manifest.files.keys())
    except registry.SpecStringError as error:
        raise EntryError(f"{folder / MANIFEST}: defense: {error}") from error
    if foreign:
        raise EntryError(f"{folder / MANIFEST}: defense {foreign}")
    # A built-in defense may have the benchmark's own name as its author, whoever ran it.
    if wrong := wrong_names(
        manifest.name, manifest.slug, manifest.authors, manifest.defense, baseline=manifest.files.keys() == {SCORES}
    ):
        raise EntryError(f"{folder / MANIFEST}: {wrong}")
    check_hashes(folder, present, scores, MANIFEST, manifest.files)
    return _resolved(folder, manifest, sha256, parsed_scores(Scores, folder, scores), shared)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an entry; the rest of the folder is not read.

    Raises:
        EntryError: there is none, or it is malformed.
    """
    return parsed(Manifest, folder / MANIFEST)


def write_entry(
    folder: Path, manifest: Manifest, scores: Scores, source: Mapping[str, bytes], shared: Path = SHARED
) -> Entry:
    """Write an entry and read it back.

    Args:
        folder: will be created; its name is the manifest's slug.
        manifest: the manifest; this function fills in its `files`.
        scores: of all cells.
        source: the submitted files by their path in the entry.
        shared: the published cells that it refers to.

    Raises:
        EntryError: it would be larger than an entry may be.
    """
    content = {SCORES: written(scores), **source}
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(content.items())}
    content[MANIFEST] = written(manifest.model_copy(update={"files": hashes}))
    if (total := len(content[MANIFEST]) + len(content[SCORES])) > ENTRY_BYTES:
        raise EntryError(f"the entry would have {total:,} bytes, and at most {ENTRY_BYTES:,} are allowed")
    if (total := sum(map(len, source.values()))) > FILE_BYTES:
        raise EntryError(f"the submitted source has {total:,} bytes, and at most {FILE_BYTES:,} are allowed")
    folder = folder.absolute()  # the current folder may be this one, and then another takes its place
    write_files(folder, content)
    return read_entry(folder, shared)


def _resolved(folder: Path, manifest: Manifest, sha256: str, scores: Scores, shared: Path) -> Entry:
    """An entry with the published cells that it refers to among its cells; raises EntryError."""
    references = [each for each in scores.cells if isinstance(each, Reference)]
    if not references:
        brought = [each for each in scores.cells if isinstance(each, CellScores)]
        return Entry(folder, manifest, brought, sha256=sha256, shared=shared)
    if manifest.schema_version < REFERRING_SCHEMA:
        raise EntryError(f"{folder / MANIFEST}: entries that refer to published cells have schema {REFERRING_SCHEMA}")
    cell_id, count = Counter(each.cell_id for each in scores.cells).most_common(1)[0]
    if count > 1:
        raise EntryError(f"{folder / SCORES} lists the cell {cell_id} twice")
    numerics = manifest.numerics.model_dump()
    try:
        of_suite = _set_of(references, published_sets(shared, manifest.suite.title))
        published = {each.cell_id: _referred(each, of_suite) for each in references}
        known = dict(zip(published, of_suite.scores(list(published.values())), strict=True))
    except PublishedError as error:
        raise EntryError(f"{folder / SCORES}: {error}") from error
    if own := next((cell for cell in published.values() if cell.record.cell["defense"] == manifest.defense), None):
        raise EntryError(f"{folder / SCORES} refers to {own.cell_id}, a cell of its own defense, and has to bring it")
    for cell in published.values():
        if (run_with := {name: cell.record.cell.get(name) for name in Numerics.model_fields}) != numerics:
            raise EntryError(
                f"{folder / SCORES} refers to {cell.cell_id}, which was run with {run_with}, not {numerics}"
            )
    if len({str(cell.record.identity.get("engine_revision")) for cell in published.values()}) > 1:
        raise EntryError(f"{folder / SCORES} refers to published cells of several engine revisions")
    cells = [known[each.cell_id] if isinstance(each, Reference) else each for each in scores.cells]
    return Entry(folder, manifest, cells, published, of_suite.name, sha256, shared)


def _set_of(references: Sequence[Reference], sets: Sequence[Published]) -> Published:
    """The set of published cells that an entry refers to; the first one where none has what it refers to.

    Raises:
        PublishedError: it refers to cells of several sets, and whoever may mix them chooses what suits.
    """
    named = [{each.name for each in sets if each.has(ref.cell_id, ref.published)} for ref in references]
    for each in sets:
        if all(each.name in names for names in named):
            return each
    known = [names for names in named if names]
    if known and not set.intersection(*known):
        several = sorted({min(names) or "the first one" for names in known})
        raise PublishedError(f"it refers to shared cells of several sets ({', '.join(several)}), not of one")
    return next((each for each in sets if known and each.name in set.intersection(*known)), sets[0])


def _is_published(cell: CellScores, published: Published) -> bool:
    """Whether a cell's files are published ones, and its numbers those of their record; its drift aside."""
    if (found := published.find(cell.cell_id)) is None:
        return False
    there, _ = found
    files = (there.record_sha256, there.record.completions_sha256)
    return files == (cell.record_sha256, cell.completions_sha256) and not there.numbers_apart(cell)


def _referred(reference: Reference, published: Published) -> PublishedCell:
    if (found := published.find(reference.cell_id)) is None:
        raise PublishedError(
            f"it refers to the shared cell {reference.cell_id}, which is not published for {published.title} "
            + ("in this version of thiefbench" if published.root == SHARED else f"in {published.root}")
        )
    cell, sha256 = found
    if sha256 != reference.published:
        raise PublishedError(
            f"it refers to another content of the shared cell {reference.cell_id} than the published one: SHA-256 "
            f"{reference.published[:12]} in place of {sha256[:12]}"
        )
    return cell


def bounded(path: Path, most: int) -> bytes:
    """The content of a file of an entry.

    Raises:
        EntryError: it is not a regular file, or is larger than allowed.
        FileNotFoundError: there is none.
    """
    try:
        return read_regular(path, most)
    except NotRegularError as error:
        raise EntryError(str(error)) from error


_Of = TypeVar("_Of", bound=BaseModel)


def parsed(kind: type[_Of], path: Path, most: int = ENTRY_BYTES) -> _Of:
    """A JSON file of an entry, of at most `most` bytes; raises EntryError where it is missing or malformed."""
    return parsed_and_hashed(kind, path, most)[0]


def parsed_and_hashed(kind: type[_Of], path: Path, most: int = ENTRY_BYTES) -> tuple[_Of, str]:
    """As `parsed`, with the SHA-256 of the bytes that were read."""
    try:
        content = bounded(path, most)
        return strictly_parsed(kind, content, LISTED), hashlib.sha256(content).hexdigest()
    except FileNotFoundError as error:
        raise EntryError(f"{path.parent} is not an entry: it has no {path.name}") from error
    except MalformedError as error:
        raise EntryError(f"{path}: {error}") from error


def parsed_scores(kind: type[_Of], folder: Path, content: bytes) -> _Of:
    """What the scores of the entry in a folder say, from their JSON; raises EntryError where it is malformed."""
    try:
        return strictly_parsed(kind, content, LISTED)
    except MalformedError as error:
        raise EntryError(f"{folder / SCORES}: {error}") from error


def scores_content(folder: Path, most: int = ENTRY_BYTES) -> bytes:
    """The JSON of an entry's scores, of at most `most` bytes; raises EntryError where it is missing or damaged."""
    path = folder / STORED_SCORES
    try:
        stream = bounded(path, most)
        content = decompressed(path, stream, most)
    except FileNotFoundError as error:
        raise EntryError(f"{folder} is not an entry: it has no {path.name}") from error
    except GzipError as error:
        raise EntryError(str(error)) from error
    # No hash covers how the content is compressed, and empty or clumsy blocks could say anything.
    if len(stream) > _LOOSELY * len(compressed(content)) + _FEW:
        raise EntryError(f"{path} has {len(stream):,} bytes, many more than its content compresses to")
    return content


def present_files(folder: Path) -> dict[str, Path]:
    """The files of an entry's folder by the names that its manifest lists them by.

    Raises:
        EntryError: it holds something else than plain files and folders, too many, or scores that are not compressed.
    """
    present: dict[str, Path] = {}
    for number, path in enumerate(_paths(folder)):
        if number > _MOST_PATHS or len(present) > MOST_FILES + 2:
            raise EntryError(f"{folder} holds more than {MOST_FILES} files")
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise EntryError(f"{path} is not a plain file")
        if path.is_file():  # compiled Python is an error too, because it could run instead of the source that was read
            present[path.relative_to(folder).as_posix()] = path
    if SCORES in present:
        raise EntryError(f"{present[SCORES]} is not compressed; an entry has {STORED_SCORES}")
    return dict(sorted((SCORES if name == STORED_SCORES else name, path) for name, path in present.items()))


def _paths(folder: Path) -> Iterator[Path]:
    """Everything in a folder at any depth, as `Path.rglob` but without recursion; whoever asks on refuses links.

    Raises:
        EntryError: folders lie deeper in one another than entries need.
    """
    waiting = [folder]
    while waiting:
        for path in waiting.pop().iterdir():
            yield path
            if path.is_dir():
                if len(path.relative_to(folder).parts) > _MOST_DEPTH:
                    raise EntryError(f"{folder} holds folders that lie more than {_MOST_DEPTH} deep in one another")
                waiting.append(path)


def sized_scores(folder: Path, present: Mapping[str, Path], manifest: str, most: int) -> bytes:
    """The JSON of the scores of an entry that is no larger than it may be; empty if the entry lacks them.

    Args:
        folder: of the entry.
        present: its files, as `present_files`.
        manifest: the name of its manifest.
        most: bytes of its manifest and its scores together, as JSON.

    Raises:
        EntryError: it is larger, or its scores are damaged.
    """
    sizes = {name: path.stat().st_size for name, path in present.items()}
    scores = scores_content(folder, most) if SCORES in present else b""
    if (total := sizes.get(manifest, 0) + len(scores)) > most:
        raise EntryError(f"{manifest} and {SCORES} of {folder} have {total:,} bytes, and at most {most:,} are allowed")
    if (rest := sum(size for name, size in sizes.items() if name not in (manifest, SCORES))) > FILE_BYTES:
        raise EntryError(f"the source in {folder} has {rest:,} bytes, and at most {FILE_BYTES:,} are allowed")
    return scores


def check_hashes(
    folder: Path, present: Mapping[str, Path], scores: bytes, manifest: str, files: Mapping[str, str]
) -> None:
    """Check that an entry has all the files that its manifest lists, with their hashes.

    Args:
        folder: of the entry.
        present: its files, as `present_files`.
        scores: the JSON of its scores, as `sized_scores`.
        manifest: the name of its manifest.
        files: the SHA-256 of each file that the manifest lists.

    Raises:
        EntryError: one is missing, or has another hash.
    """
    for name, expected in files.items():
        if name not in present:
            raise EntryError(f"{folder} lacks {name}, which {manifest} lists")
        content = scores if name == SCORES else bounded(present[name], FILE_BYTES)
        if hashlib.sha256(content).hexdigest() != expected:
            raise EntryError(f"{folder / name} does not match {manifest}: its SHA-256 differs")


def write_files(folder: Path, content: Mapping[str, bytes]) -> None:
    """Write an entry's files, by the names that its manifest lists them by; the scores are compressed.

    All are written beside the folder, which then takes the place of an earlier version of the entry as a whole: a full
    disk or a stop at any moment leaves either. What the earlier one had besides is gone. Where the file system cannot
    exchange folders, a stop between two renames leaves the earlier version in a hidden folder beside it.
    """
    stored = {
        STORED_SCORES if name == SCORES else name: compressed(data) if name == SCORES else data
        for name, data in content.items()
    }
    real = Path(os.path.realpath(folder))
    real.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=real.parent, prefix=f".{real.name}-", ignore_cleanup_errors=True) as beside:
        new = Path(beside) / real.name
        for name, data in stored.items():
            write_atomically(new / name, data)
        if not real.exists():
            new.replace(real)
            return
        new.chmod(stat.S_IMODE(real.stat().st_mode))
        if not _exchanged(new, real):
            _replace_folder(real, new)


def _replace_folder(folder: Path, new: Path) -> None:
    """Let one folder take the place of another in two steps; where folders cannot be renamed, file by file."""
    earlier = folder.parent / f".{folder.name}-earlier"
    shutil.rmtree(earlier, ignore_errors=True)
    try:
        folder.replace(earlier)
    except OSError:  # as of a folder in a lower layer of an overlay: what a container's image brought
        _replace_files(folder, new)
        return
    try:
        new.replace(folder)
    except BaseException:
        earlier.replace(folder)
        raise
    shutil.rmtree(earlier, ignore_errors=True)


def _replace_files(folder: Path, new: Path) -> None:
    """Let the files of one folder take the place of all of another's."""
    names = {path.relative_to(new) for path in new.rglob("*") if path.is_file()}
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (new / name).replace(folder / name)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(folder) not in names:
            path.unlink()


def _exchanged(one: Path, other: Path) -> bool:
    """Let two paths exchange what they name, at one stroke; False where the system or its file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):
        return False
    paths = [_CURRENT_FOLDER, os.fsencode(one), _CURRENT_FOLDER, os.fsencode(other)]
    return int(renameat2(*paths, _EXCHANGE)) == 0


def written(model: BaseModel) -> bytes:
    """Compact JSON that still gives readable diffs: one line per field, one per cell."""
    data = model.model_dump(mode="json", exclude_defaults=True)
    data |= {name: getattr(model, name) for name in type(model).model_fields if name == "schema_version"}
    lines = []
    for name, value in data.items():
        if name == "cells":
            cells = ",\n  ".join(json.dumps(cell, separators=(",", ":")) for cell in value)
            lines.append(f'"cells": [\n  {cells}\n ]')
        else:
            lines.append(f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}")
    return ("{\n " + ",\n ".join(lines) + "\n}\n").encode()
