"""The account that every executor keeps of a run's cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import tiny
from tests.bench.tiny import Watcher, suite
from thiefbench.errors import UserError
from thiefbench.suite.execution.executors import RESTARTS, Ledger
from thiefbench.suite.execution.jobs import Job
from thiefbench.suite.execution.runner import Stop, jobs_of
from thiefbench.suite.store.records import Record, Store


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    """Two cells that nobody has run."""
    return list(jobs_of(suite(), tiny.cells(suite()), Store(tmp_path)).values())


class Kept:
    """A ledger with what it says."""

    def __init__(self, jobs: list[Job]) -> None:
        self.watcher, self.records = Watcher(), list[Record]()
        self.ledger = Ledger(jobs, self.watcher, Stop(print), lambda job, record: self.keep(record))

    def keep(self, record: Record) -> None:
        self.records.append(record)


def test_cells_of_another_run_come_last_and_are_waited_for(jobs: list[Job]) -> None:
    ledger, (first, second) = Kept(jobs).ledger, jobs
    assert ledger.order() == (first, False)
    ledger.hear(first, "taken")
    assert (ledger.untried, ledger.left) == (1, 2), "nobody waits for it while another cell can be worked on"
    assert [ledger.order(), ledger.order(), ledger.order()] == [(second, False), (first, True), None]


def test_a_cell_that_loses_its_workers_is_tried_first_again_and_then_given_up(jobs: list[Job]) -> None:
    kept, (first, second) = Kept(jobs), jobs
    for _ in range(RESTARTS):
        assert kept.ledger.order() == (first, False)
        kept.ledger.lose(first, "with its node")
    assert (
        kept.watcher.notes
        == [f"{first.spec.label}: its worker process died with its node; another one goes on with the cell"] * RESTARTS
    )
    kept.ledger.order()
    kept.ledger.lose(first, "with its node")
    (record,) = kept.records
    assert (record.status, record.scores) == ("error", {}), "a failure is never a score"
    assert record.error.endswith("its worker process died 3 times, last with its node")
    assert first.directory.read() == record, "it is in the store"
    assert kept.ledger.order() == (second, False), "the other cell is untouched"


def test_a_record_is_never_overwritten_by_a_death_that_came_after_it(jobs: list[Job]) -> None:
    kept, (first, _) = Kept(jobs), jobs
    tiny.run(suite(), first.directory.path.parent.parent)
    before = first.directory.record_path.read_bytes()
    for _ in range(RESTARTS + 1):
        kept.ledger.lose(first, "unexpectedly")
    assert [record.status for record in kept.records] == ["ok"]
    assert first.directory.record_path.read_bytes() == before


def test_a_job_is_the_same_after_a_way_through_text(jobs: list[Job]) -> None:
    for job in jobs:
        assert Job.from_json(job.to_json()) == job, "spec, path, identity and rounds arrive as they were"


def test_a_user_s_mistake_and_a_full_disk_are_raised_as_they_were(jobs: list[Job]) -> None:
    ledger = Kept(jobs).ledger
    with pytest.raises(UserError, match=r"^what to write instead$"):
        ledger.hear(jobs[0], "mistake", "what to write instead")
    with pytest.raises(OSError, match="No space left") as full:
        ledger.hear(jobs[0], "disk", 28, "No space left on device", "file")
    assert full.value.errno == 28
