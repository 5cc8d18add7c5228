"""What `--thiefbench-suite` and the options beside it ask for: a suite, its cells under names, rules and a baseline."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pytest

from thiefbench import registry
from thiefbench.errors import is_users
from thiefbench.suite.analysis.comparison import Comparison
from thiefbench.suite.analysis.ranking import anchor_of, beside_anchors
from thiefbench.suite.analysis.run_comparisons import last_run, trained_comparisons
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import Store
from thiefbench.suite.suite_yaml import load_suite
from thiefbench.testing.bounds import MisuseError, Threshold, parse_threshold
from thiefbench.testing.runs import Runs
from thiefbench.testing.session import from_here, options, runs_of

_UNSELECTABLE = re.compile(r"[^\w:+\-./]")
"""What `pytest -k` cannot read."""


@dataclass
class Plan:
    """A suite as a session runs it.

    Attributes:
        named: the suite as it was asked for.
        suite: with the session's defenses.
        tested: the defenses that rules and baseline apply to, as canonical spec strings.
        runs: of the session.
        thresholds: when a defense fails.
        baseline: a store to compare with.
        words: of the command line, for who wants to see a test again.
    """

    named: str
    suite: Suite
    tested: tuple[str, ...]
    runs: Runs
    thresholds: tuple[Threshold, ...]
    baseline: Path | None
    words: tuple[str, ...]
    _remembered: bool = field(default=False, init=False)

    @cached_property
    def cells(self) -> list[CellSpec]:
        """All cells of the suite, in its order."""
        return self.runs.cells(self.suite)

    @cached_property
    def _shorts(self) -> dict[str, str]:
        """Short names by spec string, the same for none of a kind."""
        attacks = dict.fromkeys(cell.attack for cell in self.cells)
        defenses = dict.fromkeys(cell.defense for cell in self.cells)
        return _short("attack", attacks) | {f"d {spec}": name for spec, name in _short("defense", defenses).items()}

    def defense_name(self, spec: str) -> str:
        """A defense in the names of tests."""
        return self._shorts[f"d {spec}"]

    def attack_name(self, part: str, spec: str) -> str:
        """An attack in the names of tests, behind its part's name."""
        return f"{_UNSELECTABLE.sub('_', part)}::{self._shorts[spec]}" if part else self._shorts[spec]

    def name_of(self, cell: CellSpec) -> str:
        """A cell as a test's name, which `pytest -k` can select alone."""
        attack = self.attack_name(self.suite.part_of(cell), cell.attack)
        who = {"attack": [], "placebo": ["placebo"], "control": ["no-attack"]}[cell.role]
        if cell.role == "attack" or cell.defense != "none":
            who = [*who, self.defense_name(cell.defense)]
        width = len(str(max(self.suite.seeds)))  # so that no name is the beginning of another
        return "::".join((self.named_short, attack, *who, f"seed{cell.seed:0{width}}"))

    @property
    def named_short(self) -> str:
        """The suite in the names of tests."""
        return _UNSELECTABLE.sub("_", Path(self.named).stem if self.named.endswith((".yaml", ".yml")) else self.named)

    def command(self, test: str) -> str:
        """What to type, where pytest was called, to run one of the suite's tests alone."""
        return shlex.join(["pytest", *self.words, "-k", test])

    def beside(self, cell: CellSpec) -> list[CellSpec]:
        """A cell and those it is compared with, in the suite's order; an undefended one stands alone."""
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
        """Run what is missing of some cells, and compare them. The store then remembers the whole suite."""
        if not self._remembered:
            self.runs.remember(self.suite, self.cells)
            self._remembered = True
        self.runs.run(self.suite, cells)
        return self.runs.comparisons(self.suite, cells)


_PLAN: pytest.StashKey[Plan] = pytest.StashKey()


def check(config: pytest.Config) -> None:
    """See that the options go together and name what exists.

    Raises:
        pytest.UsageError: they do not.
    """
    try:
        plan = plan_of(config)
        if plan.baseline is not None:
            for defense in plan.tested:
                baseline(plan.baseline, defense, [plan.suite.title_of(cell) for cell in plan.cells])
    except Exception as error:
        if not is_users(error):
            raise
        raise pytest.UsageError(str(error)) from None


def plan_of(config: pytest.Config) -> Plan:
    """What the session's options ask for, the same for all who ask.

    Raises:
        Exception: a mistake of the user.
    """
    if _PLAN not in config.stash:
        config.stash[_PLAN] = _made(config)
    return config.stash[_PLAN]


def _made(config: pytest.Config) -> Plan:
    named: str = config.getoption("thiefbench_suite")
    given: list[str] = config.getoption("thiefbench_defense")
    rules: list[str] = config.getoption("thiefbench_fail_if")
    compare: str | None = config.getoption("thiefbench_compare")
    thresholds = tuple(dict.fromkeys(parse_threshold(rule) for rule in (*config.getini("thiefbench_fail_if"), *rules)))
    suite = load_suite(named)
    if given:
        suite = replace(suite, defenses=beside_anchors(suite.defenses, given))
    for spec in suite.defenses:
        registry.make("defense", spec)
    tested = tuple(registry.canonical("defense", spec) for spec in given or suite.defenses)
    tested = tuple(dict.fromkeys(spec for spec in tested if given or not anchor_of(spec)))
    if not tested and (thresholds or compare):
        raise MisuseError(f"the suite {named} has no defense to hold to a rule; name one with --thiefbench-defense")
    words = [f"--thiefbench-suite={named}"]
    for option, values in (("defense", given), ("fail-if", rules), ("compare", [compare] if compare else [])):
        words += [f"--thiefbench-{option}={value}" for value in values]
    plan = Plan(
        named, suite, tested, runs_of(config), thresholds,
        None if compare is None else from_here(config, compare),
        (*words, *options(config)),
    )  # fmt: skip
    assert plan.cells, "a suite has cells"
    return plan


def baseline(store: Path, defense: str, titles: Iterable[str]) -> dict[str, Comparison]:
    """The comparisons of a store's last run, by title.

    Args:
        store: where.
        defense: that its cells must be about.
        titles: of comparisons that must be in it.

    Raises:
        MisuseError, ReportError: they are not, or there is no run.
    """
    kept = Store(store)
    found = {comparison.title: comparison for comparison in trained_comparisons(kept, last_run(kept))}
    for title in dict.fromkeys(titles):
        has = found[title].line(defense) if title in found else None
        if has is None:
            there = "; ".join(
                dict.fromkeys(f"{c.title} with {line.name}" for c in found.values() for line in c.defended)
            )
            raise MisuseError(
                f"the baseline {store} has no cells of {defense} against {title}; it has {there or 'no defended ones'}"
            )
    return found


def _short(kind: registry.Kind, specs: Iterable[str]) -> dict[str, str]:
    """Spec strings without arguments, numbered where that is the same for several."""
    made: dict[str, str] = {}
    for spec in specs:
        targets = "+".join(registry.parse(kind, part).target for part in registry.parts(kind, spec))
        plain = _UNSELECTABLE.sub("_", targets)
        number = 2
        name = plain
        while name in made.values():
            name, number = f"{plain}-{number}", number + 1
        made[spec] = name
    return made
