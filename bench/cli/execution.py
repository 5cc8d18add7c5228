"""Which processes run the cells: this one, worker processes, a Ray cluster, or the ranks that torchrun started."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

import typer

from thiefbench.console import DONE, FAILED, Dtype, check_dtype, err, escaped, numerics
from thiefbench.errors import UsageError

if TYPE_CHECKING:
    from thiefbench.engine.backends.process_group import Launch
    from thiefbench.engine.spec import Batches
    from thiefbench.suite.execution.executors import Executor
    from thiefbench.suite.execution.ray_executor import Share
    from thiefbench.suite.scenario import CellSpec


class BatchKinds(StrEnum):
    """Which completions are sampled together."""

    cohort = "cohort"
    node = "node"


class Executors(StrEnum):
    """Where cells run."""

    local = "local"
    ray = "ray"


@dataclass(frozen=True)
class Execution:
    """The options of `thiefbench run` that say where and how cells run, as the user wrote them."""

    device: str
    dtype: str
    threads: int | None
    workers: int
    executor: Executors
    ray_address: str | None
    gpus_per_cell: float | None
    batches: BatchKinds | None
    rank_timeout: float

    @cached_property
    def launch(self) -> Launch | None:
        """This process' place among the ranks of torchrun; None without torchrun."""
        from thiefbench.engine.backends.process_group import Launch

        return Launch.of_environment()

    @property
    def local(self) -> bool:
        """Whether cells run in this process or in workers beside it: neither on Ray nor in ranks of torchrun."""
        return self.executor is Executors.local and self.launch is None

    def check(self, plan: bool) -> None:
        """Check that the options are compatible.

        Args:
            plan: whether the command only plans.

        Raises:
            UserError: they are not.
        """
        if self.launch is not None:
            parallel = self.workers > 1 or self.executor is not Executors.local
            if parallel or plan or self.batches is BatchKinds.cohort:
                raise UsageError(
                    "under torchrun one cell is run at a time, each node a rank; write the command without --workers, "
                    "--executor, --plan and --batches cohort, or without torchrun"
                )
        if self.executor is Executors.ray and self.workers > 1:
            raise UsageError("--workers is for --executor local; Ray runs as many cells as its nodes have room for")
        if self.executor is not Executors.ray and not (self.ray_address is None and self.gpus_per_cell is None):
            raise UsageError(
                "--ray-address and --gpus-per-cell are for a Ray cluster; write --executor ray beside them"
            )

    def numerics(self) -> tuple[str, Dtype, int, Batches]:
        """The part of a cell's identity that these options determine: device, dtype, threads and batches.

        Raises:
            UserError: the device or the dtype does not exist.
        """
        batches: Batches = "node" if self.launch is not None or self.batches is BatchKinds.node else "cohort"
        if self.executor is Executors.ray:
            return self.device, check_dtype(self.dtype), self._share().cpus, batches
        sharing = self.workers if self.launch is None else self.launch.local_size
        return *numerics(self.device, self.dtype, self.threads, sharing), batches

    def executor_for(self, cells: Sequence[CellSpec]) -> AbstractContextManager[Executor]:
        """What runs the cells. Under torchrun, every rank except the first takes part in all cells here and then exits.

        Raises:
            UserError: the ranks cannot run these cells.
        """
        if self.launch is not None:
            return _join_ranks(self.launch, cells, self.device, self.rank_timeout)
        if self.executor is Executors.ray:
            from thiefbench.suite.execution.ray_executor import RayExecutor

            return RayExecutor(self._share(), self.ray_address)
        from thiefbench.suite.execution.runner import local

        return nullcontext(local(self.workers))

    def _share(self) -> Share:
        from thiefbench.suite.execution.ray_executor import Share

        return Share.of(self.device, self.threads or 1, self.gpus_per_cell)


def _join_ranks(
    launch: Launch, cells: Sequence[CellSpec], device: str, timeout: float
) -> AbstractContextManager[Executor]:
    """The ranks as an executor, for rank 0; the others take part here until all cells are done, then exit."""
    from thiefbench.engine.backends.process_group import ProcessGroup, RankLostError
    from thiefbench.suite.execution.torchrun import FollowingRank, LeadingRank, check_cells, take_device

    check_cells(cells, launch)
    take_device(device, launch)
    try:
        group = ProcessGroup.join(launch, timeout)
        if launch.rank == 0:
            return LeadingRank(group)
        FollowingRank(group, cells).follow()
    except RankLostError as error:
        err.print(f"rank {launch.rank}: {escaped(str(error))}")
        raise typer.Exit(FAILED) from None
    raise typer.Exit(DONE)
