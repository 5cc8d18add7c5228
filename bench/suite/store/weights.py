"""The cohort's weights at chosen rounds, kept so that a defense which asks the policy can be replayed there.

They lie in the cell's folder `weights`: one safetensors file per round in the policy's own dtype, and an index of
their checksums. They belong neither to a cell's identity nor to its record, so a finished cell may still get some.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from thiefbench.engine.model.policy import Policy
from thiefbench.suite.store.records import (
    BrokenRecordError,
    CellDir,
    file_sha256,
    read_sealed,
    write_atomically,
    write_sealed,
)

_ROUND = re.compile(r"[1-9][0-9]{0,8}|0", re.ASCII)


def keep(cell: CellDir, number: int, policy: Policy) -> None:
    """Store the weights with which round `number` samples and inspects, before its update."""
    path = _path(cell, number)
    write_atomically(path, save({name: tensor.detach() for name, tensor in policy.weights().items()}))
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
        path = _path(cell, number)
        write_atomically(path, _path(other, number).read_bytes())
        write_sealed(_index(cell), _checksums(cell) | {str(number): file_sha256(path)})
    return missing


def load(cell: CellDir, number: int, policy: Policy) -> None:
    """Give `policy` the weights of round `number`.

    Raises:
        BrokenRecordError: the file is damaged or holds another model's weights.
    """
    path, own = _path(cell, number), policy.weights()
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BrokenRecordError(f"{path} is missing or damaged") from error
    if {name: t.shape for name, t in tensors.items()} != {name: t.shape for name, t in own.items()}:
        raise BrokenRecordError(f"{path} holds the weights of another model")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def _path(cell: CellDir, number: int) -> Path:
    return cell.weights / f"round-{number:06d}.safetensors"


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
