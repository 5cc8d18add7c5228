"""An attack's entry: a folder like a defense's, with a manifest of its own.

    NAME/attack.json       who, which attack, against which defenses, on which suite; hashes of all other files
    NAME/scores.json.gz    one trimmed record per cell, and a few completions
    NAME/attack/           the submitted file or package, as it was run; absent for one that comes with the package

It lies among the entries of defenses. Everything read here comes from a stranger: sizes are bounded, names are checked,
unknown fields are errors, and nothing is loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from thiefbench import registry
from thiefbench.leaderboard.attacking.manifest import ATTACK_MANIFEST, AttackManifest
from thiefbench.leaderboard.attacking.scores import AttackCell, AttackScores, Example
from thiefbench.leaderboard.entry import (
    EntryError,
    check_hashes,
    parsed,
    parsed_and_hashed,
    parsed_scores,
    present_files,
    sized_scores,
    write_files,
    written,
)
from thiefbench.leaderboard.isolation.sandbox_paths import relocated
from thiefbench.leaderboard.isolation.staging import restaged
from thiefbench.leaderboard.manifest import SCORES
from thiefbench.leaderboard.named_code import foreign_code
from thiefbench.leaderboard.names import wrong_names

ATTACK_ENTRY_BYTES: Final = 400_000
"""Most bytes of the two JSON files together; its source has at most `limits.FILE_BYTES`."""


class AttackEntry:
    """An attack's entry that was read and is complete.

    Attributes:
        folder: of the entry.
        manifest, cells, examples: the content of its two JSON files.
        sha256: of its manifest as it was read, which names the hashes of everything else.
    """

    def __init__(
        self,
        folder: Path,
        manifest: AttackManifest,
        cells: Sequence[AttackCell],
        examples: Sequence[Example],
        sha256: str = "",
    ) -> None:
        self.folder, self.manifest, self.sha256 = folder, manifest, sha256
        self.cells, self.examples = tuple(cells), tuple(examples)

    @property
    def brought(self) -> tuple[AttackCell, ...]:
        """The cells whose files are in its archive: all."""
        return self.cells

    @property
    def spec(self) -> str:
        """The attack's spec string with the path of its file on this machine; its code may be a stranger's."""
        return relocated(self.manifest.attack, lambda file: str(self.folder.resolve() / file), "attack")

    @property
    def source(self) -> list[Path]:
        """The submitted files, sorted; none for an attack that comes with the package."""
        return sorted(self.folder / name for name in self.manifest.files if name != SCORES)


def is_attack_entry(folder: Path) -> bool:
    """Whether a folder of entries holds an attack's."""
    return (folder / ATTACK_MANIFEST).is_file()


def restage_attack(entry: AttackEntry, brought: Path, folder: Path) -> str:
    """As `staging.restage`, for the attack of its entry; the code is to be run by `IsolatedAttack` only."""
    return restaged(entry, entry.manifest.attack, "attack", brought, folder)


def read_attack_entry(folder: Path) -> AttackEntry:
    """Read an attack's entry; none of its code is loaded or run.

    Raises:
        EntryError: something is missing, malformed or too large, or does not match its hash.
    """
    if not folder.is_dir():
        raise EntryError(f"there is no entry {folder}")
    present = present_files(folder)
    content = sized_scores(folder, present, ATTACK_MANIFEST, ATTACK_ENTRY_BYTES)
    manifest, sha256 = parsed_and_hashed(AttackManifest, folder / ATTACK_MANIFEST, ATTACK_ENTRY_BYTES)
    path = folder / ATTACK_MANIFEST
    if manifest.slug != folder.resolve().name:
        raise EntryError(f"{path}: the slug is {manifest.slug}, but the folder has another name")
    if unlisted := sorted(present.keys() - manifest.files.keys() - {ATTACK_MANIFEST}):
        raise EntryError(f"{folder} holds {unlisted[0]}, which {ATTACK_MANIFEST} does not list")
    try:
        foreign = foreign_code(manifest.attack, manifest.files.keys(), "attack")
    except registry.SpecStringError as error:
        raise EntryError(f"{path}: attack: {error}") from error
    if foreign:
        raise EntryError(f"{path}: attack {foreign}")
    # An attack that comes with the package may have the benchmark's own name as its author.
    if wrong := wrong_names(
        manifest.name, manifest.slug, manifest.authors, manifest.attack, baseline=manifest.files.keys() == {SCORES}
    ):
        raise EntryError(f"{path}: {wrong}")
    check_hashes(folder, present, content, ATTACK_MANIFEST, manifest.files)
    scores = parsed_scores(AttackScores, folder, content)
    return AttackEntry(folder, manifest, scores.cells, scores.examples, sha256)


def read_attack_manifest(folder: Path) -> AttackManifest:
    """The manifest of an attack's entry; raises EntryError where there is none, or it is malformed."""
    return parsed(AttackManifest, folder / ATTACK_MANIFEST, ATTACK_ENTRY_BYTES)


def write_attack_entry(
    folder: Path, manifest: AttackManifest, scores: AttackScores, source: Mapping[str, bytes]
) -> AttackEntry:
    """Write an attack's entry and read it back.

    Args:
        folder: will be created; its name is the manifest's slug.
        manifest: this function fills in its `files`.
        scores: of all cells.
        source: the submitted files by their path in the entry.

    Raises:
        EntryError: it would be larger than an entry may be.
    """
    content = {SCORES: written(scores), **source}
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(content.items())}
    content[ATTACK_MANIFEST] = written(manifest.model_copy(update={"files": hashes}))
    if (total := len(content[ATTACK_MANIFEST]) + len(content[SCORES])) > ATTACK_ENTRY_BYTES:
        raise EntryError(f"the entry would have {total:,} bytes, and at most {ATTACK_ENTRY_BYTES:,} are allowed")
    folder = folder.absolute()  # the current folder may be this one, and then another takes its place
    write_files(folder, content)
    return read_attack_entry(folder)
