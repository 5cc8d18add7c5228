"""The object behind the fixture `thiefbench`."""

from __future__ import annotations

import copy
import os
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest

from thiefbench import registry
from thiefbench.defenses.base import Defense
from thiefbench.suite.analysis.replay import ReplayError
from thiefbench.suite.execution.first_rounds import FirstRoundError
from thiefbench.suite.scenario import Suite
from thiefbench.testing.bounds import MisuseError
from thiefbench.testing.recorded import names, replay
from thiefbench.testing.reporting import properties_of
from thiefbench.testing.results import ReplayedResult, TrainedResult
from thiefbench.testing.session import PYTEST, options, runs_of, trusting
from thiefbench.testing.settings import suite_of
from thiefbench.testing.specs import spec_of

MARKER = "thiefbench"


class ThiefBench:
    """Measures of a defense, inside a test.

    Args:
        item: the test. Its marker sets the swarm and the attack; markers of its class and module set the rest.

    Raises:
        MisuseError: an argument of the marker is invalid.
    """

    def __init__(self, item: pytest.Item) -> None:
        self._item, self._runs = item, runs_of(item.config)
        self._marked = item.get_closest_marker(MARKER) is not None
        self._arguments = _arguments(item)
        self._suite = None if self._names_a_recording() else self._swarms()

    def run(self, defense: str | Defense | type[Defense]) -> TrainedResult:
        """Train the missing ones of three swarms (without an attack, undefended, defended), and score them.

        Args:
            defense: an instance, a class made without arguments, or a spec string.

        Raises:
            MisuseError: the test has no marker, the defense has no spec string, or its code failed.
        """
        if not self._marked:
            raise MisuseError(
                "thiefbench.run trains swarms under an attack, which a marker names; write "
                '@pytest.mark.thiefbench(attack="text") above the test'
            )
        spec = spec_of(defense)
        suite = replace(self._suite or self._swarms(), defenses=tuple(dict.fromkeys(("none", spec))))
        with self._trusted(spec):
            cells = self._runs.cells(suite)
            try:
                self._runs.run(suite, cells, try_first=True)
            except FirstRoundError as error:
                raise MisuseError(str(error)) from None
            (comparison,) = self._runs.comparisons(suite, cells)
        line = next(line for line in comparison.lines if (line.role, line.defense) == ("attack", spec))
        result = TrainedResult(comparison, line, suite.title, self._command(*options(self._item.config)))
        self._item.user_properties += properties_of(result, self._item.nodeid)
        return result

    def replay(self, defense: str | Defense | type[Defense]) -> ReplayedResult:
        """Test a defense within seconds on the recorded rounds of the marker's attack, or on all if it names none.

        Args:
            defense: as for `run`; an instance is copied, so that its own state does not change.

        Raises:
            MisuseError: the marker has other arguments than the attack, there is no recording of the attack, or the
                defense needs data that is not recorded.
        """
        if trained := [name for name in self._arguments if name != "attack"]:
            raise MisuseError(
                "the marker thiefbench: thiefbench.replay takes recorded rounds as they are, so of the marker it takes "
                f"only attack, not {', '.join(trained)}; remove it, or train swarms with thiefbench.run(defense=...)"
            )
        attack = self._arguments.get("attack")
        asked = None if attack is None else registry.parse("attack", attack)
        if asked is not None and asked.arguments:
            raise MisuseError(
                f"thiefbench.replay takes recorded rounds as they are, and {attack} has arguments; name the attack "
                f"alone, as in attack={asked.target!r}, or train swarms with thiefbench.run(defense=...)"
            )
        family = None if asked is None else asked.target
        try:
            replayed = replay(_factory(defense), family)
        except ReplayError as error:
            if error.__cause__ is not None:  # the defense itself failed: its traceback says where
                raise
            raise MisuseError(str(error)) from None
        result = ReplayedResult(_name(defense), replayed, self._command())
        self._item.user_properties += properties_of(result, self._item.nodeid)
        return result

    def _names_a_recording(self) -> bool:
        """Whether the marker names a recording that is no attack, which only `replay` can be given."""
        attack = self._arguments.get("attack")
        return isinstance(attack, str) and attack in set(names()) - set(registry.names("attack"))

    def _swarms(self) -> Suite:
        """The suite that the markers describe."""
        with self._trusted():
            return suite_of(self._arguments)

    def _trusted(self, *defenses: str) -> AbstractContextManager[None]:
        """A context that loads classes named by the test itself, but not those named only by its suite's file."""
        return trusting(self._item.config, (self._arguments.get("attack"), self._arguments.get("task"), *defenses))

    def _command(self, *options: str) -> str:
        """The command that runs this test alone, from the directory where pytest was called."""
        config = self._item.config
        file, colons, test = self._item.nodeid.partition("::")  # seen from the root directory
        relative = os.path.relpath(config.rootpath / file, config.invocation_params.dir)
        return shlex.join([*PYTEST, f"{relative}{colons}{test}", *options])


def _arguments(item: pytest.Item) -> dict[str, Any]:
    """The arguments of all markers; the closest marker wins."""
    arguments: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers(MARKER))):
        if marker.args:
            first = repr(marker.args[0])
            raise MisuseError(f"the marker thiefbench takes arguments by name, as in attack={first}, not {first} alone")
        arguments |= marker.kwargs
    return arguments


def _factory(defense: object) -> Callable[[], Defense]:
    """A function that returns a fresh defense at every call.

    Raises:
        MisuseError: its class has no name.
    """
    made = defense if isinstance(defense, type) else type(defense)
    if issubclass(made, Defense) and not isinstance(getattr(defense, "name", None), str | property):
        raise MisuseError(f"{made.__name__} has no name; set name in the class to a string")
    if isinstance(defense, Defense):
        return lambda: copy.deepcopy(defense)
    if isinstance(defense, type) and issubclass(defense, Defense):
        return defense
    spec = spec_of(defense)
    return lambda: registry.make("defense", spec)


def _name(defense: object) -> str:
    if isinstance(defense, str):
        return defense
    return getattr(defense, "name", None) or type(defense).__name__
