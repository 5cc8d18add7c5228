"""Which arithmetic computed a cell: torch's version and, on a CPU, the vector instructions that torch used there.

They change last bits, which training amplifies to other tokens. They are not part of a cell's identity, so that a store
can move to another machine; instead, reports say if cells of one comparison differ in them.

So does the processor's maker, probably as torch's matrix library chooses its loops by it: of 27 cells that an Intel and
an AMD processor with equal vector instructions trained for 24 rounds, 10 had other completions, the first of them in
rounds 18 to 24.

Between processors, cells are equal for the first rounds and independent samples of one experiment from then on. So they
can be measured against each other (`comparable`), and a row says where they differ. Another version of torch may change
more than last bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from thiefbench import provenance
from thiefbench.suite.store.records import Record
from thiefbench.wording import counted

ARITHMETIC = {"torch": "torch", "capability": "vector capability"}
"""The names in a record's provenance, and what they are called."""
MAKER = "processor maker"
"""What is said beside them."""
_MAKERS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}
"""What makers are called, by the name that their processors give."""


def arithmetic_of(record: Record) -> dict[str, str]:
    """By name, as far as the record has it; older records have no vector capability."""
    return arithmetic_in(record.provenance, str(record.cell.get("device", "cpu")))


def arithmetic_here(device: str) -> dict[str, str]:
    """Of this machine."""
    return arithmetic_in(provenance.provenance(device, threads=0), device)


def arithmetic_in(made_with: Mapping[str, Any], device: str) -> dict[str, str]:
    """Of cells on a device, from what a record says of its making."""
    names = ARITHMETIC if device == "cpu" else ("torch",)
    return {name: str(made_with[name]) for name in names if made_with.get(name) is not None}


def comparable(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether cells of two arithmetics can be measured against each other: whether torch's version is the same."""
    return one.get("torch") == other.get("torch")


def computed_here(device: str) -> dict[str, str]:
    """The arithmetic of this machine and its maker, by what they are called."""
    return _computed(provenance.provenance(device, threads=0), device)


def maker_of(made_with: Mapping[str, Any]) -> str:
    """The processor's maker, such as "AMD", from a record's provenance; empty if it does not say.

    Those of several processors are joined by " / ", as an entry joins what its records say.
    """
    models = str(made_with.get("processor_model") or "").split(" / ")
    makers = {words[0] for each in models if (words := each.split())}
    return " / ".join(sorted(_MAKERS.get(each, each) for each in makers))


def _computed(made_with: Mapping[str, Any], device: str) -> dict[str, str]:
    said = {ARITHMETIC[name]: value for name, value in arithmetic_in(made_with, device).items()}
    maker = maker_of(made_with) if device == "cpu" else ""
    return said | ({MAKER: maker} if maker else {})


def _computed_with(record: Record) -> dict[str, str]:
    return _computed(record.provenance, str(record.cell.get("device", "cpu")))


def differing(records: Iterable[Record]) -> dict[str, tuple[str, ...]]:
    """What differs between records: its name, and every value in the order of the records."""
    values: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in _computed_with(record).items():
            values.setdefault(name, {})[value] = None
    return {name: tuple(each) for name, each in values.items() if len(each) > 1}


def mixture(records: Iterable[Record]) -> str:
    """One sentence on what differs between the records of one comparison; empty if nothing does."""
    several = [f"{name} {' and '.join(values)}" for name, values in differing(records).items()]
    return f"Its cells were computed with different {', and '.join(several)}." if several else ""


def reuse_note(records: Iterable[Record], here: Mapping[str, Mapping[str, str]]) -> str:
    """One sentence on how stored cells were computed differently from new ones; empty if they were not.

    Args:
        records: of the cells that are reused.
        here: `computed_here` by device.
    """
    found: Counter[tuple[str, str, str]] = Counter()
    others = 0
    for record in records:
        made_with, now = _computed_with(record), here.get(str(record.cell.get("device", "cpu")), {})
        changed = [name for name, value in made_with.items() if value != now.get(name, value)]
        found.update((name, made_with[name], now[name]) for name in changed)
        others += bool(changed)
    if not others:
        return ""
    which = ", ".join(f"{name} {before} (here: {now})" for name, before, now in found)
    cells = counted(others, "cell")
    return f"{cells} of the store, made with {which}, {'is' if others == 1 else 'are'} reused; a new run may differ"
