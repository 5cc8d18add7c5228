"""A live swarm on this machine: its processes, their progress, and the record of what they learned.

This module does not import GenRL; the processes of the peers do.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from thiefbench import provenance, registry
from thiefbench.engine.round_record import CompletionRow
from thiefbench.errors import UserError
from thiefbench.integrations.genrl.arrivals import check_defense
from thiefbench.integrations.genrl.attack import drawn_attack
from thiefbench.integrations.genrl.last_run import remember
from thiefbench.integrations.genrl.settings import LiveSwarm
from thiefbench.suite.analysis.scoring import cell_curves, cell_scores
from thiefbench.suite.execution.cell_identity import identified, identity
from thiefbench.suite.store.records import CellDir, Record, Store, identify, rows_table

START_SECONDS = 600.0
"""Within which a peer must join and load its model."""
STOP_SECONDS = 15.0
"""Within which a peer that is asked to stop must end."""
_LOOK_SECONDS = 0.2

Note = Callable[[str], None]


class LiveSwarmError(UserError):
    """A live swarm cannot start or go on. One sentence for the user."""


@dataclass(eq=False)
class Peer:
    """A peer's process, and what it has reported.

    Attributes:
        number: the node.
        process: its process, which leads a process group with all of its own.
        reports: the pipe that it reports to.
        name: its peer id, once it has joined.
        addresses: under which others can join it.
        start, rounds: its reports of the start and of every round.
        sent: by round and name of an item, the indices of the completions that carry a payload.
        problem: why it left the game; empty if it did not.
        ended: it has said that its game is over.
        lost: its process ended before its game.
    """

    number: int
    process: subprocess.Popen[bytes]
    reports: int
    name: str = ""
    addresses: list[str] = field(default_factory=list)
    rounds: dict[int, dict[str, Any]] = field(default_factory=dict)
    start: dict[str, Any] = field(default_factory=dict)
    sent: dict[int, dict[str, list[int]]] = field(default_factory=dict)
    problem: str = ""
    ended: bool = False
    lost: bool = False
    _unread: bytes = b""

    @property
    def running(self) -> bool:
        """Whether it takes part in further rounds."""
        return not (self.ended or self.lost or self.problem)

    def tell(self, **note: Any) -> None:
        """Write a note to its standard input, if it still plays."""
        assert self.process.stdin is not None
        if not self.running:
            return
        with suppress(OSError):  # it has just ended
            self.process.stdin.write(json.dumps(note).encode() + b"\n")
            self.process.stdin.flush()

    def read(self) -> Iterator[dict[str, Any]]:
        """Its new reports; call this only if there is something to read."""
        data = os.read(self.reports, 1 << 20)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            yield json.loads(line)

    @property
    def exited(self) -> bool:
        """Whether its process has ended. It is not reaped, so that its process group keeps its number."""
        if self.process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def kill(self) -> None:
        """End its process and everything that it has started, such as the daemon of its DHT."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()


class _Peers:
    """The processes of a live swarm.

    Args:
        swarm: the settings.
        folder: where their logs are written.
        note: receives lines for the user.
    """

    def __init__(self, swarm: LiveSwarm, folder: Path, note: Note) -> None:
        self._swarm, self._folder, self._note = swarm, folder, note
        self._selector = selectors.DefaultSelector()
        self.peers: list[Peer] = []

    def start(self) -> None:
        """Start every peer; the first one's DHT is the one that the others join.

        All processes start at once, since most of a start is imports, and the others wait for the first one's address.

        Raises:
            LiveSwarmError: one of them does not start.
        """
        first, *others = [self._started(number) for number in range(self._swarm.nodes)]
        self._let_join(first, None)
        self._until(lambda: bool(first.addresses), "joined")
        for peer in others:
            self._let_join(peer, first.addresses)
        self._until(lambda: all(peer.start for peer in self.peers), "loaded its model")

    def play(self) -> None:
        """Wait until the games of all honest peers have ended; peers that are lost are no longer waited for."""
        while any(peer.running for peer in self.peers[: self._swarm.honest]):
            self.look()

    def stop(self) -> None:
        """End all processes; those that still play may first leave the swarm."""
        try:
            playing = [peer for peer in self.peers if peer.start and not peer.exited]
            for peer in playing:
                peer.tell(stop=True)
            until = time.monotonic() + STOP_SECONDS
            while time.monotonic() < until and not all(peer.exited for peer in playing):
                self._read(_LOOK_SECONDS)
        finally:
            for peer in self.peers:
                peer.kill()
                os.close(peer.reports)
            self._selector.close()

    def look(self) -> None:
        """Read new reports, and notice peers that were lost."""
        self._read(_LOOK_SECONDS)
        lost = [peer for peer in self.peers if not peer.ended and not peer.lost and peer.exited]
        if not lost:
            return
        self._read(0)  # their last reports
        for peer in lost:
            peer.lost = not peer.ended
            peer.kill()
            if peer.lost and not peer.problem:
                self._note(f"peer {peer.number} was lost; {self._playing} go on without it")
        for peer in self.peers:
            peer.tell(alive=self._playing)

    @property
    def _playing(self) -> int:
        return sum(peer.running for peer in self.peers)

    def _let_join(self, peer: Peer, initial_peers: list[str] | None) -> None:
        peer.tell(swarm=self._swarm.as_json(), initial_peers=initial_peers)

    def _started(self, number: int) -> Peer:
        reading, writing = os.pipe()
        with (self._folder / f"peer-{number}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "thiefbench.integrations.genrl.peer", str(number), str(writing)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=[writing], start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": str(self._swarm.threads), "TOKENIZERS_PARALLELISM": "false"},
            )  # fmt: skip
        os.close(writing)
        peer = Peer(number, process, reading)
        self.peers.append(peer)
        self._selector.register(reading, selectors.EVENT_READ, peer)
        return peer

    def _until(self, done: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + START_SECONDS
        while not done():
            self._read(_LOOK_SECONDS)
            for peer in self.peers:
                log = self._folder / f"peer-{peer.number}.log"
                if peer.problem:
                    raise LiveSwarmError(f"peer {peer.number} could not start: {peer.problem}")
                if peer.exited:
                    raise LiveSwarmError(f"peer {peer.number} ended before it {what}; its log is {log}")
            if time.monotonic() > until:
                raise LiveSwarmError(
                    f"after {START_SECONDS:.0f} s, not every peer had {what}; see the logs beside {log}"
                )

    def _read(self, seconds: float) -> None:
        for ready, _ in self._selector.select(seconds):
            peer: Peer = ready.data
            reports = list(peer.read())
            for report in reports:
                self._take(peer, report)
            if not reports and peer.exited:
                self._selector.unregister(peer.reports)

    def _take(self, peer: Peer, report: dict[str, Any]) -> None:
        kind = report["kind"]
        if kind == "joined":
            peer.name, peer.addresses = report["peer"], report["addresses"]
        elif kind == "start":
            peer.start = report
        elif kind == "round":
            peer.rounds[report["round"]] = report
            self._note(progress(self._swarm, self.peers, peer, report))
        elif kind == "sent":
            peer.sent[report["round"]] = report["payload"]
        elif kind == "problem":
            peer.problem = report["problem"]
            self._note(f"peer {peer.number} ends: {peer.problem}")
            for other in self.peers:
                other.tell(alive=self._playing)
        elif kind == "end":
            peer.ended = True


def progress(swarm: LiveSwarm, peers: list[Peer], peer: Peer, report: Mapping[str, Any]) -> str:
    """A line about a peer's round."""
    parts = [f"round {report['round']:>3}/{swarm.rounds}  peer {peer.number}", f"{report['seconds']:5.1f} s"]
    if peer.number >= swarm.honest:
        sent = peer.sent.get(report["round"], {})
        parts.append(f"sent {sum(map(len, sent.values()))} completions with the payload")
    else:
        train = [row for row in report["rows"] if row["phase"] == "train"]
        foreign = {other.name for other in peers if other.number >= swarm.honest}
        mine = [row["reward"] for row in train if row["sender"] == peer.name]
        taken = [row for row in train if row["sender"] != peer.name and row["advantage"]]
        poisoned = sum(row["sender"] in foreign for row in taken)
        rejected = sum(row["action"] != "accept" or bool(row["refused"]) for row in train)
        parts.append(f"reward {sum(mine) / max(1, len(mine)):.2f}")
        parts.append(f"learned from {len(taken)} completions of others, {poisoned} of malicious peers")
        parts.append(f"rejected {rejected} of {len(train)}")
        judged = [row["outcome"] for row in report["rows"] if row["phase"] != "train" and row["outcome"] is not None]
        if judged:
            parts.append(f"held-out ASR {sum(judged) / len(judged):.2f}")
    return "  ".join([*parts, *([report["note"]] if "note" in report else [])])


def play(swarm: LiveSwarm, store: Path, note: Note = lambda line: None) -> Record:
    """Play a live swarm to its end, or until Ctrl-C, and store its record and completions.

    Args:
        swarm: the settings.
        store: a folder as of `thiefbench run`; the record is a cell of it.
        note: receives lines about the progress.

    Returns:
        The record of the rounds that every surviving honest peer has finished. Its identity names GenRL, so it is never
        mistaken for a cell of `thiefbench run`.

    Raises:
        LiveSwarmError: a peer does not start, or no round was finished.
        SpecError, SpecStringError: the settings contradict each other, a spec string names nothing, or attack or
            defense need what GenRL does not carry.
    """
    if not all(map(_version, ("gensyn-genrl", "hivemind"))):
        raise LiveSwarmError("GenRL is not installed; write pip install '.[genrl]' in a checkout")
    drawn_attack(swarm.attack, registry.make("task", swarm.task), swarm.seed)
    check_defense(registry.make("defense", swarm.defense))
    cell = swarm.cell()
    what = identity(cell) | {"genrl": {"settings": json.loads(swarm.as_json()), **_versions()}}
    directory = Store(store).cell(identify(what))
    directory.path.mkdir(parents=True, exist_ok=True)
    started = provenance.now()
    peers = _Peers(swarm, directory.path, note)
    interrupted = False
    with directory.locked(lambda: note("another process runs this swarm; waiting")), _terminated_as_interrupted():
        try:
            peers.start()
            payload = peers.peers[0].start["payload"]
            note(f"{swarm.nodes} peers have joined, {swarm.nodes - swarm.honest} of them malicious; payload: {payload}")
            peers.play()
        except KeyboardInterrupt:
            interrupted = True
            note("stopping: the rounds so far are stored")
        finally:
            peers.stop()
    record = _record(swarm, peers.peers, what, directory, started, interrupted)
    note(f"record and completions: {directory.path}")
    if remark := remember(Store(store), swarm, record.cell_id):
        note(remark)
    note(f"to see it: thiefbench report {store}")
    return record


def _record(
    swarm: LiveSwarm, peers: list[Peer], what: dict[str, Any], directory: CellDir, started: str, interrupted: bool
) -> Record:
    honest = [peer for peer in peers if peer.number < swarm.honest]
    staying = [peer for peer in honest if not peer.lost and not peer.problem] or honest
    done = min(max(peer.rounds, default=0) for peer in staying)
    problems = {f"peer {peer.number}": peer.problem or "lost" for peer in peers if peer.problem or peer.lost}
    if not done:
        reasons = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        raise LiveSwarmError(f"no round was finished{f' ({reasons})' if reasons else ''}; logs are in {directory.path}")
    rows = list(_rows(swarm, peers, done))
    table = rows_table(rows)
    lines = {peer.number: [report["seconds"] for report in peer.rounds.values()] for peer in honest}
    record = Record(
        **identified(what),
        status="ok",
        scores=cell_scores(table),
        curves=cell_curves(table),
        payload=next(peer.start["payload"] for peer in peers if peer.start),
        seconds={
            phase: sum(report["phases"][phase] for report in staying[0].rounds.values())
            for phase in ("gather", "play", "update")
        },
        provenance=provenance.provenance("cpu", swarm.threads)
        | _versions()
        | {
            "started": started,
            "finished": provenance.now(),
            "ended": f"after round {done} of {swarm.rounds}" if interrupted or done < swarm.rounds else "in one run",
            "peers": {str(peer.number): peer.name for peer in peers},
            "lost": problems,
            "seconds_per_round": {str(number): sum(each) / len(each) for number, each in lines.items() if each},
        },
        completions_sha256=directory.write_rows(table),
    )
    directory.write(record)
    return record


def _rows(swarm: LiveSwarm, peers: list[Peer], done: int) -> Iterator[CompletionRow]:
    """What the honest peers reported of the first rounds, with senders and labels, which only this process knows."""
    sender_of = {peer.name: peer for peer in peers}
    for peer in peers:
        for report in (peer.start, *peer.rounds.values()):
            for data in report.get("rows", ()):
                batch = data.pop("batch")
                row = CompletionRow(**data | {"ids": tuple(data["ids"])})
                if row.round > done:
                    continue
                sender = sender_of.get(row.sender)
                if row.phase == "train" and sender is not None:
                    labelled = row.place in sender.sent.get(row.round, {}).get(batch, ())
                    row = replace(row, node=sender.number, malicious=sender.number >= swarm.honest, payload=labelled)
                yield row


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends a swarm as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _versions() -> dict[str, str]:
    return {name: _version(name) for name in ("gensyn-genrl", "hivemind")}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
