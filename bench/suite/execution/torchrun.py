"""Cells whose swarms are processes: `torchrun --nproc-per-node N -m thiefbench run SUITE`, one rank a node.

Rank 0 owns the store and evaluates; it is an `Executor` whose cells all ranks play, one after another. The others
follow it. They compute the suite's cells from their own command line, so that rank 0 names a cell by its id alone, and
one whose files, data or options differ on another machine is not there by that name.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from safetensors.torch import load, save

from thiefbench import registry
from thiefbench.engine.backends.messages import MessageError, decode, encode, most_bytes
from thiefbench.engine.backends.process_group import (
    IDLE_BYTES,
    Launch,
    ProcessGroup,
    RankFailedError,
    RankLostError,
    RankStoppedError,
)
from thiefbench.engine.backends.rank import RankBackend, check_distributable
from thiefbench.engine.learning.memory import keep_freed_memory
from thiefbench.engine.spec import Batches, SpecError
from thiefbench.engine.swarm import Swarm
from thiefbench.locks import LockedError
from thiefbench.suite.execution.cell_identity import identity
from thiefbench.suite.execution.cell_run import LocalRuntime, build_swarm
from thiefbench.suite.execution.executors import Ledger
from thiefbench.suite.execution.runner import work_on
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import identify, table_rows
from thiefbench.torch_settings import torch_settings_kept
from thiefbench.wording import counted

_READY = encode({"what": "ready"})
_NEXT, _START = "between two cells", "at the start of a cell"
# What a defense remembers, and the rows of a round's completion beside its tokens, are shorter.
_STATE_BYTES, _ROW_BYTES, _TOKEN_BYTES = 1 << 30, 1 << 14, 64


def check_cells(cells: Sequence[CellSpec], launch: Launch) -> None:
    """See that all cells can be played by the ranks that were started.

    Raises:
        SpecError: one cannot.
    """
    if any(spec.averaging for spec in cells):
        raise SpecError("swarms that exchange weights are played in one process; run them without torchrun")
    if any(spec.pipeline for spec in cells):
        raise SpecError("pipelines are played in one process; run them without torchrun")
    if any(spec.experts for spec in cells):
        raise SpecError("swarms of experts are played in one process; run them without torchrun")
    for swarm in dict.fromkeys(spec.swarm for spec in cells):
        check_distributable(swarm, launch.size)
        if swarm.reward != "rule" and swarm.reward_judge.endpoint is not None:
            raise SpecError(
                "the judge that rewards is a server, which may answer each rank differently; give the swarm a "
                "reward_judge that each rank loads, or run it without torchrun"
            )
    for name in dict.fromkeys(spec.defense for spec in cells):
        judge = registry.make("defense", name).judge
        if judge is not None and judge.endpoint is not None:
            raise SpecError(
                f"the defense {name} asks a server, which may answer each rank differently; give it a judge that "
                "each rank loads, or run it without torchrun"
            )


def take_device(device: str, launch: Launch) -> None:
    """Make `cuda` mean a GPU of its own for every rank of a machine, as far as there are as many."""
    if device == "cuda":
        torch.cuda.set_device(launch.local_rank % torch.cuda.device_count())
    if device.startswith("cuda"):
        # Sums in whatever order would let the ranks' weights drift apart in their last bits.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)


class RankRuntime(LocalRuntime):
    """A rank: the `CellRuntime` that it plays cells in."""

    def __init__(self, exchange: ProcessGroup) -> None:
        self.exchange = exchange

    def swarm(self, batches: Batches, **parts: Any) -> Swarm:
        """The rank's node of a swarm, which samples for itself whatever `batches` says."""
        return Swarm(**parts, backend=RankBackend(self.exchange))

    def about(self) -> dict[str, Any]:
        """How many ranks there are."""
        return {"ranks": self.exchange.size}

    @contextmanager
    def _cell(self) -> Iterator[None]:
        """Work on a cell; what fails here, or stops it, the other ranks are told of."""
        try:
            with self.exchange.halting("in a cell"):
                yield
        finally:
            self.exchange.limit = IDLE_BYTES


class LeadingRank(RankRuntime):
    """Rank 0: an `Executor`, entered with `with`; on leaving it sends the others home."""

    places: ClassVar[int] = 1
    lost: ClassVar[tuple[type[BaseException], ...]] = (RankLostError, RankFailedError, RankStoppedError)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.exchange.lost:
            with suppress(RankLostError):  # whoever is gone now needs no more telling
                self.exchange.gather(encode({"what": "end"}), _NEXT)
        self.exchange.leave()

    def run(self, ledger: Ledger) -> None:
        """Work on all cells, each with all ranks; a lost rank ends the run with its cell. See `Executor.run`."""
        while (order := ledger.order()) is not None:
            job, waiting = order
            try:
                record = work_on(job, ledger.listener, ledger.stop, waiting, self)
            except LockedError:
                ledger.hear(job, "taken")
                continue
            ledger.finished(job, record)
            if self.exchange.lost:
                if ledger.left:
                    ledger.listener.note(
                        f"{counted(ledger.left, 'cell is', 'cells are')} left; run the same command again to go on"
                    )
                return

    @contextmanager
    def playing(self, what: dict[str, Any], swarm: Swarm, done: int, rows: Callable[[], pa.Table]) -> Iterator[None]:
        """Have all ranks take the cell up, from the state that this one has; see `CellRuntime.playing`."""
        assert isinstance(swarm.backend, RankBackend)
        self.exchange.gather(encode({"what": "begin", "cell": identify(what), "done": done}), _NEXT)
        with self._cell():
            parts = _checkpoint_parts(swarm, rows()) if done else ()
            self.exchange.gather(encode({"what": "state", "sizes": [len(part) for part in parts]}), _START)
            self.exchange.gather(_READY, _START)
            self.exchange.limit = most_bytes(swarm.spec)
            for part in parts:
                self.exchange.broadcast(part, len(part), _START)
            yield
            swarm.backend.check_weights(what["cell"]["rounds"])


class FollowingRank(RankRuntime):
    """A rank above 0, which plays the cells that rank 0 begins.

    Args:
        exchange: the ranks.
        cells: of the suite.
    """

    def __init__(self, exchange: ProcessGroup, cells: Sequence[CellSpec]) -> None:
        super().__init__(exchange)
        self._cells, self._known = cells, dict[str, CellSpec]()
        self._asked = False

    def follow(self) -> None:
        """Play until rank 0 says that this is the end.

        Raises:
            RankLostError: a rank is lost.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)
        try:
            while (begun := self._begun()) is not None:
                # Rank 0 hears of it, and keeps what is to be known.
                with suppress(RankFailedError, RankStoppedError, KeyboardInterrupt, _UntoldError):
                    self._play(*begun)
        finally:
            self.exchange.leave()

    def _ask(self, number: int, frame: object) -> None:
        """All stop before the next round: this rank may be the only one that is told to."""
        self._asked = True

    def _begun(self) -> tuple[str, int] | None:
        """The cell that rank 0 begins, and how many rounds of it are done; None at the end."""
        told = _said(self.exchange.gather(_READY, _NEXT)[0])
        cell, done = told.get("cell"), told.get("done")
        if told.get("what") != "begin" or type(cell) is not str or type(done) is not int:
            return None
        return cell, done

    @torch_settings_kept()
    def _play(self, cell: str, done: int) -> None:
        """A cell from after round `done` on.

        Raises:
            _UntoldError: it failed here, which the others know.
        """
        try:
            with self._cell():
                spec = self._spec(cell)
                torch.set_num_threads(spec.threads)
                keep_freed_memory()
                swarm = build_swarm(spec, runtime=self)
                assert isinstance(swarm.backend, RankBackend)
                told = _said(self.exchange.gather(_READY, _START)[0])
                sizes = _sound_sizes(told.get("sizes"), swarm, done)
                self.exchange.gather(_READY, _START)
                self.exchange.limit = most_bytes(spec.swarm)
                _take_up(swarm, [self.exchange.broadcast(None, size, _START) for size in sizes])
                for number in range(done + 1, spec.rounds + 1):
                    if self._asked:
                        raise KeyboardInterrupt
                    swarm.round(number)
                swarm.backend.check_weights(spec.rounds)
        except RankLostError:
            raise
        except Exception as error:
            raise _UntoldError from error

    def _spec(self, cell: str) -> CellSpec:
        self._known = self._known or {identify(identity(spec)): spec for spec in self._cells}
        if cell not in self._known:
            raise SpecError(
                "its command line, files or versions differ from those of rank 0, so the cell is another one here; "
                "give every machine the same, --threads included"
            )
        return self._known[cell]


class _UntoldError(Exception):
    """A cell failed here: not to be told to the user, whom rank 0 tells."""


def _said(data: bytes | None) -> dict[str, Any]:
    """The fields of what rank 0 says; none where it says nothing sound."""
    try:
        return decode(data or b"")
    except MessageError:
        return {}


def _checkpoint_parts(swarm: Swarm, rows: pa.Table) -> tuple[bytes, bytes, bytes]:
    """What the other ranks need to go on from here: what a checkpoint holds, and the pools that defenses remember."""
    buffer = pa.BufferOutputStream()
    pq.write_table(rows.filter(pc.equal(rows["phase"], "train")), buffer, compression="zstd")
    state = json.dumps({"cohorts": swarm.population.state(), "payload": swarm.attack.describe()}).encode()
    return state, save(swarm.population.tensors()), buffer.getvalue().to_pybytes()


def _take_up(swarm: Swarm, parts: Sequence[bytes]) -> None:
    """Go on from where `_checkpoint_parts` was; from the start where there are no parts."""
    if parts:
        standing, tensors, rows = parts
        state = json.loads(standing)
        swarm.recall(state["payload"])
        swarm.population.restore(load(tensors), state["cohorts"])
        swarm.remember(table_rows(pq.read_table(pa.BufferReader(rows))))


def _sound_sizes(sizes: object, swarm: Swarm, done: int) -> list[int]:
    """The sizes of what rank 0 will send.

    Raises:
        RuntimeError: they cannot be those of a checkpoint of this swarm.
    """
    weights, pool = swarm.policy.weights().values(), swarm.spec.prompts * swarm.spec.group
    row = _ROW_BYTES + _TOKEN_BYTES * swarm.spec.sampling.max_new_tokens
    # In float32 the weights and Adam's two moments, each behind a name.
    most = [_STATE_BYTES, sum(12 * weight.numel() + 4096 for weight in weights), (done + 1) * pool * row]
    if sizes == [] and done == 0:
        return []
    if type(sizes) is not list or len(sizes) != 3 or not all(type(size) is int for size in sizes):
        raise RuntimeError("rank 0 does not say how large its checkpoint is")
    if done < 1 or not all(0 < size <= limit for size, limit in zip(sizes, most, strict=True)):
        raise RuntimeError(f"rank 0 has a checkpoint of {sum(sizes)} bytes, more than this swarm can have")
    return sizes
