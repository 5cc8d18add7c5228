"""A store's description of its last run, checked before it is used, because a store may come from a stranger.

Ids of cells are used as names of folders, names of defenses appear in tables, and the suite says what is replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from thiefbench.engine.spec import Role, SpecError
from thiefbench.error_messages import problem
from thiefbench.errors import UserError
from thiefbench.limits import MOST_CELLS
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.suite_yaml import SuiteError, make_suite
from thiefbench.tasks.text import one_line

CELL_ID: Final = r"^[0-9a-f]{16}$"
"""What `records.identify` makes."""

_LONGEST = 10_000
Text = Annotated[StrictStr, Field(max_length=_LONGEST)]
Spec = Annotated[StrictStr, Field(min_length=1, max_length=_LONGEST)]
"""Not `Text` with another `Field` around it: pydantic 2.10 and 2.11.0 gives such a field the default of other ones."""


class RunError(UserError):
    """A store's description of its last run cannot be used. One sentence for the user."""


class RunCell(BaseModel):
    """One cell that a run asked for; its id names a folder of the store."""

    model_config = ConfigDict(frozen=True)

    cell_id: Annotated[StrictStr, Field(pattern=CELL_ID)]
    part: Text = ""
    role: Role
    attack: Spec
    defense: Spec
    seed: Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
    label: Text = ""


class Run(BaseModel):
    """The content of run.json, see `Store.write_run`."""

    model_config = ConfigDict(frozen=True)

    title: Text
    fingerprint: Text
    suite: dict[StrictStr, Any]
    cells: Annotated[list[RunCell], Field(max_length=MOST_CELLS)]


def described(suite: Suite, cells: Mapping[CellSpec, str]) -> dict[str, Any]:
    """The description of a run, see `Store.write_run`: a suite and its cells, with their ids."""
    return {
        "title": suite.title,
        "suite": asdict(suite),
        "fingerprint": suite.fingerprint(),
        "cells": [
            {
                "cell_id": cell_id, "part": suite.part_of(cell), "role": cell.role, "attack": cell.attack,
                "defense": cell.defense, "seed": cell.seed, "label": cell.label,
            }
            for cell, cell_id in cells.items()
        ],
    }  # fmt: skip


def check_run(run: Mapping[str, Any], where: str) -> Suite:
    """The suite of a run that is what `Store.write_run` writes; `where` names its file.

    Raises:
        RunError: something is missing, or is not what it should be.
    """
    try:
        checked = Run.model_validate(dict(run))
        suite = make_suite(checked.suite, "its suite")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(map(str, first["loc"])) or "the file"
        wrong = f"{path}: {problem(first)}"
    except (SuiteError, SpecError) as error:
        wrong = str(error)
    else:
        ids = [cell.cell_id for cell in checked.cells]
        if len(set(ids)) == len(ids):
            return suite
        wrong = "a cell is listed twice"
    raise RunError(
        f"{where} does not describe a run: {one_line(wrong, 300)}; run the suite again with this store to renew it"
    )
