"""`thiefbench zoo`: the built-in models."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

import typer

from thiefbench.console import err, escaped, out
from thiefbench.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="Train the built-in small models again.")


@app.callback()
def root() -> None:
    """Train the built-in small models again."""


@app.command()
def train(
    name: Annotated[str, typer.Argument(help="Name of a built-in model: `thiefbench list models`.")],
    directory: Annotated[Path | None, typer.Option("--out", help="Folder to save it in. Default: ./NAME.")] = None,
) -> None:
    """Train a built-in model from its recipe and compare the weights with those that ThiefBench ships."""
    from thiefbench.progress import bar
    from thiefbench.zoo.models import BUILT_IN, resolve
    from thiefbench.zoo.recipe import RECIPES
    from thiefbench.zoo.recipe import train as train_model

    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"there is no built-in model {name!r}; {hint}known: {', '.join(RECIPES)}")
    target = directory or Path(name)
    with bar(err, f"training {name}") as progress:
        train_model(RECIPES[name], target, lambda step, steps, loss: progress(step, steps))
    trained = (target / "model.safetensors").read_bytes()
    shipped = Path(resolve(name)) / "model.safetensors"
    if name not in BUILT_IN:
        comparison = "there are no shipped weights to compare with"
    elif shipped.read_bytes() == trained:
        comparison = "bit-equal to the shipped weights"
    else:
        comparison = "not bit-equal to the shipped weights (another platform, library version or thread count?)"
    out.print(f"saved {escaped(str(target))}: {comparison}")
