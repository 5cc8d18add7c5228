"""Copies a submission to a folder of its own, so that its paths are the same wherever it runs.

A defense's files go into `defense/` there, and those of an attack into `attack/`.

A cell's identity includes the spec string, and so the path of the file. Submissions are therefore run from a
copy with the layout of the entry; the same spec string then names the same files on every machine.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from thiefbench import registry
from thiefbench.leaderboard.entry import Entry, EntryError
from thiefbench.leaderboard.isolation.sandbox_paths import (
    Guests,
    files,
    left_behind,
    missed_file,
    relocated,
    weights,
)
from thiefbench.leaderboard.manifest import PATH, Packed
from thiefbench.loading import SpecStringError
from thiefbench.sources import is_of_package, source_files
from thiefbench.suite.store.records import file_sha256, write_atomically


@dataclass(frozen=True)
class Staged:
    """A submission's copy.

    Attributes:
        folder: the working directory; `spec` is relative to it.
        spec: the defense, with the path that its file has here and in the entry.
        source: the submitted files by path; none for a defense that comes with the package.
        weights: the safetensors files that belong to them.
        left_out: names of safetensors files that were not copied, because neither the file beside them nor the spec
            string names them.
        originals: the submitter's own files by path in the copy.
    """

    folder: Path
    spec: str
    source: Mapping[str, bytes]
    weights: tuple[Path, ...]
    left_out: tuple[str, ...]
    originals: Mapping[str, Path]

    @contextmanager
    def named_as_original(self) -> Iterator[None]:
        """Within this context, a mistake in a copied file is reported with the path of the submitter's own file.

        Where it missed a file that lies beside that one, the report says what to do.
        """
        try:
            yield
        except SpecStringError as error:
            said = str(error)
            for name, path in self.originals.items():
                said = said.replace(str(self.folder.resolve() / name), str(path))
            missed = missed_file(said)
            if missed is not None and any((path.parent / missed.name).is_file() for path in self.originals.values()):
                said += left_behind(missed.name)
            raise SpecStringError(said) from error


class Listing(Protocol):
    """A manifest, as far as files are concerned."""

    @property
    def files(self) -> Mapping[str, str]:
        """The SHA-256 of every file of the entry, by its path in the folder."""

    @property
    def source_sha256(self) -> str:
        """Hash of the source, as in the cells' identities."""

    @property
    def weights(self) -> Sequence[Packed]:
        """Names and hashes of the archive's weights."""


class Submitted(Protocol):
    """The files of an entry, a defense's or an attack's."""

    @property
    def folder(self) -> Path:
        """The entry's folder."""

    @property
    def source(self) -> Sequence[Path]:
        """The submitted files in it."""

    @property
    def manifest(self) -> Listing:
        """Its content."""


def stage(spec: str, folder: Path, kind: Guests = "defense") -> Staged:
    """Copy the files of a submission; equal content gets the same folder, so that a stopped run can continue.

    Args:
        spec: of the submission, with paths relative to the working directory.
        folder: of copies.
        kind: of the spec string.

    Raises:
        EntryError: a file's name is not allowed in an entry.
        SpecStringError: the spec string is malformed, or names a file that is not there.
    """
    named = files(spec, kind)
    places, originals = _places(named, kind)
    source = {name: path.read_bytes() for name, path in originals.items()}
    moved = relocated(spec, lambda text: places[Path(text).expanduser().resolve()], kind)
    beside = {path.name: path for file in named for path in weights(file)}
    searched = b"\0".join([moved.encode(), *source.values()])
    # A weights file's name holds the hash of its content. Whatever names it is part of a cell's identity, and so the
    # identity covers the weights, too.
    taken = {name: path for name, path in sorted(beside.items()) if name.encode() in searched}
    digest = hashlib.sha256(moved.encode())
    for name, data in sorted(source.items()):
        digest.update(f"\0{name}\0{len(data)}\0".encode() + data)
    for name, path in taken.items():
        digest.update(f"\0{name}\0{file_sha256(path)}".encode())
    own = folder / digest.hexdigest()[:16]
    _lay_out(own, source, taken.values(), places.values())
    return Staged(own, moved, source, tuple(taken.values()), tuple(sorted(beside.keys() - taken)), originals)


def restage(entry: Entry, brought: Path, folder: Path) -> str:
    """Copy the files of an entry's defense, with the weights of its archive beside them.

    Args:
        entry: the entry; none of its code is loaded.
        brought: the folder of weights that `archive.unpack` made.
        folder: the target; `entry.manifest.defense` is relative to it.

    Returns:
        The defense's spec string with absolute paths. The code is a stranger's, to be run by `Isolated` only.

    Raises:
        EntryError: weights are missing.
    """
    return restaged(entry, entry.manifest.defense, "defense", brought, folder)


def restaged(entry: Submitted, spec: str, kind: Guests, brought: Path, folder: Path) -> str:
    """As `restage`, for the spec string of a defense or an attack in its entry.

    Raises:
        EntryError: weights are missing, or the source is not the one that its manifest names any more.
    """
    packed_weights = [brought / each.name for each in entry.manifest.weights]
    if missing := next((path for path in packed_weights if not path.is_file()), None):
        raise EntryError(f"{missing} is missing; unpack the entry's archive first")
    source = {path.relative_to(entry.folder).as_posix(): path.read_bytes() for path in entry.source}
    for name, data in source.items():
        if entry.manifest.files.get(name) != hashlib.sha256(data).hexdigest():
            raise EntryError(f"{entry.folder / name} was changed after the entry was read; begin again")
    named: list[str] = []

    def place(file: str) -> str:
        named.append(file)
        return str(folder.resolve() / file)

    absolute = relocated(spec, place, kind)
    _lay_out(folder, source, packed_weights, named)
    # What was checked lay in the entry's folder, which may have changed meanwhile; this is what is run.
    if source and registry.source_hash(kind, absolute, load=False) != entry.manifest.source_sha256:
        raise EntryError(f"the source in {entry.folder} is not the one that its manifest names; begin again")
    return absolute


def _places(named: Sequence[Path], top_folder: str) -> tuple[dict[Path, str], dict[str, Path]]:
    """The path in the entry of every named file, and by such paths these and all files that belong to them."""
    places: dict[Path, str] = {}
    originals: dict[str, Path] = {}
    tops: dict[Path, str] = {}
    for file in named:
        root = file.parent if is_of_package(file) else file
        if root not in tops:  # two files in different folders may have the same name
            tops[root] = next(name for name in _names(root) if name not in tops.values())
        top = tops[root]
        for path in source_files(file):
            within = path.relative_to(root).parts if root != file else ()
            originals["/".join((top_folder, top, *within))] = path
        places[file] = "/".join((top_folder, top, *(file.relative_to(root).parts if root != file else ())))
    for name in originals:
        if not PATH.fullmatch(name):
            raise EntryError(_not_allowed(name.removeprefix(f"{top_folder}/")))
    return places, originals


def wrong_name(file: Path) -> str:
    """What is wrong with the names of a submitted file and of those that belong to it; empty if nothing is."""
    root = file.parent.parent if is_of_package(file) else file.parent
    names = (path.relative_to(root).as_posix() for path in source_files(file))
    return next((_not_allowed(name) for name in names if not PATH.fullmatch(name)), "")


def _not_allowed(name: str) -> str:
    return f"{name} is not allowed in an entry; use only letters, digits and . _ - in names of files and folders"


def _names(root: Path) -> Iterable[str]:
    yield root.name
    yield from (f"{root.stem}-{number}{root.suffix}" for number in range(2, 1000))


def _lay_out(folder: Path, source: Mapping[str, bytes], weights: Iterable[Path], named: Collection[str]) -> None:
    """Write files, and the weights beside every file that the spec string names."""
    for name, data in source.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            write_atomically(path, data)
    folder.mkdir(parents=True, exist_ok=True)
    for path in weights:
        for parent in {(folder / name).parent for name in named}:
            target = parent / path.name
            if not target.is_file() or target.stat().st_size != path.stat().st_size:
                shutil.copyfile(path, target)
