"""What all commands share: two consoles, exit codes, options of devices and numbers, and a clean stop at Ctrl-C.

Commands of other packages (entry points of the group `thiefbench.commands`) use it too; it never imports a command.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from thiefbench import trust
from thiefbench.errors import UsageError
from thiefbench.limits import MOST_SEEDS, MOST_THREADS
from thiefbench.tasks.text import printable

out = Console(highlight=False, soft_wrap=True, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

DONE, FAILED, BAD_USE, INTERRUPTED = 0, 1, 2, 130

HARDWARE = "Hardware and numbers"

Dtype = Literal["float32", "bfloat16"]


def _typed(specs: list[str] | str | None) -> list[str] | str | None:
    """Spec strings that the user typed, whose classes may be loaded."""
    if specs:
        from thiefbench import registry

        for spec in [specs] if isinstance(specs, str) else specs:
            registry.allow(spec)
    return specs


def _trusting(trusted: bool) -> bool:
    if trusted:
        trust.trust_plugins()
    return trusted


def typed_spec(**settings: Any) -> Any:
    """An option for spec strings of attacks, defenses or tasks, whose code is loaded because the user named it."""
    return typer.Option(callback=_typed, **settings)


def typed_spec_argument(**settings: Any) -> Any:
    """As `typed_spec`, for an argument."""
    return typer.Argument(callback=_typed, **settings)


TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-plugins",
        callback=_trusting,
        envvar="THIEFBENCH_TRUST_PLUGINS",
        help="Also load attacks, defenses and tasks that a suite file or a store names as mine.py:Mine or "
        "package.module:Mine. Their code runs in this process: only if you wrote it or trust whoever did.",
    ),
]

StoreOption = Annotated[Path | None, typer.Option(help="Directory that keeps the results. Default: runs/SUITE.")]
ModelOption = Annotated[
    str | None, typer.Option(help="Model to use: a built-in one, a local directory or a name on the Hugging Face hub.")
]
SeedsOption = Annotated[
    int | None, typer.Option(min=1, max=MOST_SEEDS, help="Number of seeds: 3 stands for the seeds 0, 1 and 2.")
]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.", rich_help_panel=HARDWARE)]
DtypeOption = Annotated[str, typer.Option(help="float32 or bfloat16.", rich_help_panel=HARDWARE)]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_THREADS,
        help="CPU threads of each process. Results depend on it. Default: an equal share of the cores, at most 4.",
        rich_help_panel=HARDWARE,
    ),
]
WorkersOption = Annotated[
    int,
    typer.Option(
        min=1, help="Processes that run cells at the same time and share the cores or the GPU.",
        rich_help_panel=HARDWARE,
    ),
]  # fmt: skip


def escaped(text: str) -> str:
    """A text that rich prints as it is: no markup in it counts, and no character of it reaches the terminal unseen."""
    return escape(printable(text))


JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document and nothing else; messages go to standard error.")
]


def print_json(document: dict[str, Any]) -> None:
    """Write a document to standard output, as the only thing there."""
    out.file.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


def fail(message: str) -> None:
    """Print an error and exit as for bad usage."""
    err.print(f"[bold red]error:[/bold red] {escaped(message)}")
    sys.exit(BAD_USE)


@contextmanager
def stoppable() -> Iterator[None]:
    """Let Ctrl-C in the wrapped block end the command without a traceback, with the line to type to continue."""
    try:
        yield
    except KeyboardInterrupt:
        command = f"thiefbench {' '.join(shlex.quote(word) for word in sys.argv[1:])}"
        err.print(f"Stopped; all finished work is kept. To continue: {escaped(command)}")
        raise typer.Exit(INTERRUPTED) from None


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

    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        known = "--device cpu or cuda" if torch.cuda.is_available() else "--device cpu"
        raise UsageError(f"this machine has no device {device}; write {known}")
    return device


def check_dtype(dtype: str) -> Dtype:
    """The dtype.

    Raises:
        UsageError: there is none of that name.
    """
    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"--dtype must be float32 or bfloat16, not {dtype!r}")
    return "float32" if dtype == "float32" else "bfloat16"
