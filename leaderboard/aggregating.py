"""Suites whose nodes exchange weights, and the defenses that fit them: aggregations, written wherever a defense is."""

from __future__ import annotations

from thiefbench import registry
from thiefbench.averaging.compatibility import NONE
from thiefbench.defenses.aggregation.base import Aggregation
from thiefbench.defenses.anchors import Oracle
from thiefbench.defenses.base import Defense
from thiefbench.errors import UsageError
from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.isolation.sandbox_paths import files
from thiefbench.sources import source_files
from thiefbench.suite.scenario import Suite

_CONTRACT = b"defenses.aggregation"
"""In a source that has an aggregation: the module of the class that it derives from, or of one built around it."""


def exchanges_weights(suite: Suite) -> bool:
    """Whether nodes exchange weights in every part of a suite; its rows are those of aggregations.

    Raises:
        EntryError: they do so in some parts only, so no defense fits all of it.
    """
    kinds = {part.averaging is not None for part in suite.scenes}
    if len(kinds) > 1:
        raise EntryError(
            f"{suite.title} exchanges weights in some of its parts and completions in others, and no defense fits both"
        )
    return kinds.pop()


def check_fits(suite: Suite, defense: Defense, name: str) -> None:
    """See that a defense defends what the nodes of a suite exchange; `name` is its spec string.

    Raises:
        EntryError: it does not; the message says what to write.
    """
    if exchanges_weights(suite):
        if name != NONE and not isinstance(defense, Aggregation | Oracle):
            raise EntryError(
                f"in {suite.title} nodes exchange weights, and {name} inspects completions; submit an aggregation (see "
                "`thiefbench list aggregations`)"
            )
    elif isinstance(defense, Aggregation) or _named(name):
        raise EntryError(
            f"{_named(name) or name} is an aggregation, for swarms that exchange weights, and in {suite.title} nodes "
            "exchange completions; write --suite averaging-v1"
        )


def is_aggregation(spec: str) -> bool:
    """Whether a spec string names an aggregation, as far as can be told without loading a user's file.

    A file counts as one if it or another file of its package names the contract of aggregations.

    Raises:
        SpecStringError: it is malformed, or there is no such file or name.
        UsageError: it joins aggregations with +.
    """
    parts = registry.parts("defense", spec)
    targets = [registry.parse("defense", part).target for part in parts]
    sources = [path for file in files(spec) for path in source_files(file) if path.suffix == ".py"]
    found = bool(_named(spec))
    if ":" in "".join(targets):
        found = found or any(_CONTRACT in path.read_bytes() for path in sources)
    if found and len(parts) > 1:
        raise UsageError(f"{spec} joins several with +, and aggregations do not compose; name one")
    return found


def built_in(spec: str) -> bool:
    """Whether a spec string names, at every level of nesting, only what comes with the package."""
    for kind, target in registry.named_in("defense", spec):
        if ":" in target:
            return False
        declared = registry.entry(kind, target)
        if declared.dist is None or declared.dist.name != "thiefbench":
            return False
    return True


def _named(spec: str) -> str:
    """The first declared aggregation among the parts of a spec string; empty if there is none."""
    declared = registry.names("aggregation")
    targets = [registry.parse("defense", part).target for part in registry.parts("defense", spec)]
    return next((target for target in targets if target in declared), "")
