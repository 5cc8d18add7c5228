"""The scores of an entry, scores.json.gz, to be looked at and edited by tests."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

from thiefbench.leaderboard.gzipped import compressed
from thiefbench.leaderboard.manifest import STORED_SCORES


def scores_bytes(folder: Path) -> bytes:
    """What the file of an entry's scores holds, which need not be JSON after `put_scores`."""
    return gzip.decompress((folder / STORED_SCORES).read_bytes())


def scores_text(folder: Path) -> str:
    """The JSON of an entry's scores."""
    return scores_bytes(folder).decode()


def scores_of(folder: Path) -> Any:
    """What the scores of an entry say."""
    return json.loads(scores_text(folder))


def put_scores(folder: Path, text: str | bytes) -> None:
    """Replace the JSON of an entry's scores; its hash in the manifest stays."""
    (folder / STORED_SCORES).write_bytes(compressed(text.encode() if isinstance(text, str) else text))


def scores_sha256(folder: Path) -> str:
    """The hash that a manifest has of them."""
    return hashlib.sha256(scores_bytes(folder)).hexdigest()
