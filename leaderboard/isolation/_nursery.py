"""Guests are forks of a process that knows of no other guest.

The sandbox's worker (`thiefbench.tasks._sandbox_worker`) forks itself for every program and keeps a list of those that
run. A fork has all of its parent's memory: a guest that reads it, by the frames of its own stack or byte by byte, would
see how many guests there were and are, and as verification starts them in a fixed order, which cell it is in. So here
the worker hands each program over to a second process, the nursery, which keeps nothing:

    worker     has the list; receives programs, watches them, reports how they ended
    nursery    a fork of the worker from before the first program; for every program it forks a messenger
    messenger  receives the program, forks the guest, tells the worker its number and ends, so that the guest becomes
               the worker's child
    guest      has the nursery's memory

The nursery receives nothing and never learns a guest's number, so it is the same before every program. Of the
messengers' numbers, which it does learn, a few more are used up at random.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import NoReturn

from thiefbench.tasks import _sandbox_jail as jail
from thiefbench.tasks._sandbox_worker import JOB, _Job, _Worker

_NUMBER = struct.Struct("<q")
_READY = b"\0"
_OVER = 3
"""How a messenger ends that received nothing, as the worker has ended."""
_LONGEST = 30.0
"""Seconds until a nursery that does not answer counts as lost, and the worker ends."""
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER (prctl(2)): orphans among its descendants become its children."""
_PAUSE = 2e-4
"""Seconds between two looks at whether the messenger has ended."""


class Nursery(_Worker):
    """As `_Worker`, whose arguments it takes; programs are started by another process."""

    def __init__(
        self,
        control: socket.socket,
        own_memory: int,
        seal: Callable[[], None],
        roles: Mapping[str, Callable[..., None]],
    ) -> None:
        super().__init__(control, own_memory, seal, roles)
        jail._prctl(_SUBREAPER, 1)
        self._nursery, orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker = os.getpid()
        if not os.fork():
            try:
                self._serve_worker(orders, worker)
            finally:  # an exception must never return to the worker's loop
                os._exit(1)
        orders.close()
        self._nursery.settimeout(_LONGEST)

    def _take(self) -> bool:
        """Start the next program; False if the caller has closed the socket or the nursery has ended."""
        message, files, _, _ = socket.recv_fds(self._control, JOB.size, 8)
        if not message:
            return False
        leash, *others = files
        deadline = time.monotonic() + JOB.unpack(message)[0]
        socket.send_fds(self._nursery, [message], others)
        for file in others:
            os.close(file)
        try:
            number = self._nursery.recv(_NUMBER.size)
            if len(number) != _NUMBER.size or self._nursery.recv(1) != _READY:
                return False  # a fork failed, or the nursery has ended
        except TimeoutError:
            return False
        (process,) = _NUMBER.unpack(number)
        job = _Job(process, os.pidfd_open(process), socket.socket(fileno=leash), deadline)
        self._by_handle[job.handle] = self._by_leash[job.leash.fileno()] = job
        for file in (job.handle, job.leash.fileno()):
            self._poll.register(file, select.POLLIN)
        return True

    def _serve_worker(self, orders: socket.socket, worker: int) -> NoReturn:
        """The nursery: start programs until the worker ends."""
        jail.die_with_parent()
        self._control.close()
        self._nursery.close()
        waiting = select.poll()
        waiting.register(orders, select.POLLIN)
        while waiting.poll() and self._start_next(orders, worker):
            orders.send(_READY)
        os._exit(0)

    def _start_next(self, orders: socket.socket, worker: int) -> bool:
        """Let a messenger take the next program; it alone receives something. False if the worker has ended."""
        _use_up_numbers()
        if not os.fork():
            messenger = os.getpid()
            message, files, _, _ = socket.recv_fds(orders, JOB.size, 8)
            if not message:
                os._exit(_OVER)
            if guest := os.fork():
                orders.send(_NUMBER.pack(guest))
                os._exit(0)
            while os.getppid() == messenger:
                time.sleep(_PAUSE)
            if os.getppid() != worker:  # it has ended meanwhile
                os._exit(1)
            del messenger
            seconds, memory = JOB.unpack(message)
            self._become(files, worker, seconds, self._own_memory + memory)
        return os.waitstatus_to_exitcode(os.wait()[1]) != _OVER


def _use_up_numbers() -> None:
    for _ in range(os.urandom(1)[0] % 4):
        if not os.fork():
            os._exit(0)
        os.wait()
