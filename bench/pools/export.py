"""A stored cell's rounds in the format of recorded pools, labels included."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import cast

from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.errors import UserError
from thiefbench.pools.schema import Header, Line, PromptMessage, SamplingFields
from thiefbench.suite.analysis.recorded_rounds import Absent
from thiefbench.suite.analysis.replay import Recording
from thiefbench.suite.store.records import CellDir, Store


class ExportError(UserError):
    """There is no such cell. One sentence for the user."""


def find_cell(store: Store, name: str) -> CellDir:
    """The cell of a store whose id begins with `name`.

    Raises:
        ExportError: there is none, or several.
    """
    folder = store.root / "cells"
    there = sorted(path.name for path in folder.glob("*") if path.is_dir() and ".broken-" not in path.name)
    found = [each for each in there if name and each.startswith(name)]
    if not there:
        raise ExportError(f"{store.root} holds no cells; give a store that thiefbench run filled")
    if len(found) != 1:
        some = ", ".join((found or there)[:5]) + (", ..." if len(found or there) > 5 else "")
        how = "several cells begin" if found else "no cell begins"
        raise ExportError(f"in {store.root} {how} with {name!r}; write one of {some}")
    return store.cell(found[0])


def header_of(recording: Recording) -> Header:
    """What a file of a cell's rounds says in its first line."""
    cell, sampling = recording.record.cell, recording.sampling
    return Header(
        thiefbench_pool=1,
        task=cell["task"][:200],
        model=recording.model[:200],
        sampling=SamplingFields(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            max_new_tokens=sampling.max_new_tokens,
        ),
        seed=recording.seed,
    )


def of_cohort(recording: Recording, number: int | None) -> Recording:
    """What one cohort received, as a file's rounds are one receiver's; the first one's where no number is given.

    Raises:
        ExportError: there is no such cohort.
    """
    cohorts = {part.cohort: part for part in recording.cohorts}
    if number is None:
        return next(iter(cohorts.values()))
    if number not in cohorts:
        known = ", ".join(map(str, cohorts))
        raise ExportError(f"the cell has no cohort {number} that learned from others; give one of {known}")
    return cohorts[number]


def lines_of(recording: Recording) -> Iterator[Line]:
    """A line for every stretch of a group that has one sender, so that every completion keeps its place.

    Args:
        recording: of one cohort (`of_cohort`).
    """
    for number, rows in recording.pools.items():
        pool = recording.pool(number, lambda items: cast(ForwardCache, Absent("the policy")))
        items = {item.id: item for item in pool.items}
        for (group, sender, malicious), part in groupby(rows, lambda row: (row.group, row.sender, row.malicious)):
            own = list(part)
            item = items[own[0].item_id]
            yield Line(
                round=number,
                sender=sender,
                item=item.id,
                group=str(group),
                question=item.question,
                answer=item.answer,
                prompt=[PromptMessage(**message) for message in recording.task.messages(item)],
                completions=[row.text for row in own],
                rewards=[row.reward for row in own],
                ids=[list(row.ids) for row in own],
                ended=[row.ended for row in own],
                malicious=malicious,
                payload=[row.payload for row in own],
            )
