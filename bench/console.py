"""Shared by all commands: two consoles, exit codes, options for devices and numerics, and a clean stop at Ctrl-C.

Commands of other packages (entry points of the group `thiefbench.commands`) use it too; it never imports a command.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from thiefbench import trust
from thiefbench.errors import UsageError
from thiefbench.limits import MOST_SEEDS, MOST_THREADS
from thiefbench.tasks.text import one_line, printable
from thiefbench.wording import one_of

if TYPE_CHECKING:
    from thiefbench.registry import Kind


class WrappingConsole(Console):
    """Wraps text between words on a terminal. Elsewhere a line of text stays one line, which a program can search."""

    def print(self, *objects: Any, **settings: Any) -> None:
        """As rich's; `soft_wrap=True` keeps what is to be copied, such as a path or a command, in one line."""
        super().print(*objects, **{"soft_wrap": not self.is_terminal} | settings)

    def on_broken_pipe(self) -> None:
        """End as the shell expects it where the reader of a pipe has gone, as in `thiefbench list | head -1`."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(READER_GONE) from None


out = WrappingConsole(highlight=False, emoji=False)
err = WrappingConsole(stderr=True, highlight=False, emoji=False)

DONE, FAILED, BAD_USE, INTERRUPTED, READER_GONE = 0, 1, 2, 130, 141

CHOICE, OUTCOME, HARDWARE = "What to run", "Results", "Hardware and numerics"
"""Panels of `--help`."""

SUITE_FILES = frozenset({".yaml", ".yml"})
"""Suffixes of suite files; anything else is the name of an installed suite."""

Dtype = Literal["float32", "bfloat16"]


Specs = list[str] | str | None


@dataclass(frozen=True)
class Other:
    """What a command does not take, and the beginning of the command that does."""

    kind: Kind
    command: str


def _check_typed(kind: Kind, installed: bool, other: Other | None = None) -> Callable[[Specs], Specs]:
    """A callback for spec strings that the user typed: their names are checked, and their classes may be loaded.

    It runs before the command, so that mistyped names are reported before torch is loaded. What is of the `other` kind
    gets the command for that.
    """

    def check(specs: Specs) -> Specs:
        if specs:
            from thiefbench import registry

            for spec in [specs] if isinstance(specs, str) else specs:
                if other and registry.reads_like(other.kind, kind, spec):
                    raise UsageError(
                        f"{spec} is {registry.CALLED[other.kind]}; write {other.command} {shlex.quote(spec)}"
                    )
                if installed:
                    registry.check_names(kind, spec)
                registry.allow(spec)
        return specs

    return check


def _check_suites(names: list[str] | str) -> list[str] | str:
    """The declared names of suites, checked before anything heavy is loaded; the command reads files."""
    return _check_suite(names) if isinstance(names, str) else [_check_suite(name) for name in names]


def _check_suite(name: str) -> str:
    from thiefbench import registry

    if Path(name).suffix in SUITE_FILES:
        return name
    try:
        return registry.entry("suite", registry.suite_titled(name)).name
    except registry.SpecStringError as unknown:
        if not Path(name).is_dir():
            raise
        endings = " or ".join(sorted(SUITE_FILES))
        raise registry.SpecStringError(
            f"{name} is a folder; write the name of a suite, or of a file that ends in {endings}"
        ) from unknown


def _complete(kind: Kind | Literal["model"]) -> Callable[[str], list[str]]:
    """Shell completion of the names of a kind, also for a defense after a +. Nothing heavy is loaded."""

    def complete(incomplete: str) -> list[str]:
        from thiefbench import registry
        from thiefbench.zoo.models import BUILT_IN

        before, plus, begun = incomplete.rpartition("+") if kind == "defense" else ("", "", incomplete)
        names = BUILT_IN if kind == "model" else registry.names(kind)
        return [before + plus + name for name in names if name.startswith(begun)]

    return complete


def _trusting(trusted: bool) -> bool:
    if trusted:
        trust.trust_plugins()
    return trusted


def typed_spec(kind: Kind, *, installed: bool = True, **settings: Any) -> Any:
    """An option for spec strings, whose code may be loaded because the user typed it.

    Args:
        kind: what they name.
        installed: whether the names must exist here; those of a store's rows need not.
        settings: of `typer.Option`.
    """
    check, complete = _check_typed(kind, installed), _complete(kind)
    return typer.Option(callback=check, autocompletion=complete, metavar="SPEC", **settings)


def typed_spec_argument(kind: Kind, *, other: Other | None = None, **settings: Any) -> Any:
    """As `typed_spec`, for an argument; for what is of an `other` kind, an error names the command that takes it."""
    return typer.Argument(callback=_check_typed(kind, True, other), autocompletion=_complete(kind), **settings)


def suite_option(**settings: Any) -> Any:
    """An option that names a suite."""
    return typer.Option(callback=_check_suites, autocompletion=_complete("suite"), metavar="SUITE", **settings)


def suite_argument(**settings: Any) -> Any:
    """An argument that names a suite or a YAML file of one."""
    return typer.Argument(callback=_check_suites, autocompletion=_complete("suite"), **settings)


def model_option(**settings: Any) -> Any:
    """An option that names a model."""
    return typer.Option(autocompletion=_complete("model"), metavar="MODEL", **settings)


TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-plugins",
        callback=_trusting,
        envvar="THIEFBENCH_TRUST_PLUGINS",
        help="Also load attacks, defenses and tasks that a suite file or a store names as mine.py:Mine or "
        "package.module:Mine. Their code runs in this process: use it only if you wrote them or trust their author.",
    ),
]

StoreOption = Annotated[
    Path | None,
    typer.Option(
        help="Directory that keeps the results. Default: runs/NAME, the suite's name without its version.",
        metavar="DIR",
        rich_help_panel=OUTCOME,
    ),
]
ModelOption = Annotated[
    str | None,
    model_option(
        help="Model to use: a built-in one, a local directory or a name on the Hugging Face hub.",
        rich_help_panel=CHOICE,
    ),
]
SeedsOption = Annotated[
    int | None,
    typer.Option(
        min=1, max=MOST_SEEDS, help="Number of seeds: 3 stands for the seeds 0, 1 and 2.", metavar="N",
        rich_help_panel=CHOICE,
    ),
]  # fmt: skip
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.", metavar="DEVICE", rich_help_panel=HARDWARE)]
DtypeOption = Annotated[str, typer.Option(help="float32 or bfloat16.", metavar="DTYPE", rich_help_panel=HARDWARE)]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_THREADS,
        help="CPU threads of each process. Results depend on it. Default: an equal share of the cores, at most 4; "
        "OMP_NUM_THREADS has no effect.",
        metavar="N",
        rich_help_panel=HARDWARE,
    ),
]
WorkersOption = Annotated[
    int,
    typer.Option(
        min=1, help="Processes that run cells at the same time and share the cores or the GPU.", metavar="N",
        rich_help_panel=HARDWARE,
    ),
]  # fmt: skip


def escaped(text: str) -> str:
    """A text that rich prints on one line: without markup, with all characters visible, and with spaces for line ends.

    Whoever could begin a line could write one of the benchmark's own.
    """
    return escape(printable(text).replace("\n", " "))


def stranger_s(text: str) -> str:
    """As `escaped`, with single spaces: padding could move a part of it to the beginning of a terminal's line."""
    return escape(one_line(text))


def print_hanging(console: Console, label: str, text: str) -> None:
    """Print a text behind a label; on a terminal, what does not fit into the line goes on below the text's beginning.

    Args:
        console: to print on.
        label, text: with markup.
    """
    if not console.is_terminal:
        console.print(f"{label}{text}")
        return
    from rich.table import Table

    table = Table.grid()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(label, text)
    console.print(table)


JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document and nothing else; messages go to standard error.")
]


def print_json(document: dict[str, Any]) -> None:
    """Write a document, and nothing else, to standard output."""
    out.file.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


def fail(message: str) -> None:
    """Print an error and exit as for bad usage."""
    err.print(f"[bold red]error:[/bold red] {stranger_s(message)}")
    sys.exit(BAD_USE)


def typed() -> str:
    """The command as it was typed; where the shell would not find this program by its name alone, with its path."""
    elsewhere = Path(sys.argv[0]).name == "thiefbench" and shutil.which("thiefbench") is None
    program = sys.argv[0] if elsewhere else "thiefbench"
    return " ".join(shlex.quote(word) for word in (program, *sys.argv[1:]))


@contextmanager
def stoppable(kept: bool = True) -> Iterator[None]:
    """Within this context, Ctrl-C, SIGTERM and the end of the terminal (SIGHUP, unless it is ignored, as under nohup)
    end the command without a traceback and print the command to continue.

    Args:
        kept: whether finished work is kept; where it is not, the message says what keeps it.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    numbers = [signal.SIGTERM, *([signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else [])]
    before = {number: signal.signal(number, interrupt) for number in numbers} if in_main else {}
    try:
        yield
    except KeyboardInterrupt:
        keeps = "all finished work is kept. To continue:" if kept else "nothing is kept without --store DIR. Again:"
        err.print(f"Stopped; {keeps} {escaped(typed())}", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    except OSError as error:
        if kept or not (no_room := without_room(error, kept=False)):
            raise
        fail(no_room)
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def waiting_for(cell: Path) -> Callable[[], None]:
    """What says, when it is called first, that another process works on a cell (`thiefbench.locks.locked`)."""
    said = [f"another process works on {cell}; waiting until it is done ..."]

    def say() -> None:
        if said:
            err.print(escaped(said.pop()), soft_wrap=True)

    return say


def without_room(error: OSError, kept: bool = True) -> str:
    """The sentence about a full disk or a file that grew too large; empty where the error is another.

    Args:
        error: of the system.
        kept: whether finished work is kept.
    """
    keeps = "what was finished is kept" if kept else "nothing is kept without --store DIR"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full; {keeps}, so make room and run the same command again"
    if error.errno == errno.EFBIG:
        return (
            f"a file would be larger than may be written here; {keeps}, so raise the limit (see ulimit -f) and run the "
            "same command again"
        )
    return ""


def numerics(device: str, dtype: str, threads: int | None, workers: int = 1) -> tuple[str, Dtype, int]:
    """The options that are part of a cell's identity, checked: device, dtype and threads of each process.

    Args:
        device: the value of --device.
        dtype: the value of --dtype.
        threads: the value of --threads.
        workers: processes that share the cores of this machine.

    Raises:
        UsageError: this machine has no such device, or there is no such dtype.
    """
    share = max(1, len(os.sched_getaffinity(0)) // workers)
    return check_device(device), check_dtype(dtype), threads or min(4, share)


def check_device(device: str) -> str:
    """The device, which this machine has; loads torch.

    Raises:
        UsageError: it has none of that name.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = ["cpu", *(["cuda"] if count else []), *(f"cuda:{number}" for number in range(count))]
    if device not in known:
        raise UsageError(f"this machine has no device {device}; write --device {one_of(known)}")
    return device


def check_dtype(dtype: str) -> Dtype:
    """The dtype.

    Raises:
        UsageError: there is none of that name.
    """
    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"--dtype must be float32 or bfloat16, not {dtype!r}")
    return "float32" if dtype == "float32" else "bfloat16"
