"""The pytest plugin: options, a marker, a fixture and hooks. Nothing of ThiefBench loads before one of them is used."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from thiefbench.testing.fixture import ThiefBench

_MARKER = (
    "thiefbench(attack=..., topology=..., rounds=..., seeds=..., task=..., model=..., swarm={...}, evaluation={...}, "
    "placebo=..., suite=...): swarm and attack that the fixture thiefbench measures a defense in; for run, arguments "
    "that are left out are as in the suite smoke; replay takes only attack, and all recorded attacks without it"
)
_OF_SUITES = ("thiefbench_defense", "thiefbench_fail_if", "thiefbench_compare")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options, all of which begin with --thiefbench-."""
    group = parser.getgroup("thiefbench", "thiefbench: robustness of defenses against poisoned completions")
    group.addoption(
        "--thiefbench-suite",
        metavar="SUITE",
        help="Run every cell of a suite as a test. SUITE: its name or a YAML file.",
    )
    group.addoption(
        "--thiefbench-defense", metavar="SPEC", action="append", default=[],
        help="Defense to test in the suite: a name, package.module:Class or path/to/file.py:Class(key=value). Repeat "
        "the option for several.",
    )  # fmt: skip
    group.addoption(
        "--thiefbench-fail-if", metavar="RULE", action="append", default=[],
        help="Fail if a measure of the suite is in this range, as in worst_case<0.9 or asr>0.05. Repeat the option for "
        "several.",
    )  # fmt: skip
    group.addoption(
        "--thiefbench-compare", metavar="STORE",
        help="Fail if the defense is worse than in the last run kept in this store, by more than the intervals.",
    )  # fmt: skip
    group.addoption(
        "--thiefbench-store",
        metavar="DIR",
        help="Directory that keeps the results. Default: .thiefbench in the root directory.",
    )
    group.addoption(
        "--thiefbench-trust-plugins", action="store_true",
        help="Also load attacks, defenses and tasks that a suite file or a store names as mine.py:Mine or "
        "package.module:Mine. Their code runs in this process: only if you wrote it or trust whoever did.",
    )  # fmt: skip
    group.addoption(
        "--thiefbench-threads", metavar="N", type=_positive, default=1,
        help="CPU threads of each process. Results depend on it. Default: 1, with and without pytest-xdist.",
    )  # fmt: skip
    parser.addini("thiefbench_fail_if", "Like --thiefbench-fail-if, one rule per line.", type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def thiefbench(request: pytest.FixtureRequest) -> ThiefBench:
    """Measure a defense: thiefbench.run(defense=...) trains swarms, thiefbench.replay(defense=...) takes seconds."""
    from thiefbench.testing.fixture import ThiefBench

    return ThiefBench(request.node)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Check the options before any process is started or any file is collected."""
    config = session.config
    if config.getoption("thiefbench_suite") is not None:
        from thiefbench.testing.suite_options import check

        check(config)
        return
    alone = next((name for name in _OF_SUITES if config.getoption(name)), None)
    if alone is not None:
        option = f"--{alone.replace('_', '-')}"
        raise pytest.UsageError(
            f"{option} works only with a suite; add --thiefbench-suite smoke, or another suite's name"
        )


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Append the suite's cells to the session's own tests."""
    report = yield
    if isinstance(collector, pytest.Session) and collector.config.getoption("thiefbench_suite") is not None:
        from thiefbench.testing.collection import SuiteCollector

        report.result = [*(report.result or ()), SuiteCollector.of(collector)]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a mistake of the user in its one sentence, without a traceback.

    If the user's own code raised an error, its lines are shown as pytest shows them, and the sentence below.
    """
    report = yield
    if call.excinfo is not None and type(call.excinfo.value).__module__.startswith("thiefbench."):
        from thiefbench.errors import UserError

        if isinstance(call.excinfo.value, UserError):
            from thiefbench.user_frames import is_own, origin

            if (cause := origin(call.excinfo.value)) is None:
                report.longrepr = call.excinfo.getrepr(style="value", chain=False)
            else:
                failed = pytest.ExceptionInfo.from_exception(cause)
                failed.traceback = failed.traceback.filter(
                    lambda entry: is_own(str(entry.frame.f_globals.get("__name__", "")), Path(entry.path))
                )
                shown = failed.getrepr(style="long", chain=False)
                shown.addsection("thiefbench", str(call.excinfo.value))
                report.longrepr = shown
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode, config: pytest.Config
) -> None:
    """Show the measures and, if the session was stopped, how to continue."""
    reports_of_measures = [
        r.user_properties for reports in terminalreporter.stats.values() for r in reports if _measures(r)
    ]
    stopped = exitstatus == pytest.ExitCode.INTERRUPTED
    if reports_of_measures or stopped:
        from thiefbench.testing.reporting import summary_section

        summary = summary_section(config, reports_of_measures, stopped)
        if summary:
            terminalreporter.section("thiefbench")
            for line in summary:
                terminalreporter.write_line(line)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"write a whole number of at least 1, not {text!r}")
    return int(text)


def _measures(report: object) -> bool:
    """Whether a report belongs to a test that measured something."""
    names = (name for name, _ in getattr(report, "user_properties", ()))
    return getattr(report, "when", "") == "call" and any(name.startswith("thiefbench.") for name in names)
