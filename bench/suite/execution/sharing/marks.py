"""Marks: hashes of everything that determines a swarm's state, before round 1 and after every round.

`thiefbench.suite.execution.sharing.shared_rounds` says what they cover, and why equal marks mean equal swarms.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from thiefbench import provenance
from thiefbench.attacks.base import Attack
from thiefbench.engine.learning.deferred import Schedule
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import rows_table

_SWITCHES = ("ATEN_", "DNNL_", "MKL_", "ONEDNN_")  # environment variables that affect how libraries compute
_NOT_MARKED = ("score", "reason")
_UNWRITTEN = (torch.Tensor, Policy, ModuleType, dict, list, tuple, set, frozenset)


def start_mark(spec: CellSpec, what: Mapping[str, Any], libraries: Mapping[str, str]) -> str:
    """The mark before round 1: of everything that determines a cell's bits except its defense and a control's attack.

    Args:
        spec: the cell.
        what: its `identity`.
        libraries: modules that its attack publishes.
    """
    apart_from = ("defense", "attack") if spec.role == "control" else ("defense",)
    content = {name: value for name, value in what.items() if name != "judge"}
    content["cell"] = {name: value for name, value in what["cell"].items() if name not in apart_from}
    content["sources"] = {kind: digest for kind, digest in what["sources"].items() if kind not in apart_from}
    content["libraries"] = dict(libraries)
    here = provenance.provenance(spec.device, spec.threads)
    apart = ("git_commit", "git_dirty")
    content["made_with"] = {name: value for name, value in here.items() if name not in apart}
    content["arithmetic"] = [torch.__config__.show(), torch.get_float32_matmul_precision()]
    content["switches"] = {name: value for name, value in os.environ.items() if name.startswith(_SWITCHES)}
    return digest(json.dumps(content, sort_keys=True))


def round_mark(
    mark: str, rows: Sequence[CompletionRow], fields: str, schedule: Schedule, apart_from: Sequence[str] = ()
) -> str:
    """The mark after a round; `thiefbench.suite.execution.sharing.shared_rounds` says why it is enough.

    Args:
        mark: the one before the round.
        rows: the round's.
        fields: the attack's, as `fields_of` gives them, after the round.
        schedule: which completions the update runs together.
        apart_from: names of columns that do not count, besides score and reason.
    """
    table = rows_table(rows)
    not_marked = (*_NOT_MARKED, *apart_from)
    content = (
        mark, fields, schedule,
        *((name, table[name].to_pylist()) for name in table.column_names if name not in not_marked),
    )  # fmt: skip
    return digest(repr(content))


def fields_of(attack: Attack) -> str | None:
    """An attack's fields as a text that is equal for equal fields; None if a field has no such text."""
    try:
        return repr(_written(attack, set()))
    except TypeError:
        return None


def _written(value: object, within: set[int]) -> object:
    """A value as nested tuples of numbers and strings.

    Raises:
        TypeError: it is or contains something else: weights, a random generator, a nested function.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, Enum | Path | re.Pattern):
        return kind, repr(value)
    if isinstance(value, random.Random):
        return kind, value.getstate()
    if isinstance(value, type):
        return kind, value.__module__, value.__qualname__
    if id(value) in within:
        raise TypeError("it holds itself")
    inner = within | {id(value)}
    fields = getattr(value, "__dict__", {})
    if not fields and isinstance(value, dict):
        return kind, tuple((_written(name, inner), _written(each, inner)) for name, each in value.items())
    if not fields and isinstance(value, list | tuple):
        return kind, tuple(_written(each, inner) for each in value)
    if not fields and isinstance(value, set | frozenset):
        return kind, tuple(sorted(repr(_written(each, inner)) for each in value))
    hides = any(vars(each).get("__slots__") for each in type(value).__mro__)
    if hides or callable(value) or not hasattr(value, "__dict__") or isinstance(value, _UNWRITTEN):
        raise TypeError(f"{kind} cannot be written down")
    return kind, _written(fields, inner)


def digest(text: str) -> str:
    """A mark: 32 hex digits of the text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
