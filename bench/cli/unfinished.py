"""How to go on with a run that a store holds only in part."""

from __future__ import annotations

import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from thiefbench.errors import UserError
from thiefbench.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from thiefbench.suite.scenario import Suite
    from thiefbench.suite.store.records import CellDir, Store


def how_to_go_on(store: Store) -> str:
    """One sentence with the command that finishes a store's last run; empty if every cell has a record.

    It has no command where the run is not that of an installed suite, changed by options.

    Raises:
        UserError: the description of the run cannot be used.
    """
    from thiefbench.suite.analysis.run_comparisons import last_run
    from thiefbench.suite.store.runs import check_run

    run = last_run(store)
    cells = [store.cell(each["cell_id"]) for each in run["cells"]]
    missing = sum(not cell.record_path.exists() for cell in cells)
    if not missing:
        return ""
    lacking = f"{missing} of {counted(len(cells), 'cell')} {'is' if missing == 1 else 'are'} not finished; to go on"
    root = str(store.root)
    words = _words(check_run(run, str(store.root / "run.json")))
    if not words:
        return f"{lacking}, run the same suite again with the same options and --store {shlex.quote(root)}"
    return f"{lacking}: {shlex.join(['thiefbench', 'run', *words, *_numerics(cells), '--store', root])}"


def _words(suite: Suite) -> list[str]:
    """An installed suite's name, and the options of `thiefbench run` that make this suite of it; empty if none do."""
    from thiefbench import registry
    from thiefbench.cli.overrides import Overrides, Topologies
    from thiefbench.suite.analysis.ranking import beside_anchors
    from thiefbench.suite.suite_yaml import load_suite

    known = registry.names("suite")
    for name in (suite.name, f"{suite.name}-v{suite.version}"):
        if name not in known or (released := load_suite(name)).version != suite.version:
            continue
        ours, theirs = suite.scenes[0], released.scenes[0]
        anchors = beside_anchors(released.defenses, ())
        chosen = [each for each in suite.defenses if each not in anchors] or ["none"]
        changes: dict[str, Any] = {
            "defenses": chosen if suite.defenses != released.defenses else None,
            "attacks": list(ours.attacks) if ours.attacks != theirs.attacks else None,
            "task": ours.task if ours.task != theirs.task else None,
            "model": ours.model if ours.model != theirs.model else None,
            "topology": Topologies(ours.swarm.topology) if ours.swarm.topology != theirs.swarm.topology else None,
            "seeds": len(suite.seeds) if suite.seeds != released.seeds else None,
            "rounds": ours.rounds if ours.rounds != theirs.rounds else None,
        }
        with suppress(UserError):  # raised where options cannot make it
            if Overrides(**changes).applied_to(released) == suite:
                return [name, *_options(changes)]
    return []


def _options(changes: Mapping[str, Any]) -> list[str]:
    """Overrides as words of a command."""
    words = []
    for name, value in changes.items():
        option = {"defenses": "--defense", "attacks": "--attack"}.get(name, f"--{name}")
        for each in value if isinstance(value, list) else [] if value is None else [value]:
            words += [option, str(each)]
    return words


def _numerics(cells: Sequence[CellDir]) -> list[str]:
    """The options that make the cells that are left like the first finished one."""
    from thiefbench.suite.store.records import BrokenRecordError

    for cell in cells:
        with suppress(BrokenRecordError):
            if record := cell.read():
                usual = {"device": "cpu", "dtype": "float32", "batches": "cohort"}
                settings = {name: str(record.cell.get(name, value)) for name, value in usual.items()}
                other = [(name, value) for name, value in settings.items() if value != usual[name]]
                threads = str(record.cell["threads"])
                return ["--threads", threads, *(word for name, value in other for word in (f"--{name}", value))]
    return []
