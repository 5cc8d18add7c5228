"""The store of a verification: it keeps the cells that it runs and, until its verdict, its secret.

What a verification draws follows from a secret. A verification that goes on after a stop draws the same again, so that
its cells count, and so that nobody draws until it suits by stopping.
"""

from __future__ import annotations

from pathlib import Path

from thiefbench.engine.keys import SECRET_BYTES, new_secret
from thiefbench.errors import UserError
from thiefbench.leaderboard.attacking.entry import is_attack_entry
from thiefbench.leaderboard.attacking.manifest import ATTACK_MANIFEST
from thiefbench.leaderboard.manifest import MANIFEST
from thiefbench.suite.store.records import file_sha256, write_atomically

_FOLDER = "drawn"


def kept_secret(store: Path, entry: Path) -> bytes:
    """The secret of the verification of an entry that was begun with a store; a new one, which is kept there.

    Args:
        store: keeps the cells that the verification runs; `check_own` has taken it.
        entry: its folder. An entry that has changed since is another one.

    Raises:
        OSError: the store cannot be written to.
    """
    if not (sha256 := manifest_sha256(entry)):
        return new_secret()
    path = store / _FOLDER / f"{sha256}.key"
    try:
        secret = bytes.fromhex(path.read_text("ascii").strip())
    except (FileNotFoundError, ValueError):
        secret = b""
    if len(secret) != SECRET_BYTES:
        secret = new_secret()
        write_atomically(path, secret.hex().encode("ascii"))
    return secret


def forget_secret(store: Path, sha256: str) -> None:
    """Draw anew in the next verification of the entry whose manifest has this hash, as this one has its verdict."""
    (store / _FOLDER / f"{sha256}.key").unlink(missing_ok=True)


def check_own(store: Path) -> None:
    """See that a store is one of verifications, which a new one becomes.

    Cells and rounds that something else has run, such as the submitted ones, would be taken for what was run again.

    Raises:
        UserError: it holds some.
        OSError: it cannot be written to.
    """
    folder = store / _FOLDER
    if not folder.is_dir() and any(path for name in ("cells", "shared") for path in (store / name).glob("*")):
        raise UserError(
            f"--store {store} holds cells that no verification has run, such as those that were submitted, and they "
            "would count as run again; give another directory"
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def manifest_sha256(entry: Path) -> str:
    """Of an entry's manifest as it is now; empty where the folder is no entry, which the verification will say."""
    manifest = entry / (ATTACK_MANIFEST if is_attack_entry(entry) else MANIFEST)
    return file_sha256(manifest) if manifest.is_file() else ""
