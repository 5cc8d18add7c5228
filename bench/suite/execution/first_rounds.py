"""A first round with code of the user's own, played before anything is trained, so that its mistakes show at once."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch

from thiefbench import registry
from thiefbench.engine.learning.cohort import DivergedError
from thiefbench.engine.round_record import CompletionRow
from thiefbench.errors import UserError
from thiefbench.suite.execution.cell_identity import ends_run
from thiefbench.suite.execution.cell_run import build_swarm
from thiefbench.suite.execution.checkpoints import checkpointed, wrong_rows
from thiefbench.suite.execution.jobs import Job
from thiefbench.suite.scenario import CellSpec
from thiefbench.tasks.sandbox import SandboxUnavailable
from thiefbench.torch_settings import torch_settings_kept
from thiefbench.user_frames import described, kept, shown
from thiefbench.wording import counted


class FirstRoundError(UserError):
    """The user's own code fails in a first round. One sentence for the user.

    Attributes:
        own_frames: where in the user's code, as Python shows it; empty if no line of it is to blame.
        traceback: every frame.
    """

    def __init__(self, message: str, error: BaseException) -> None:
        super().__init__(message)
        frames = kept(error)
        self.own_frames, self.traceback = shown(frames), shown(frames, whole=True)


@torch_settings_kept()
def play_first_rounds(jobs: Iterable[Job], note: Callable[[str], None]) -> None:
    """Play one round with every attack, defense and task of the user's own of which no cell has been begun.

    The swarms are those of the cells, and are thrown away. An attack that rehearses only judges the answers of a swarm
    without it, as its rehearsal takes minutes.

    Args:
        jobs: of all cells.
        note: receives one sentence for each round.

    Raises:
        FirstRoundError: the code raises an error, or breaks its contract.
    """
    for names, spec in _untried(list(jobs)):
        torch.set_num_threads(spec.threads)
        try:
            rows, seconds = _first_round(spec, note)
        except (SandboxUnavailable, DivergedError):
            continue  # not for this code: the cell will say so
        except (Exception, SystemExit) as error:
            if ends_run(error):
                raise
            raise FirstRoundError(
                f"the first round with {' and '.join(names)} failed, so nothing was trained: {described(error)}", error
            ) from error
        finally:
            gc.collect()  # what the code holds, such as an open file, is the cells' to open again
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # the cells' own processes need the memory
        inspects = spec.defense in names and not spec.averaging and not spec.pipeline
        rejected = sum(row.action != "accept" for row in rows)
        what = f": it rejects {rejected:,} of {counted(len(rows), 'completion')}" if inspects else ""
        note(f"tried one round with {' and '.join(names)}{what} ({seconds:.1f} s)")


def _first_round(spec: CellSpec, note: Callable[[str], None]) -> tuple[list[CompletionRow], float]:
    """The rows of a cell's first round and how many seconds it took, in a swarm that nothing keeps.

    Raises:
        ValueError: its rows cannot be stored; and whatever the code in it raises.
    """
    swarm, began = build_swarm(spec, note), time.perf_counter()
    rows = swarm.round(1).rows
    if wrong := wrong_rows(swarm, rows):
        raise ValueError(wrong)
    return rows, time.perf_counter() - began


def _untried(jobs: list[Job]) -> Iterator[tuple[list[str], CellSpec]]:
    """Cells that between them hold all code of the user's own that no begun cell holds, and the names of that code."""
    tried = {name for job in jobs if _begun(job) for name in _own_code(job.spec)}
    for job in sorted(jobs, key=lambda job: (job.spec.rehearses, job.spec.asks, job.spec.role != "attack")):
        spec = job.spec
        if names := [name for name in _own_code(spec) if name not in tried]:
            tried.update(names)
            alone = spec.rehearses or spec.pipeline is not None
            yield names, replace(spec, role="control") if alone else spec


def _begun(job: Job) -> bool:
    return job.directory.record_path.exists() or bool(checkpointed(job.directory))


def _own_code(spec: CellSpec) -> list[str]:
    """The spec strings of a cell that name a class in a file or a module."""
    return [name for name in (spec.task, spec.attack, spec.defense) if any(registry.classes_in(name))]
