"""A suite as tests: one for every cell, one for every rule and defense, and one for every attack of a baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from thiefbench.suite.analysis.comparison import Comparison
from thiefbench.suite.scenario import CellSpec, heading
from thiefbench.testing.assertions import quoted
from thiefbench.testing.bounds import Threshold
from thiefbench.testing.reporting import properties_of
from thiefbench.testing.results import TrainedResult
from thiefbench.testing.suite_options import SuiteSession, baseline, plan_of
from thiefbench.testing.thresholds import ThresholdResult, readings, violated, worse


class SuiteCollector(pytest.Collector):
    """The tests of a suite."""

    plan: SuiteSession

    @classmethod
    def of(cls, session: pytest.Session) -> SuiteCollector:
        """The collector of the session's suite."""
        plan = plan_of(session.config)
        collector: SuiteCollector = cls.from_parent(session, name=plan.short_name, nodeid=plan.short_name)
        collector.plan = plan
        return collector

    def collect(self) -> list[pytest.Item]:
        """Cells in the suite's order, each after those it is compared with; then rules and baselines."""
        with self.plan.trusted():
            return list(self._items())

    def _items(self) -> Iterator[pytest.Item]:
        plan = self.plan
        for cell in plan.cells:
            yield _item(CellItem, self, plan.name_of(cell), cell=cell)
        attacks = dict.fromkeys((plan.suite.part_of(cell), cell.attack) for cell in plan.cells)
        for defense in plan.tested:
            name = plan.defense_name(defense)
            for threshold in plan.thresholds:
                test = f"{plan.short_name}::fail-if::{threshold.metric}-{threshold.bound.words}::{name}"
                yield _item(ThresholdItem, self, test, defense=defense, threshold=threshold)
            for part, attack in attacks if plan.baseline is not None else ():
                test = f"{plan.short_name}::{plan.attack_name(part, attack)}::{name}::against-baseline"
                yield _item(BaselineItem, self, test, defense=defense, title=heading(part, attack))


class SuiteItem(pytest.Item):
    """A test of a suite."""

    plan: SuiteSession

    def reportinfo(self) -> tuple[str, None, str]:
        """Location and heading; pytest would take dots in a heading that is the bare name for those of a module."""
        return self.plan.short_name, None, f"suite {self.name}"

    def runtest(self) -> None:
        """Run and check, with no code of what only the suite's file names."""
        with self.plan.trusted():
            self.check()

    def check(self) -> None:
        """The test itself."""
        raise NotImplementedError

    def fail(self, lines: Sequence[str]) -> None:
        """Fail with a message and no traceback: there is no code of the user to show."""
        pytest.fail("\n".join([*lines, f"to repeat this test: {self.plan.command(self.name)}"]), pytrace=False)

    def show(self, result: TrainedResult) -> None:
        """Put a result into the test's report."""
        self.user_properties += properties_of(result, self.nodeid)


class CellItem(SuiteItem):
    """Passes when its cell ends without an error."""

    cell: CellSpec

    def check(self) -> None:
        """Run the cell, after those it is compared with."""
        cell = self.cell
        comparison = _only(self.plan.run(self.plan.with_references(cell)), self.plan.suite.title_of(cell))
        tested = comparison.find(cell.role, cell.defense, cell.seed)
        assert tested is not None
        if tested.problem:
            self.fail([f"the cell {cell.label} {tested.problem}"])
        line = comparison.line(tested.name)
        assert line is not None
        self.show(TrainedResult(comparison, line, self.plan.suite.title))


class ThresholdItem(SuiteItem):
    """Fails when a measure of a defense violates a rule."""

    defense: str
    threshold: Threshold

    def check(self) -> None:
        """Run the missing cells of the defense, then check the measure."""
        metric = self.threshold.metric
        comparisons = self.plan.run(self.plan.all_of(self.defense))
        results = readings(metric, self.defense, self.plan.suite.title, comparisons)
        self.user_properties.append(("thiefbench.rule", f"fail if {self.threshold}"))
        bad = violated(self.threshold, results)
        if bad:
            lines = [f"{self.defense} fails in {self.plan.suite.title}, as {self.threshold} at:"]
            lines += [f"  {each.where}: {each.problem or f'{metric} {each.number!r}'}" for each in bad]
            self.fail([*lines, *_example(metric, bad)])


class BaselineItem(SuiteItem):
    """Fails when a defense is worse than a baseline, beyond the intervals."""

    defense: str
    title: str

    def check(self) -> None:
        """Run the missing cells of the defense, then compare."""
        assert self.plan.baseline is not None
        ours = _only(self.plan.run(self.plan.all_of(self.defense)), self.title)
        theirs = baseline(self.plan.baseline, self.defense, [self.title])[self.title]
        differences = worse(self.defense, ours, theirs)
        if differences:
            head = f"{self.defense} is worse against {self.title} than in {self.plan.baseline}, beyond the intervals:"
            self.fail([head, *(f"  {line}" for line in differences)])


def _item(kind: type[pytest.Item], parent: SuiteCollector, name: str, **fields: object) -> pytest.Item:
    item: pytest.Item = kind.from_parent(parent, name=name, nodeid=name)
    item.add_marker("thiefbench")
    vars(item).update(fields | {"plan": parent.plan})
    return item


def _only(comparisons: Sequence[Comparison], title: str) -> Comparison:
    return next(comparison for comparison in comparisons if comparison.title == title)


def _example(metric: str, bad: Sequence[ThresholdResult]) -> list[str]:
    """A completion of the first violation that has one."""
    harms_learning = metric in ("utility", "false_rejection_rate")
    for each in bad:
        if each.result is not None:
            completion = each.result.wrongly_rejected if harms_learning else each.result.let_through
            if completion is not None:
                heading = "honest work that was rejected" if harms_learning else "poison that got through"
                return [f"{heading} ({each.where}):", *quoted(completion)]
    return []
