"""Which arithmetic computed a cell: torch's version and, on a CPU, the processor's maker and the vector instructions
that torch used there.

They change last bits, which training amplifies to other tokens. They are not part of a cell's identity, so that a store
can move to another machine; instead, reports say if cells of one comparison differ in them.

The maker counts because torch's matrix library chooses its loops by it: of 27 cells that processors of Intel and of AMD
with the same vector instructions trained for 24 rounds, 10 had other completions, the first of them in rounds 18 to 24.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from thiefbench import provenance
from thiefbench.suite.store.records import Record
from thiefbench.wording import counted

ARITHMETIC = {"torch": "torch", "capability": "vector capability", "maker": "processor maker"}
"""Its parts, and what they are called."""


def arithmetic_of(record: Record) -> dict[str, str]:
    """By part, as far as the record has it; older records have neither vector capability nor maker."""
    return _of(record.provenance, str(record.cell.get("device", "cpu")))


def arithmetic_said(versions: Mapping[str, Any], machine: Mapping[str, Any], device: str) -> dict[str, str]:
    """By part, of cells whose common versions and machine are known, such as those of an entry."""
    return _of({**machine, "torch": versions.get("torch")}, device)


def arithmetic_here(device: str) -> dict[str, str]:
    """Of this machine."""
    return _of(provenance.provenance(device, threads=0), device)


def _of(made_with: Mapping[str, Any], device: str) -> dict[str, str]:
    names = ARITHMETIC if device == "cpu" else ("torch",)
    found = {**made_with, "maker": _maker(made_with.get("processor_model"))}
    return {name: str(found[name]) for name in names if found.get(name) is not None}


def _maker(model: object) -> str | None:
    """From a processor's numbers, such as "AuthenticAMD family 25 model 17"; those of several are joined by " / "."""
    if not isinstance(model, str):
        return None
    return " / ".join(sorted({words[0] for each in model.split(" / ") if (words := each.split())})) or None


def differing(records: Iterable[Record]) -> dict[str, tuple[str, ...]]:
    """What differs between records: its name, and every value in the order of the records."""
    values: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in arithmetic_of(record).items():
            values.setdefault(ARITHMETIC[name], {})[value] = None
    return {name: tuple(each) for name, each in values.items() if len(each) > 1}


def mixture(records: Iterable[Record]) -> str:
    """One sentence on what differs between the records of one comparison; empty if nothing does."""
    several = [f"{name} {' and '.join(values)}" for name, values in differing(records).items()]
    return f"Its cells were computed with different {', and '.join(several)}." if several else ""


def reuse_note(records: Iterable[Record], here: Mapping[str, Mapping[str, str]]) -> str:
    """One sentence on how stored cells were computed differently from new ones; empty if they were not.

    Args:
        records: of the cells that are reused.
        here: `arithmetic_here` by device.
    """
    found: Counter[tuple[str, str, str]] = Counter()
    others = 0
    for record in records:
        made_with, now = arithmetic_of(record), here.get(str(record.cell.get("device", "cpu")), {})
        changed = [name for name, value in made_with.items() if value != now.get(name, value)]
        found.update((ARITHMETIC[name], made_with[name], now[name]) for name in changed)
        others += bool(changed)
    if not others:
        return ""
    which = ", ".join(f"{name} {before} (here: {now})" for name, before, now in found)
    cells = counted(others, "cell")
    return f"{cells} of the store, made with {which}, {'is' if others == 1 else 'are'} reused; a new run may differ"
