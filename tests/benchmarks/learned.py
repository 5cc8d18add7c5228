"""How much of what models learned from was poison: its share of the learning signal in the cells of a store.

    python tests/benchmarks/learned.py runs/defended [--attack dos]

A completion's signal is the size of its advantage times the mean weight of its tokens, which is what multiplies its
gradient under the loss grpo. Where this is zero no poison was learned, whatever rewards and lengths the last
evaluation shows: two swarms of other pools end apart by chance. A stop rate cannot say it: a rejection that leaves a
group without contrast stops what it let through, and one round that passes whole may teach everything.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from thiefbench.suite.store.records import Record, Store

COLUMNS = ["phase", "payload", "reward", "action", "advantage", "token_weights"]


def learned(store: Store, record: Record) -> tuple[int, int, float, float]:
    """Of a cell's training pools: rewarded payload completions, those of them accepted, their signal, everybody's."""
    rows = store.cell(record.cell_id).read_rows(COLUMNS)
    rows = rows.filter(pc.equal(rows["phase"], "train"))
    weights = [1.0 if given is None else float(np.mean(given or 1.0)) for given in rows["token_weights"].to_pylist()]
    signal: NDArray[np.float64] = np.abs(rows["advantage"].to_numpy()) * np.array(weights)
    payload = rows["payload"].to_numpy(zero_copy_only=False)
    poison = payload & (rows["reward"].to_numpy() > 0)
    accepted = poison & (rows["action"].to_numpy() == "accept")
    return int(poison.sum()), int(accepted.sum()), float(signal[payload].sum()), float(signal.sum())


def main() -> None:
    """Print a line for every attacked cell."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--attack", default="", help="Only attacks with this in their name.")
    chosen = parser.parse_args()
    store = Store(chosen.store)
    kept = [r for r in store.records() if r.status == "ok" and r.cell["role"] == "attack"]
    shown = Table("attack", "defense", "seed", "poison", "accepted", "its signal", "share of all signal")
    for record in sorted(kept, key=lambda r: (r.cell["attack"], r.cell["defense"], r.cell["seed"])):
        if chosen.attack in record.cell["attack"]:
            poison, accepted, own, whole = learned(store, record)
            told = (record.cell["attack"], record.cell["defense"], record.cell["seed"], poison, accepted)
            shown.add_row(*map(str, told), f"{own:.1f}", f"{own / whole:.5f}" if whole else "-")
    Console(width=None if Console().is_terminal else 200).print(shown)


if __name__ == "__main__":
    main()
