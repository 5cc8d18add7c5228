"""The secret of a verification that was stopped, in the store that keeps its cells.

What a verification draws follows from a secret. A verification that goes on after a stop draws the same again, so that
its cells count, and so that nobody draws until it suits by stopping.
"""

from __future__ import annotations

from pathlib import Path

from thiefbench.engine.keys import SECRET_BYTES, new_secret
from thiefbench.leaderboard.attacking.entry import is_attack_entry
from thiefbench.leaderboard.attacking.manifest import ATTACK_MANIFEST
from thiefbench.leaderboard.manifest import MANIFEST
from thiefbench.suite.store.records import file_sha256, write_atomically

_FOLDER = "drawn"


def kept_secret(store: Path, entry: Path) -> bytes:
    """The secret of the verification of an entry that was begun with a store; a new one, which is kept there.

    Args:
        store: keeps the cells that the verification runs.
        entry: its folder. An entry that has changed since is another one.

    Raises:
        OSError: the store cannot be written to.
    """
    if (path := _path(store, entry)) is None:
        return new_secret()
    try:
        secret = bytes.fromhex(path.read_text("ascii").strip())
    except (FileNotFoundError, ValueError):
        secret = b""
    if len(secret) != SECRET_BYTES:
        secret = new_secret()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, secret.hex().encode("ascii"))
    return secret


def forget_secret(store: Path, entry: Path) -> None:
    """Draw anew in the next verification of an entry, as this one has its verdict."""
    if path := _path(store, entry):
        path.unlink(missing_ok=True)


def _path(store: Path, entry: Path) -> Path | None:
    """The secret's file; None where the folder is no entry, which the verification will say."""
    manifest = entry / (ATTACK_MANIFEST if is_attack_entry(entry) else MANIFEST)
    return store / _FOLDER / f"{file_sha256(manifest)}.key" if manifest.is_file() else None
