"""The files of other projects that tests read, and changed copies of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import thiefbench
from thiefbench.pools.rounds import FiledRounds, PoolEntry
from thiefbench.rollouts.reading import SOURCES, format_of, read_rollouts
from thiefbench.rollouts.source import Reading

FIXTURES = Path(__file__).parent / "fixtures"
PRIME_RL = FIXTURES / "prime-rl" / "step_3" / "traces.jsonl"
GRAIL = FIXTURES / "grail" / "window-7200030.parquet"
VERL = FIXTURES / "verl" / "7.jsonl"
TRL = FIXTURES / "trl" / "completions_00001.parquet"
FILES = {"prime-rl": PRIME_RL, "grail": GRAIL, "verl": VERL, "trl": TRL}
TOKENIZER = str(Path(thiefbench.__file__).parent / "zoo" / "micro-math")


def rounds(*paths: Path, **reading: Any) -> FiledRounds:
    """The rounds of files whose format is found."""
    return read_rollouts(paths, SOURCES[format_of(paths[0])], Reading(**reading))


def entries(*paths: Path, **reading: Any) -> list[PoolEntry]:
    """Every completion of them, in the order of the lines."""
    return sorted(rounds(*paths, **reading).all_entries, key=lambda entry: (entry.where, entry.line, entry.position))


def lines(path: Path) -> list[dict[str, Any]]:
    """A JSON file's objects."""
    return [json.loads(one) for one in path.read_text().splitlines()]


def changed(source: Path, target: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of a file whose second line or row is changed in place."""
    if source.suffix == ".parquet":
        table = pq.read_table(source)
        rows = table.to_pylist()
        change(rows[1])
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), target)
    else:
        objects = copy.deepcopy(lines(source))
        change(objects[1])
        target.write_text("".join(json.dumps(one) + "\n" for one in objects))
    return target
