"""The cohort's weights at chosen rounds, kept so that a defense which asks the policy can be replayed there.

They lie in the cell's folder `weights`: one safetensors file per round in the policy's own dtype, which may be
compressed with gzip, and an index of their checksums. They belong neither to a cell's identity nor to its record, so a
finished cell may still get some.
"""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save

from thiefbench.engine.model.policy import Policy
from thiefbench.suite.store.records import (
    BrokenRecordError,
    CellDir,
    file_sha256,
    read_sealed,
    write_atomically,
    write_sealed,
)

_GZIP = ".gz"
_ROUND = re.compile(r"[1-9][0-9]{0,8}|0", re.ASCII)


def keep(cell: CellDir, number: int, policy: Policy, compressed: bool = False) -> None:
    """Store the weights with which round `number` samples and inspects, before its update.

    Args:
        cell: whose weights they are.
        number: the round.
        policy: has the weights.
        compressed: take less space (a fifth, for bfloat16), which costs a sixth of a second for a million weights.
    """
    content = save({name: tensor.detach() for name, tensor in policy.weights().items()})
    plain, packed = _paths(cell, number)
    path, other = (packed, plain) if compressed else (plain, packed)
    other.unlink(missing_ok=True)
    write_atomically(path, gzip.compress(content, mtime=0) if compressed else content)
    write_sealed(_index(cell), _checksums(cell) | {str(number): file_sha256(path)})


def kept(cell: CellDir) -> list[int]:
    """The rounds whose weights are stored and intact, ascending."""
    return sorted(
        int(number) for number, expected in _checksums(cell).items() if _is(_path(cell, int(number)), expected)
    )


def adopt(cell: CellDir, other: CellDir) -> list[int]:
    """Copy weights from `other`, a cell with the same rows, that `cell` lacks; returns their rounds."""
    missing = sorted(set(kept(other)) - set(kept(cell)))
    for number in missing:
        source = _path(other, number)
        path = cell.weights / source.name
        write_atomically(path, source.read_bytes())
        write_sealed(_index(cell), _checksums(cell) | {str(number): file_sha256(path)})
    return missing


def load(cell: CellDir, number: int, policy: Policy) -> None:
    """Give `policy` the weights of round `number`.

    Raises:
        BrokenRecordError: the file is damaged or holds another model's weights.
    """
    path, own = _path(cell, number), policy.weights()
    try:
        content = path.read_bytes()
        tensors = read_tensors(gzip.decompress(content) if path.suffix == _GZIP else content)
    except (OSError, EOFError, zlib.error, SafetensorError) as error:
        raise BrokenRecordError(f"{path} is missing or damaged") from error
    if {name: t.shape for name, t in tensors.items()} != {name: t.shape for name, t in own.items()}:
        raise BrokenRecordError(f"{path} holds the weights of another model")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def _paths(cell: CellDir, number: int) -> tuple[Path, Path]:
    """Where a round's weights lie, plain and compressed; at most one of the two is there."""
    plain = cell.weights / f"round-{number:06d}.safetensors"
    return plain, plain.with_name(f"{plain.name}{_GZIP}")


def _path(cell: CellDir, number: int) -> Path:
    plain, packed = _paths(cell, number)
    return packed if packed.is_file() else plain


def _index(cell: CellDir) -> Path:
    return cell.weights / "index.json"


def _checksums(cell: CellDir) -> dict[str, str]:
    """Checksums by round; empty if the index is missing or damaged, so that the weights are computed again."""
    try:
        index = read_sealed(_index(cell))
    except BrokenRecordError:
        return {}
    return {number: digest for number, digest in index.items() if _ROUND.fullmatch(number) and isinstance(digest, str)}


def _is(path: Path, expected: str) -> bool:
    """Whether a file exists with this content."""
    try:
        return file_sha256(path) == expected
    except OSError:
        return False
