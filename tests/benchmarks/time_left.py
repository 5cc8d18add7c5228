"""How right the time left was: a finished run played through again from its store's records, round by round.

    python tests/benchmarks/time_left.py runs/standard --defense guard [--workers 2] [--empty]

With --defense (repeat for several) the run of these defenses' cells is played, with all others in the store before;
else that of all cells, into an empty store. The seconds are those of the records, so nothing is measured here: what is
printed is the time left that the progress bar would have shown, relative to the time that was left, in tenths of the
run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from pathlib import Path

from thiefbench import registry
from thiefbench.progress import Tally
from thiefbench.suite.estimates.eta import MeasuredCell, RunOutline
from thiefbench.suite.estimates.measured import cell_of, measured_here
from thiefbench.suite.execution.runner import taken_up
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import Record, Store


def moments(record: Record) -> list[float]:
    """Seconds from a cell's start to the end of its start evaluation, and to the end of every round."""
    return list(accumulate([sum(record.seconds.values()) - sum(record.pace), *record.pace]))


def told(
    cells: Sequence[tuple[CellSpec, Record]], workers: int, before: Sequence[MeasuredCell]
) -> Iterator[tuple[float, float | None]]:
    """At every round of the run: the seconds since it began, and the time left that is shown."""
    now = 0.0
    tally = Tally(workers, clock=lambda: now)
    tally.plan(RunOutline("replayed", [spec for spec, _ in cells], measured=before))
    waiting, events = list(cells), [(0.0, worker) for worker in range(workers)]
    under_way: dict[int, tuple[CellSpec, list[float], float, int]] = {}
    while events:
        now, worker = heappop(events)
        if worker in under_way:
            spec, ends, began, done = under_way.pop(worker)
            tally.cell(spec, done, spec.rounds)
            if done < spec.rounds:
                under_way[worker] = (spec, ends, began, done + 1)
                heappush(events, (began + ends[done + 1], worker))
            else:
                tally.finished(spec)
            yield now, tally.seconds_left()
        if worker not in under_way and waiting:
            spec, record = waiting.pop(0)
            under_way[worker] = (spec, moments(record), now, 0)
            heappush(events, (now + moments(record)[0], worker))


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--defense", action="append", default=[])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--empty", action="store_true", help="as if nothing were known of the other cells")
    asked = parser.parse_args()
    wanted = {registry.canonical("defense", defense) for defense in asked.defense}
    records = [record for record in Store(asked.store).records() if record.pace]
    records.sort(key=lambda record: record.provenance["started"])
    specs = {spec: record for record in records if (spec := cell_of(record)) is not None}
    played = [(spec, specs[spec]) for spec in taken_up(specs) if not wanted or spec.defense in wanted]
    others = [] if asked.empty else [record for record in records if wanted and record.cell["defense"] not in wanted]
    shown = list(told(played, asked.workers, measured_here(others, [spec for spec, _ in played])))
    end = shown[-1][0]
    print(f"{len(played)} cells, {len(others)} others in the store, {end / 60:.1f} min with {asked.workers} workers")
    ratios = [(now / end, left / (end - now)) for now, left in shown if left is not None and now < 0.99 * end]
    for tenth in range(10):
        within = [ratio for share, ratio in ratios if tenth / 10 <= share < (tenth + 1) / 10]
        if within:
            first, least, most = within[0], min(within), max(within)
            print(f"{tenth * 10:3} to {tenth * 10 + 10:3} %: {first:.2f} at its start, {least:.2f} to {most:.2f}")
    later = [ratio for share, ratio in ratios if share >= 0.1]
    right = sum(0.75 <= ratio <= 1.25 for ratio in later) / len(later)
    print(f"after the first tenth: {min(later):.2f} to {max(later):.2f}, within 25 % in {right:.0%} of the moments")


if __name__ == "__main__":
    main()
