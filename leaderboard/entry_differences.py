"""Why two rows of the board differ: two entries side by side, with what was not the same for both.

A row's numbers depend on its own cells, in which its defense is used, and on the shared cells (control, undefended,
placebo, oracle) that these are measured against. So a difference between two rows has three possible causes, and each
is looked at apart: what made the cells (versions, processor, threads), the shared cells, and the own cells. None of an
entry's code is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from thiefbench.leaderboard import rows
from thiefbench.leaderboard.cell_scores import OF_COMPLETIONS, CellScores
from thiefbench.leaderboard.deliveries import named
from thiefbench.leaderboard.entry import Entry, EntryError
from thiefbench.suite.analysis.comparison import Cell, values_over
from thiefbench.suite.analysis.differences import ComparedRun, StoreComparison, versus
from thiefbench.suite.analysis.run_comparisons import comparisons_of_cells
from thiefbench.suite.scenario import Suite, heading
from thiefbench.wording import counted

_ALWAYS_APART = frozenset({"platform", "git_commit", "git_dirty", "source_sha256", "device_name"})
"""Facts about a machine that change no result: the package's source counts by the engine revision, in cells' ids."""

Key = tuple[str, str, str, str, int]
"""Part, role, attack, defense and seed of a cell; the defense of an own cell is empty."""


@dataclass(frozen=True)
class EntryDifference:
    """Two entries on one suite, compared.

    Attributes:
        comparison: their own cells' measures, paired by seed. A is the first entry.
        reasons: what can make them differ, one sentence each, in the order in which it should be read.
    """

    comparison: StoreComparison
    reasons: tuple[str, ...]


def difference(one: Entry, other: Entry) -> EntryDifference:
    """Compare two entries.

    Args:
        one, other: entries on the same released suite.

    Raises:
        EntryError: they are on different suites, their suite is not known here, or they have no seed in common.
    """
    suite = rows.suite_of(one)
    if suite.fingerprint() != rows.suite_of(other).fingerprint():
        raise EntryError(
            f"{one.folder} is on {suite.title} and {other.folder} on {rows.suite_of(other).title}; only entries on the "
            "same suite can be compared"
        )
    if not set(one.manifest.seeds) & set(other.manifest.seeds):
        raise EntryError(f"{one.folder} and {other.folder} have no seed in common, so nothing is paired")
    comparison = versus(_side("A", one, suite), _side("B", other, suite))
    reasons = (*_made_with(one, other), *_shared(one, other, suite), *_own(one, other))
    return EntryDifference(comparison, reasons)


def _side(name: str, entry: Entry, suite: Suite) -> ComparedRun:
    return ComparedRun(
        name, entry.manifest.slug, suite.title, suite.fingerprint(), (), tuple(rows.comparisons(entry)),
        entry.manifest.defense,
    )  # fmt: skip


# --- what made the cells ---


def _made_with(one: Entry, other: Entry) -> Iterator[str]:
    first, second = (_facts(entry) for entry in (one, other))
    differing = [
        f"{name} {first.get(name, 'unknown')} and {second.get(name, 'unknown')}"
        for name in dict.fromkeys((*first, *second))
        if first.get(name) != second.get(name)
    ]
    if differing:
        yield f"Their own cells were not made with the same: {'; '.join(differing)}."
    else:
        yield "Their own cells were made with the same versions, on the same kind of machine."


def _facts(entry: Entry) -> dict[str, str]:
    """What computed an entry's cells, as far as it can change them; where its deliveries differ, at which seeds."""
    manifest = entry.manifest
    facts = {name: str(value) for name, value in manifest.numerics.model_dump().items()}
    made = [({**each.versions, **each.machine}, each.seeds) for each in manifest.deliveries]
    for name in dict.fromkeys(name for each, _ in made for name in each):
        if name not in _ALWAYS_APART:
            at: dict[str, list[int]] = {}
            for each, seeds in made:
                at.setdefault(str(each.get(name, "unknown")), []).extend(seeds)
            facts[name] = " / ".join(
                f"{value} ({named(seeds)})" if len(at) > 1 else value for value, seeds in at.items()
            )
    facts["seeds"] = ", ".join(map(str, sorted(manifest.seeds)))
    return facts


# --- the cells that both are measured against ---


def _shared(one: Entry, other: Entry, suite: Suite) -> Iterator[str]:
    first, second = (_by_key(entry, own=False) for entry in (one, other))
    both = [key for key in first if key in second]
    apart = [key for key in both if not _same(first[key], second[key])]
    if not apart:
        same = counted(len(both), "shared cell")
        yield f"Both are measured against the same {same}, so what differs comes from their own cells."
        return
    yield (
        f"{len(apart)} of {counted(len(both), 'shared cell')} are not the same: "
        f"{'; '.join(_where_apart(key, first[key], second[key]) for key in apart[:5])}"
        f"{f'; and {len(apart) - 5} more' if len(apart) > 5 else ''}."
    )
    yield from _exchanged(one, other, suite)


def _exchanged(one: Entry, other: Entry, suite: Suite) -> Iterator[str]:
    """What A's harm prevented would be on B's shared cells, for every attack for which that changes it."""
    own = [replace(cell, defense=one.manifest.defense) for cell in _cells(one, own=True)]
    cells = [*_cells(other, own=False), *own]
    seeds = set(one.manifest.seeds) & set(other.manifest.seeds)
    there = {
        each.title: each for each in comparisons_of_cells([c for c in cells if c.seed in seeds], suite.ranking, False)
    }
    for comparison in rows.comparisons(one):
        exchanged = there.get(comparison.title)
        values = [
            values_over({r.seed: r for r in line.results if r.seed in seeds}, "harm_prevented")
            for each in (comparison, exchanged)
            if each is not None and (line := each.line(one.manifest.defense)) is not None
        ]
        if len(values) == 2 and all(values) and values[0] != values[1]:
            before, after = (sum(by_seed.values()) / len(by_seed) for by_seed in values)
            yield (
                f"On B's shared cells, A would prevent {after:z.3f} of the harm of {comparison.title}, in place of "
                f"{before:z.3f}: as much of the difference comes from the shared cells."
            )


# --- their own cells ---


def _own(one: Entry, other: Entry) -> Iterator[str]:
    manifests = (one.manifest, other.manifest)
    if manifests[0].defense != manifests[1].defense:
        yield "The defenses differ."
    elif manifests[0].source_sha256 != manifests[1].source_sha256:
        yield "They are the same defense by name, but not by its source."
    else:
        yield "They are the same defense, by its source."
    first, second = (_by_key(entry, own=True) for entry in (one, other))
    equal: list[tuple[Key, int | None]] = []
    courses: list[tuple[Key, int | None]] = []
    for key in (key for key in first if key in second):
        place = _apart_from(first[key], second[key])
        (equal if place is None else courses).append((key, place))
    if equal:
        count = f"{len(equal)} of {counted(len(equal) + len(courses), 'own cell')}"
        yield f"The same in every evaluation: {count}, {_listed(equal)}."
    if courses:
        courses.sort(key=lambda each: (each[1] or 0, each[0]))
        parting = [
            f"from {_evaluation(place)} on in {_listed(group)}"
            for place, group in groupby(courses, lambda each: each[1])
        ]
        yield f"{'The others' if equal else 'Their own cells'} differ: {'; '.join(parting)}."


def _listed(group: Iterable[tuple[Key, int | None]]) -> str:
    return ", ".join(f"{title} ({seeds})" for title, seeds in _titled(key for key, _ in group))


def _titled(keys: Iterable[Key]) -> Iterator[tuple[str, str]]:
    """Cells by what they are, with their seeds."""
    by_title: dict[str, list[int]] = {}
    for part, role, attack, _, seed in keys:
        title = heading(part, attack) if role == "attack" else f"{heading(part, attack)} without an attack"
        by_title.setdefault(title, []).append(seed)
    for title, seeds in by_title.items():
        yield title, named(sorted(seeds))


# --- cells ---


def _by_key(entry: Entry, own: bool) -> dict[Key, CellScores]:
    its_own = entry.manifest.defense
    return {
        (cell.part, cell.role, cell.attack, "" if own else cell.defense, cell.seed): cell
        for cell in entry.cells
        if (cell.defense == its_own) == own
    }


def _cells(entry: Entry, own: bool) -> list[Cell]:
    return [cell for cell in rows.cells(entry) if (cell.defense == entry.manifest.defense) == own]


def _same(one: CellScores, other: CellScores) -> bool:
    known = one.cell_id == other.cell_id and one.completions_sha256 and other.completions_sha256
    if known and one.completions_sha256 != other.completions_sha256:
        return False
    return _apart_from(one, other) is None


def _where_apart(key: Key, one: CellScores, other: CellScores) -> str:
    part, role, attack, defense, seed = key
    name = {"attack": defense, "control": "no attack", "placebo": "placebo"}[role]
    place = _apart_from(one, other)
    seen = "other completions, equal evaluations" if place is None else f"first seen to differ at {_evaluation(place)}"
    return f"{heading(part, attack)}, {name}, seed {seed} ({seen})"


def _evaluation(after: int | None) -> str:
    """What `_apart_from` found, in words: evaluations are some rounds apart, and swarms differ from an earlier one."""
    return f"the evaluation after round {after}" if after else "the start"


_SAID = frozenset(
    {
        *OF_COMPLETIONS, "stage_false_rejection_rate", "recomputed_share", "vector_stop_rate", "vector_clip_rate",
        "vector_false_rejection_rate", "vector_false_clip_rate",
    }
)  # fmt: skip
"""Scores of what a defense said of completions, stages or vectors, and of what it had repeated."""


def _apart_from(one: CellScores, other: CellScores) -> int | None:
    """The round after which the first evaluation differs; None if all that both have are equal.

    Where curves say nothing, as for a failed cell, different scores count as different from the start. Where they say
    something, scores of what a defense said or cost do not count, which may differ in equal swarms.
    """
    rounds, compared = [], False
    for name in one.curves.keys() & other.curves.keys():
        here, there = dict(one.curves[name]), dict(other.curves[name])
        rounds += [place for place in here.keys() & there.keys() if here[place] != there[place]]
        compared = compared or bool(here.keys() & there.keys())
    if rounds:
        return min(rounds)
    common = (one.scores.keys() & other.scores.keys()) - (_SAID if compared else frozenset())
    return 0 if one.status != other.status or any(one.scores[n] != other.scores[n] for n in common) else None
