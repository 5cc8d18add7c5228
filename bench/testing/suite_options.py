"""What `--thiefbench-suite` and the options beside it ask for: a suite, its cells under names, rules and a baseline."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import pytest

from thiefbench import registry
from thiefbench.errors import UserError
from thiefbench.suite.analysis.comparison import Comparison
from thiefbench.suite.analysis.ranking import anchor_of, beside_anchors
from thiefbench.suite.analysis.run_comparisons import last_run, trained_comparisons
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import Store
from thiefbench.suite.suite_yaml import load_suite
from thiefbench.testing.bounds import MisuseError, Threshold, parse_threshold
from thiefbench.testing.runs import Runs
from thiefbench.testing.session import PYTEST, from_here, options, runs_of, trusting

_UNSELECTABLE = re.compile(r"[^\w:+\-./]")
"""What `pytest -k` cannot read."""


@dataclass
class SuiteSession:
    """A suite as a session runs it.

    Attributes:
        suite_name: as the option names it.
        suite: with the session's defenses.
        tested: canonical spec strings of the defenses that rules and baseline apply to.
        runs: of the session.
        thresholds: when a defense fails.
        baseline: a store to compare with.
        command_options: of the command that runs the same suite again.
        trusted: the context in which its suite and stores are read and its cells are run, see `session.trusting`.
    """

    suite_name: str
    suite: Suite
    tested: tuple[str, ...]
    runs: Runs
    thresholds: tuple[Threshold, ...]
    baseline: Path | None
    command_options: tuple[str, ...]
    trusted: Callable[[], AbstractContextManager[None]]
    _remembered: bool = field(default=False, init=False)

    @cached_property
    def cells(self) -> list[CellSpec]:
        """All cells of the suite, in its order."""
        return self.runs.cells(self.suite)

    @cached_property
    def _shorts(self) -> dict[str, str]:
        """Short names by spec string, unique among attacks and among defenses."""
        attacks = dict.fromkeys(cell.attack for cell in self.cells)
        defenses = dict.fromkeys(cell.defense for cell in self.cells)
        return _short("attack", attacks) | {f"d {spec}": name for spec, name in _short("defense", defenses).items()}

    def defense_name(self, spec: str) -> str:
        """A defense in the names of tests."""
        return self._shorts[f"d {spec}"]

    def attack_name(self, part: str, spec: str) -> str:
        """An attack in the names of tests, after the name of its part."""
        return f"{_UNSELECTABLE.sub('_', part)}::{self._shorts[spec]}" if part else self._shorts[spec]

    def name_of(self, cell: CellSpec) -> str:
        """A cell as a test's name, which `pytest -k` can select alone."""
        attack = self.attack_name(self.suite.part_of(cell), cell.attack)
        words = {"attack": [], "placebo": ["placebo"], "control": ["no-attack"]}[cell.role]
        if cell.role == "attack" or cell.defense != "none":
            words = [*words, self.defense_name(cell.defense)]
        width = len(str(max(self.suite.seeds)))  # so that no name is the beginning of another
        return "::".join((self.short_name, attack, *words, f"seed{cell.seed:0{width}}"))

    @property
    def short_name(self) -> str:
        """The suite in the names of tests."""
        return _UNSELECTABLE.sub(
            "_", Path(self.suite_name).stem if self.suite_name.endswith((".yaml", ".yml")) else self.suite_name
        )

    def command(self, test: str) -> str:
        """The command that runs one of the suite's tests alone, from the directory where pytest was called."""
        return shlex.join([*PYTEST, *self.command_options, "-k", test])

    def with_references(self, cell: CellSpec) -> list[CellSpec]:
        """A cell and those it is compared with, in the suite's order; an undefended cell alone."""
        if cell.defense == "none":
            return [cell]
        same = [c for c in self.cells if (c.attack, c.seed) == (cell.attack, cell.seed)]
        part = self.suite.part_of(cell)
        others = [c for c in same if c.defense == "none" and self.suite.part_of(c) == part]
        return [*others, cell]

    def all_of(self, defense: str) -> list[CellSpec]:
        """Every cell of a defense and those they are compared with."""
        return [cell for cell in self.cells if cell.defense in ("none", defense)]

    def run(self, cells: Sequence[CellSpec]) -> list[Comparison]:
        """Run those of some cells that are missing, and compare them. The store then remembers the whole suite."""
        if not self._remembered:
            self.runs.remember(self.suite, self.cells)
            self._remembered = True
        self.runs.run(self.suite, cells)
        return self.runs.comparisons(self.suite, cells)


_PLAN: pytest.StashKey[SuiteSession] = pytest.StashKey()


def check(config: pytest.Config) -> None:
    """Check that the options go together and that all names exist.

    Raises:
        pytest.UsageError: they do not.
    """
    try:
        plan = plan_of(config)
        if plan.baseline is not None:
            with plan.trusted():
                for defense in plan.tested:
                    baseline(plan.baseline, defense, [plan.suite.title_of(cell) for cell in plan.cells])
    except UserError as error:
        raise pytest.UsageError(str(error)) from None


def plan_of(config: pytest.Config) -> SuiteSession:
    """The suite that the session's options describe, the same object at every call.

    Raises:
        UserError: an option is wrong.
    """
    if _PLAN not in config.stash:
        with trusting(config):
            config.stash[_PLAN] = _plan_from(config)
    return config.stash[_PLAN]


def _plan_from(config: pytest.Config) -> SuiteSession:
    suite_name: str = config.getoption("thiefbench_suite")
    specs: list[str] = config.getoption("thiefbench_defense")
    rules: list[str] = config.getoption("thiefbench_fail_if")
    compare: str | None = config.getoption("thiefbench_compare")
    thresholds = tuple(dict.fromkeys(parse_threshold(rule) for rule in (*config.getini("thiefbench_fail_if"), *rules)))
    suite = load_suite(suite_name)
    if specs:
        suite = replace(suite, defenses=beside_anchors(suite.defenses, specs))
    for spec in suite.defenses:
        registry.make("defense", spec)
    tested = tuple(registry.canonical("defense", spec) for spec in specs or suite.defenses)
    tested = tuple(dict.fromkeys(spec for spec in tested if specs or not anchor_of(spec)))
    if not tested and (thresholds or compare):
        raise MisuseError(
            f"the suite {suite_name} has no defense to hold to a rule; name one with --thiefbench-defense"
        )
    words = [f"--thiefbench-suite={suite_name}"]
    for option, values in (("defense", specs), ("fail-if", rules), ("compare", [compare] if compare else [])):
        words += [f"--thiefbench-{option}={value}" for value in values]
    plan = SuiteSession(
        suite_name, suite, tested, runs_of(config), thresholds,
        None if compare is None else from_here(config, compare),
        (*words, *options(config)), partial(trusting, config),
    )  # fmt: skip
    assert plan.cells, "a suite has cells"
    return plan


def baseline(store: Path, defense: str, titles: Iterable[str]) -> dict[str, Comparison]:
    """The comparisons of a store's last run, by title.

    Args:
        store: its directory.
        defense: which the run must include.
        titles: of comparisons that the run must include.

    Raises:
        MisuseError, ReportError: it does not include them, or there is no run.
    """
    results = Store(store)
    comparisons = {comparison.title: comparison for comparison in trained_comparisons(results, last_run(results))}
    for title in dict.fromkeys(titles):
        defended = comparisons[title].line(defense) if title in comparisons else None
        if defended is None:
            available = "; ".join(
                dict.fromkeys(f"{c.title} with {line.name}" for c in comparisons.values() for line in c.defended)
            )
            raise MisuseError(
                f"the baseline {store} has no cells of {defense} against {title}; it has "
                f"{available or 'no defended ones'}"
            )
    return comparisons


def _short(kind: registry.Kind, specs: Iterable[str]) -> dict[str, str]:
    """Spec strings without their arguments; those that would be equal are numbered."""
    names: dict[str, str] = {}
    for spec in specs:
        targets = "+".join(registry.parse(kind, part).target for part in registry.parts(kind, spec))
        plain = _UNSELECTABLE.sub("_", targets)
        number = 2
        name = plain
        while name in names.values():
            name, number = f"{plain}-{number}", number + 1
        names[spec] = name
    return names
