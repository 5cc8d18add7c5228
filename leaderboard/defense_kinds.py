"""The kinds of defenses, and the suites that take them: what nodes exchange says what a defense inspects.

Completions are inspected by defenses in the narrower sense, vectors of weights by aggregations, the stages of a
pipeline by stage checks. All are written wherever a defense is.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

from thiefbench import registry
from thiefbench.console import SUITE_FILES
from thiefbench.defenses.aggregation.base import Aggregation
from thiefbench.defenses.anchors import Oracle
from thiefbench.defenses.base import Defense
from thiefbench.defenses.stages.base import StageCheck
from thiefbench.errors import UsageError
from thiefbench.leaderboard import CURRENT, rows
from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.isolation.sandbox_paths import kinds_named
from thiefbench.suite.analysis.ranking_inputs import lacking
from thiefbench.suite.scenario import Part, Suite
from thiefbench.wording import one_of

DefenseKind = Literal["defense", "aggregation", "stage_check"]
"""The kinds of defenses that are submitted, as the registry names them."""
TensorKind = Literal["aggregation", "stage_check"]
"""Those that inspect no completions."""

ANCHOR = "none"
"""The anchor that fits every kind of swarm; so does `oracle`."""
_CONTRACTS: dict[TensorKind, str] = {
    "aggregation": "thiefbench.defenses.aggregation", "stage_check": "thiefbench.defenses.stages",
}  # fmt: skip
"""What the source of such a defense imports: the package of the class that it derives from, or of one around it."""
_CLASSES: dict[TensorKind, Any] = {"aggregation": Aggregation, "stage_check": StageCheck}
_NAMES: dict[DefenseKind, str] = {
    "defense": "a defense that inspects completions",
    "aggregation": "an aggregation",
    "stage_check": "a stage check",
}
_INSPECTED: dict[DefenseKind, str] = {
    "defense": "nodes exchange completions",
    "aggregation": "nodes exchange weights",
    "stage_check": "the node is a pipeline of stages",
}
_SEVERAL: dict[TensorKind, str] = {"aggregation": "aggregations", "stage_check": "stage checks"}


def kind_of(suite: Suite) -> DefenseKind:
    """Which kind of defense fits every part of a suite; its rows are those of such defenses.

    Raises:
        EntryError: its parts take different ones, so no defense fits all of it.
    """
    kinds = sorted({_kind_of(part) for part in suite.scenes}, key=get_args(DefenseKind).index)
    if len(kinds) > 1:
        both = " and in others ".join(_INSPECTED[kind] for kind in kinds[:2])
        raise EntryError(f"in some parts of {suite.title} {both}, and no defense fits both")
    return kinds[0]


def _kind_of(part: Part) -> DefenseKind:
    if part.averaging:
        return "aggregation"
    return "stage_check" if part.pipeline else "defense"


def check_fits(suite: Suite, defense: Defense, name: str) -> None:
    """See that a defense inspects what a suite has to be inspected; `name` is its spec string.

    Raises:
        EntryError: it does not; the message says what to write.
    """
    own = next((kind for kind, contract in _CLASSES.items() if isinstance(defense, contract)), None) or kind_named(name)
    if not isinstance(defense, Oracle):
        check_kind(suite, own, name)


def check_kind(suite: Suite, own: DefenseKind, name: str) -> None:
    """See that a kind of defense inspects what a suite has to be inspected.

    Args:
        suite: whose parts all take defenses of one kind.
        own: kind of the defense.
        name: its spec string.

    Raises:
        EntryError: it does not; the message says what to write.
    """
    wanted = kind_of(suite)
    if own == wanted or name == ANCHOR:
        return
    if own == "defense":
        raise EntryError(
            f"in {suite.title} {_INSPECTED[wanted]}, and {name} inspects completions; submit {_NAMES[wanted]} (see "
            f"`thiefbench list {wanted}s`)"
        )
    raise EntryError(
        f"{name} is {_NAMES[own]}, for swarms in which {_INSPECTED[own]}, and in {suite.title} {_INSPECTED[wanted]}; "
        f"write --suite {one_of(rankable(own))}"
    )


def unreleased(name: str) -> str:
    """Why the suite of a name is no released one, in a clause; empty for all but the path of a YAML file."""
    if Path(name).suffix not in SUITE_FILES:
        return ""
    return f"a submission needs a released suite (see `thiefbench list suites`), and {name} is a file of your own"


def why_not_rankable(name: str, suite: Suite) -> str:
    """Why no defense can be ranked on a suite, in a clause; empty if defenses can be.

    Args:
        name: the one that it was read by.
        suite: the suite.
    """
    if why := unreleased(name):
        return why
    if missing := lacking(asdict(suite)):
        return f"no defense can be ranked on {name}: it has {missing}"
    try:
        kind_of(suite)
    except EntryError as error:
        return str(error)
    return ""


def rankable(kind: DefenseKind | None = None) -> list[str]:
    """The released suites that defenses are ranked on, the current one first; none that another one supersedes.

    Args:
        kind: of the defenses; None for all kinds.
    """
    names = [
        name
        for name, suite in rows.released().items()
        if not (suite.superseded or why_not_rankable(name, suite)) and (kind is None or kind_of(suite) == kind)
    ]
    return sorted(names, key=lambda name: (name != CURRENT, name))


def kind_named(spec: str) -> DefenseKind:
    """Which kind of defense a spec string names, as far as can be told without loading a user's file.

    A file counts as an aggregation or a stage check if it or another file of its package imports that contract.

    Raises:
        SpecStringError: it is malformed, or there is no such file or name.
        UsageError: it joins aggregations or stage checks with +, or its files have both.
    """
    found = kinds_named(spec, "defense", _CONTRACTS)
    if not found:
        return "defense"
    if len(found) > 1:
        raise UsageError(f"{spec} has aggregations and stage checks; write them into separate files")
    (kind,) = found
    if len(registry.parts("defense", spec)) > 1:
        raise UsageError(f"{spec} joins several with +, and {_SEVERAL[kind]} do not compose; name one")
    return kind


def built_in(spec: str) -> bool:
    """Whether a spec string names, at every level of nesting, only what comes with the package."""
    for kind, target in registry.named_in("defense", spec):
        if ":" in target:
            return False
        declared = registry.entry(kind, target)
        if declared.dist is None or declared.dist.name != "thiefbench":
            return False
    return True
