"""The command line in processes of their own that start at once: forked from one that has imported everything.

Each is as real as any other, with its own group and memory, and can be killed. Their workers are forked as well,
unless told otherwise, every cell is checkpointed after every round, and none is played before.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FORKS = """
import json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
import thiefbench.suite.execution.checkpoints as execution, thiefbench.suite.execution.workers as workers
import thiefbench.suite.execution.runner as runner
from thiefbench.cli import app, main

with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
    app(sys.argv[1:], standalone_mode=False)  # much is imported late, and a model is loaded faster a second time
execution.CHECKPOINT_SECONDS = -1.0
runner.play_first_rounds = lambda jobs, note: None  # tests count the rounds of cells, and let single ones wait
for line in sys.stdin:
    what = json.loads(line)
    if isinstance(what, int):
        _, status = os.waitpid(what, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
        continue
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    os.setsid()
    said = os.open(what["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(said, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(what["environment"])
    os.chdir(what["folder"])
    workers.CONTEXT = get_context(what["method"])
    sys.argv = ["thiefbench", *what["words"]]
    try:
        main()
    except SystemExit as ended:
        sys.stdout.flush()
        os._exit(ended.code or 0)
    finally:
        sys.stdout.flush()
    os._exit(0)
"""


@dataclass
class Child:
    """A running command.

    Attributes:
        pid: of its process, which leads a group of its own.
        log: what it prints.
    """

    pid: int
    log: Path
    nursery: Nursery

    def kill(self, group: bool = False) -> int:
        """Kill it (with its workers, if `group`) and return how it ended, as `wait` does."""
        (os.killpg if group else os.kill)(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """Its exit code, or minus the signal that ended it; comes back once it has ended."""
        return self.nursery.ask(self.pid)

    @property
    def said(self) -> str:
        """What it has printed so far."""
        return self.log.read_text()


class Nursery:
    """A process that forks commands.

    Args:
        folder: for what they print.
        words: a command that it runs itself before, and that imports what others need.
    """

    def __init__(self, folder: Path, *words: object) -> None:
        self.folder, self.born = folder, 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", FORKS, *map(str, words)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip

    def ask(self, what: object) -> int:
        """Say something to the process and return the number it answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def start(self, *words: object, method: Literal["fork", "spawn"] = "fork", **environment: object) -> Child:
        """Start `thiefbench` where this process is, with these words, and these variables in its environment.

        Its workers are started by `method`: "spawn" is the usual one, and each then takes seconds to import everything.
        """
        self.born += 1
        log = self.folder / f"said-{self.born}"
        told = {
            "words": [str(word) for word in words],
            "said": str(log),
            "environment": {name: str(value) for name, value in environment.items()},
            "folder": str(Path.cwd()),
            "method": method,
        }
        return Child(self.ask(told), log, self)

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked after does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(what: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait for something; however busy the machine, it comes within the usual time.

    Raises:
        AssertionError: it does not come.
    """
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "what is waited for comes"
        time.sleep(0.01)
