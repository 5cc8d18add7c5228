"""The command line: `thiefbench run | matrix | list | audit | report | compare | replay | export | merge | zoo | ...`.

Each module holds the commands of one group. Nothing heavy is imported before a command needs it, so `--help` and `list`
answer at once.
"""

from __future__ import annotations

import errno
import inspect
import os
import warnings
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from thiefbench import __version__, trust
from thiefbench.cli import audit, matrix, pools, run, show, zoo
from thiefbench.console import INTERRUPTED, err, escaped, fail, out, typed, without_room
from thiefbench.errors import UsageError, UserError
from thiefbench.provenance import check_capability
from thiefbench.regular_files import NotRegularError
from thiefbench.tasks.text import printable
from thiefbench.torch_settings import sleep_when_waiting


class Commands(TyperGroup):
    """The commands, with an error for a command that is written without its group, and a sentence after Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C ends one that keeps nothing with a sentence, too (`stoppable` is for the others)."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            err.print(f"Stopped. To run it again: {escaped(typed())}", soft_wrap=True)
            raise typer.Exit(INTERRUPTED) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names; raises UsageError for one of a group."""
        within = [group for group, its in self.commands.items() if args[0] in getattr(its, "commands", ())]
        if within and args[0] not in self.commands and not ctx.resilient_parsing:
            written = " or ".join(f"thiefbench {group} {args[0]}" for group in within)
            raise UsageError(f"there is no command thiefbench {args[0]}; write {written}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich",
    help="Measure how well a defense protects a decentralised GRPO swarm from poisoned completions.",
)  # fmt: skip
for group in (run, matrix, show, audit, pools):
    app.add_typer(group.app)
app.add_typer(zoo.app, name="zoo")
for command in entry_points(group="thiefbench.commands"):  # those of the packages above
    app.add_typer(command.load(), name=command.name)


def _flow(commands: typer.Typer) -> None:
    """Let the help of commands be wrapped as wide as the window: typer keeps the line breaks of later paragraphs."""
    for each in commands.registered_commands:
        paragraphs = (inspect.getdoc(each.callback) or "").split("\n\n")
        each.help = each.help or "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _flow(group.typer_instance)


_flow(app)


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False
) -> None:
    """Print the version if asked. A command only loads declared plugins and those that were typed."""
    ctx.with_resource(trust.declared_only())
    check_capability()
    sleep_when_waiting()
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # they would garble our own progress
    if version:
        out.print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 2."""
    _show_warnings_printably()
    try:
        app()
    except UserError as error:
        fail(str(error))
    except OSError as error:
        if no_room := without_room(error):
            fail(no_room)
        if isinstance(error, NotRegularError):
            fail(str(error))
        if error.errno in _UNUSABLE:
            fail(f"{error.filename or 'a file'} cannot be read or written: {error.strerror}")
        raise


_UNUSABLE = {
    errno.EACCES, errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT,
    errno.ENOTDIR, errno.ENXIO, errno.EPERM, errno.EROFS,
}  # fmt: skip
"""What the system says of a path that the user gave and that cannot be what it was given for."""


def _show_warnings_printably() -> None:
    """Python shows the line that a warning is about, and the line may be a stranger's."""
    shown = warnings.formatwarning

    def formatted(*warning: Any, **more: Any) -> str:
        return printable(shown(*warning, **more))

    warnings.formatwarning = formatted
