"""A stored cell's rounds in the format of recorded pools, labels included."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import cast

from thiefbench.engine.answer_keys import scored_item
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.sampler import ExcludingSampling
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
    cell_ids = sorted(path.name for path in folder.glob("*") if path.is_dir() and ".broken-" not in path.name)
    matches = [each for each in cell_ids if name and each.startswith(name)]
    if not cell_ids:
        raise ExportError(f"{store.root} holds no cells; name a store that thiefbench run filled")
    if len(matches) != 1:
        some = ", ".join((matches or cell_ids)[:5]) + (", ..." if len(matches or cell_ids) > 5 else "")
        how = "several cells begin" if matches else "no cell begins"
        raise ExportError(f"in {store.root} {how} with {name!r}; write one of {some}")
    return store.cell(matches[0])


def header_of(recording: Recording) -> Header:
    """The first line of a file with a cell's rounds."""
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
            control_tokens="excluded" if isinstance(sampling, ExcludingSampling) else "drawn",
        ),
        seed=recording.seed,
    )


def of_cohort(recording: Recording, number: int | None) -> Recording:
    """The rounds that one cohort received, by its number; None: the first cohort.

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
    """One line for every consecutive run of a sender's completions in a group, so that completions keep their places.

    Args:
        recording: the recording of one cohort (`of_cohort`).
    """
    for number, rows in recording.pools.items():
        pool = recording.pool(number, lambda items: cast(ForwardCache, Absent("the policy")))
        items = {item.id: item for item in pool.items}
        for (group, sender, malicious), part in groupby(rows, lambda row: (row.group, row.sender, row.malicious)):
            rows_of_line = list(part)
            item = scored_item(items[rows_of_line[0].item_id], rows_of_line[0].answer_key)
            yield Line(
                round=number,
                sender=sender,
                item=item.id,
                group=str(group),
                question=item.question,
                answer=item.answer,
                prompt=[PromptMessage(**message) for message in recording.task.messages(item)],
                completions=[row.text for row in rows_of_line],
                rewards=[row.reward for row in rows_of_line],
                ids=[list(row.ids) for row in rows_of_line],
                ended=[row.ended for row in rows_of_line],
                malicious=malicious,
                payload=[row.payload for row in rows_of_line],
            )
