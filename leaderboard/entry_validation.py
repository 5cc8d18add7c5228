"""Is an entry whole: are its cells those of its suite, and its files those that its cells were run with?"""

from __future__ import annotations

from thiefbench import registry
from thiefbench.leaderboard.entry import Entry, EntryError
from thiefbench.leaderboard.isolation.sandbox_paths import files
from thiefbench.leaderboard.rows import wanted
from thiefbench.leaderboard.submitted_files import wrong_import, wrong_size
from thiefbench.suite.scenario import CellSpec, Suite, heading


def cells_of(entry: Entry, suite: Suite) -> list[tuple[str, CellSpec]]:
    """The suite's cells of an entry's row, each with its part.

    Raises:
        EntryError: the entry has others.
    """
    manifest = entry.manifest
    if manifest.seeds != suite.seeds:
        raise EntryError(f"it was run at the seeds {manifest.seeds}, and {suite.title} has {suite.seeds}")
    specs = [(suite.part_of(s), s) for s in wanted(suite, manifest.seeds, manifest.numerics, manifest.defense)]
    due = [(part, s.role, s.attack, s.defense, s.seed) for part, s in specs]
    found = [(c.part, c.role, c.attack, c.defense, c.seed) for c in entry.cells]
    for what, names in (("lacks", set(due) - set(found)), ("has beside the suite's", set(found) - set(due))):
        if names:
            part, role, attack, defense, seed = min(names)
            of = f"{role} cell, {heading(part, attack)} x {defense}, seed {seed}"
            raise EntryError(f"it {what} {len(names)} cells, such as the {of}")
    if due != found:
        raise EntryError("its cells stand in another order than the suite's")
    return specs


def check_source(entry: Entry) -> None:
    """See that the submitted files are what the cells' identities name, and may be submitted.

    Raises:
        EntryError: they are not.
    """
    for file in files(entry.spec):
        if wrong := wrong_size(file) or wrong_import(file):
            raise EntryError(wrong)
    if registry.source_hash("defense", entry.spec, load=False) != entry.manifest.source_sha256:
        raise EntryError(
            "the submitted source is another than its cells were run with (a class of one's own that takes a defense "
            "as an argument cannot be told, and is not taken)"
        )
