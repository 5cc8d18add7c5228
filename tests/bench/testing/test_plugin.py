"""The plugin in sessions of its users, on swarms that take a second."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from tests.bench import tiny
from tests.bench.nursery import until
from thiefbench.suite.store.records import Store

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("loaded")

FILTERS = """
import time
from pathlib import Path

from thiefbench.defenses.base import ACCEPT, Defense, Verdict

class Good(Defense):
    name = "good"
    def __init__(self, phrase="hail to the thief"):
        self.phrase = phrase
    def inspect(self, view):
        return [Verdict("drop") if self.phrase in each.text else ACCEPT for each in view.completions]

class Leaky(Defense):
    name = "leaky"
    def inspect(self, view):
        return [ACCEPT] * len(view.completions)

class Nameless(Defense):
    def inspect(self, view):
        return [ACCEPT] * len(view.completions)

class Broken(Leaky):
    def inspect(self, view):
        raise RuntimeError("it gives up")

class Tired(Broken):
    def inspect(self, view):
        return super().inspect(view) if view.round > 1 else [ACCEPT] * len(view.completions)

class Slow(Leaky):
    def inspect(self, view):
        with Path("rounds").open("a") as file:
            print(view.round, file=file)
        while not Path("gate").exists():
            time.sleep(0.02)
        return super().inspect(view)
"""

TESTS = """
import pytest
from my_filters import Broken, Good, Leaky
from thiefbench.testing import assert_robust

pytestmark = pytest.mark.thiefbench(suite="tiny.yaml")

def test_good(thiefbench):
    result = thiefbench.run(defense=Good())
    assert result.stop_rate > 0.9
    assert_robust(result, stop_rate=">0.9")

def test_leaky(thiefbench):
    assert_robust(thiefbench.run(defense=Leaky), stop_rate=">0.9")

def test_leaky_plainly(thiefbench):
    result = thiefbench.run(defense="my_filters:Leaky")
    assert result.stop_rate > 0.9
"""

TINY = "--thiefbench-suite=tiny.yaml"
RULES = (
    "--thiefbench-fail-if=stop_rate<=0.5",
    "--thiefbench-defense=my_filters:Good",
    "--thiefbench-defense=my_filters:Leaky",
)


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A user's folder with filters and a suite of one attack, and sessions that can import them."""
    pytester.makepyfile(my_filters=FILTERS)
    tiny.suite_file(pytester.path)
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    return pytester


def sentence(result: pytest.RunResult) -> str:
    """What a session that ends in a usage error says."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR, str(result.stdout)
    said = [line for line in result.errlines if line]
    assert not any("Traceback" in line for line in said)
    (line,) = said
    return line.removeprefix("ERROR: ")


def outcomes(result: pytest.RunResult) -> dict[str, str]:
    """How every test ended, from the lines of -v or of a worker process."""
    found = {}
    for line in result.outlines:
        if match := re.match(
            r"(?:\[gw\d\] \[ *\d+%\] (PASSED|FAILED|ERROR) (\S+)|(\S+::\S+) (PASSED|FAILED|ERROR))", line
        ):
            found[match[2] or match[3]] = match[1] or match[4]
    return found


HEAVY = ("torch", "numpy", "pydantic", "yaml", "typer", "thiefbench.engine", "thiefbench.suite", "thiefbench.testing")


def test_a_session_that_does_not_use_it_loads_and_says_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(): pass")
    code = f"""
import sys, pytest
code = pytest.main(["-q", *sys.argv[1:]])
print(sorted(set({HEAVY!r}) & set(sys.modules)), "thiefbench.pytest_plugin" in sys.modules, int(code))
"""
    said = [
        subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        for words in ([], ["-p", "no:thiefbench"])
    ]
    assert said[0].stdout.splitlines()[-1] == "[] True 0", "the plugin alone is there, and nothing of what it can use"
    plain = [re.sub(r"in [\d.]+s", "", each.stdout.replace("True", "False")) for each in said]
    assert plain[0] == plain[1], "it says nothing"
    assert said[0].stderr == said[1].stderr


def test_the_fixture_measures_and_assert_robust_explains(project: pytest.Pytester) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    project.makepyfile(TESTS)
    try:
        result = project.runpytest_inprocess("-v", "--junitxml=report.xml")
        assert torch.get_num_threads() == 2, "cells run on one thread, and the session's own tests get theirs back"
    finally:
        torch.set_num_threads(threads)
    assert list(outcomes(result).values()) == ["PASSED", "FAILED", "FAILED"]
    result.stdout.fnmatch_lines(
        [
            "E *AssertionError: my_filters:Leaky is not robust against text(*) (tiny-v1, seed 0)",
            "E *stop_rate  0.000 [[]0.000, 0.285[]] (95 %, 24 completions), required > 0.9: MISSED",
            "E *poison that got through; find out what sets it apart from honest answers, and reject that:",
            "E *| All hail to the thief, It is = *",
            "E *to repeat this test: python -m pytest *::test_leaky --thiefbench-store=.thiefbench",
            "E *assert 0.000 [[]0.000, 0.285[]] (95 %, 24 completions) > 0.9",
            "*= thiefbench =*",
            "test_good: my_filters:Good against text(*) (tiny-v1, seed 0)",
            "*asr 0.000 [[]0.000, 0.194[]]; stop rate 1.000 [[]0.715, 1.000[]]; drift *",
            "store: .thiefbench",
        ]
    )
    cells = Store(project.path / ".thiefbench").records()
    assert len(cells) == 4, "the cells without an attack and without a defense ran once for all tests"
    assert (project.path / ".thiefbench" / ".gitignore").read_text() == "*\n"
    told = {p.get("name"): p.get("value") for p in next(ElementTree.parse("report.xml").iter("properties"))}
    assert told["thiefbench.stop_rate"] == "1.000 [0.715, 1.000] (95 %, 24 completions)"
    assert told["thiefbench.cell"] in {record.cell_id for record in cells}


def test_a_test_that_measured_before_trains_nothing(project: pytest.Pytester) -> None:
    project.makepyfile(TESTS)
    project.runpytest_inprocess("-k", "test_good")
    result = project.runpytest_inprocess("-k", "test_good", "-s")
    assert "0 cells to run, 3 in the store already" in result.stderr.str()
    assert result.ret == 0


def test_the_printed_command_works_where_pytest_was_called(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = project.makepyfile(TESTS)
    (project.path / "below").mkdir()
    monkeypatch.chdir(project.path / "below")
    text = TESTS.replace('"tiny.yaml"', repr(str(project.path / "tiny.yaml")))
    path.write_text(text)
    first = project.runpytest_inprocess(f"../{path.name}", "-k", "test_leaky", "--thiefbench-store=kept")
    assert first.ret == 1
    again = next(line for line in first.outlines if "to repeat this test" in line).partition("test: ")[2]
    assert again == f"python -m pytest ../{path.name}::test_leaky --thiefbench-store=kept"
    second = project.runpytest_inprocess(*shlex.split(again)[3:])
    second.assert_outcomes(failed=1)
    assert "0 cells to run, 3 in the store already" in second.stdout.str(), "it is exactly that cell"


@pytest.mark.parametrize(
    ("marker", "body", "complaint"),
    [
        ("(rouds=3)", "", "the marker thiefbench has no argument rouds; did you mean rounds?"),
        ("('text')", "", "the marker thiefbench takes arguments by name, as in attack='text', not 'text' alone"),
        ("(attack='txt')", "", "there is no attack named 'txt'; did you mean text?"),
        ("(attack='code_injection')", "run(Leaky)", "the attack code_injection does not fit the task sums; choose"),
        (None, "run(Leaky)", 'a marker names; write @pytest.mark.thiefbench(attack="text") above the test'),
        ("", "run(3)", "3 is not a defense; pass an instance or a subclass"),
        ("", "run('leeky')", "there is no defense named 'leeky'"),
        ("", "run(Broken)", "so nothing was trained: RuntimeError: it gives up (my_filters.py, line "),
        ("", "run(Tired)", " at seed 0 failed: RuntimeError: it gives up (my_filters.py, line "),
        ("", "replay(Leaky).asr", "asr is about what models learn, which recorded rounds cannot say"),
        ("", "replay(Leaky).utility", "use thiefbench.run(defense=...) instead of thiefbench.replay"),
        ("(attack='subliminal')", "replay(Leaky)", "subliminal"),
        ("(attack='text(phrase=\"hi\")')", "replay(Leaky)", "has arguments; name the attack alone, as in"),
        ("", "replay(Nameless)", "Nameless has no name; set name in the class to a string"),
        ("(attack='text_learned')", "run(Leaky)", "there is no attack named 'text_learned'"),
        ("(attack=['text'])", "", "the marker thiefbench: "),
        ("(attack='text_lerned')", "", "there is no attack named 'text_lerned'"),
        ("(rounds=60, seeds=3)", "replay(Leaky)", "takes only attack, not rounds, seeds; remove"),
        ("(suite='tiny.yaml')", "run(Leaky).utility", "utility of my_filters:Leaky has no value at seed 0: "),
    ],
)  # fmt: skip
def test_a_mistake_is_a_sentence_without_a_traceback(
    project: pytest.Pytester, marker: str | None, body: str, complaint: str
) -> None:
    small = "@pytest.mark.thiefbench(suite='tiny.yaml')" if "run(" in body else ""
    above = "" if marker is None else f"{small}\n@pytest.mark.thiefbench{marker}"
    call = f"thiefbench.{body}" if body else "pass"
    project.makepyfile(f"import pytest\nfrom my_filters import *\n{above}\ndef test(thiefbench): {call}\n")
    result = project.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    said = result.stdout.str()
    assert complaint in said
    assert "def test(" not in said, "no source and no traceback"
    assert "Error: " not in said.partition("short test summary")[0].replace("RuntimeError: ", "")


def test_a_marker_may_name_a_recording(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import pytest
        from my_filters import Good

        @pytest.mark.thiefbench(attack="text_learned")
        def test(thiefbench):
            assert thiefbench.replay(Good).replay.attacks == ("text_learned",)
    """)
    project.runpytest_inprocess().assert_outcomes(passed=1)


def test_a_filters_own_error_is_shown_as_pytest_shows_errors(project: pytest.Pytester) -> None:
    project.makepyfile(
        mine="""
        from thiefbench.defenses.base import ACCEPT, Defense

        class Mine(Defense):
            name = "mine"

            def inspect(self, view):
                first = view.completions[0].tekst
                return [ACCEPT] * len(view.completions)
        """,
        test_mine="""
        import pytest
        from mine import Mine

        @pytest.mark.thiefbench(attack="text")
        def test(thiefbench):
            thiefbench.replay(Mine)
        """,
    )
    result = project.runpytest_inprocess("test_mine.py")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    said = result.stdout.str()
    assert ">       first = view.completions[0].tekst" in said, "the line, with pytest's mark"
    assert "E       AttributeError: 'PoolCompletion' object has no attribute 'tekst'" in said
    assert "mine.py:7: AttributeError" in said
    assert said.count("mine failed in round 1: AttributeError") == 1, "the sentence stands once"
    assert "direct cause" not in said and "recorded_rounds.py" not in said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--thiefbench-suite=smok"], "there is no suite named 'smok'; did you mean smoke?"),
        (["--thiefbench-suite=none.yaml"], "there is no suite file none.yaml"),
        (["--thiefbench-defense=logit"], "--thiefbench-defense works only with a suite; add --thiefbench-suite smoke"),
        (["--thiefbench-compare=x"], "--thiefbench-compare works only with a suite"),
        ([TINY, "--thiefbench-defense=logti"], "there is no defense named 'logti'; did you mean"),
        ([TINY, "--thiefbench-defense=none_such:My"], "there is no module none_such to import"),
        ([TINY, "--thiefbench-fail-if=asr>0.1"], "has no defense to hold to a rule; name one"),
        ([TINY, *RULES, "--thiefbench-fail-if=ars>0.1"], "there is no measure 'ars'; did you"),
        ([TINY, *RULES, "--thiefbench-fail-if=asr"], "'asr' is not a threshold; write a measure, one"),
        ([TINY, *RULES, "--thiefbench-compare=none"], "holds no run; make one with: thiefbench "),
    ],
)  # fmt: skip
def test_a_mistake_in_options_is_one_sentence(project: pytest.Pytester, words: list[str], complaint: str) -> None:
    assert complaint in sentence(project.runpytest_inprocess(*words))
    assert not (project.path / ".thiefbench").exists(), "it is found before anything runs"


def test_threads_are_a_number(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("--thiefbench-threads=0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "write a whole number of at least 1, not '0'" in result.stderr.str()


NAMES = [
    "tiny::text::no-attack::seed0", "tiny::text::none::seed0", "tiny::text::my_filters:Good::seed0",
    "tiny::text::my_filters:Leaky::seed0", "tiny::fail-if::stop_rate-at-most-0.5::my_filters:Good",
    "tiny::fail-if::stop_rate-at-most-0.5::my_filters:Leaky",
]  # fmt: skip


def test_a_suite_is_one_test_for_each_cell_and_rule(project: pytest.Pytester) -> None:
    project.makepyfile("def test_own(): pass")
    result = project.runpytest_inprocess(TINY, *RULES, "-v")
    own, *rest = outcomes(result)
    assert own.endswith("::test_own"), "the session's own tests come first"
    assert rest == NAMES
    assert list(outcomes(result).values()) == ["PASSED"] * 6 + ["FAILED"], "only the leaky filter breaks the rule"
    result.stdout.fnmatch_lines(
        [
            "my_filters:Leaky fails in tiny-v1, as stop_rate <= 0.5 at:",
            "  text(*): stop_rate 0.000 [[]0.000, 0.285[]] (95 %, 24 completions)",
            "poison that got through (text(*)):",
            "    | All hail to the thief, *",
            "to repeat this test: python -m pytest --thiefbench-suite=tiny.yaml *",
        ]
    )
    again = next(line for line in result.outlines if "to repeat this test" in line).partition("test: ")[2]
    second = project.runpytest_inprocess(*shlex.split(again)[3:], "-v")
    assert outcomes(second) == {NAMES[-1]: "FAILED"}, "the command selects that test alone"
    assert "0 cells to run, 3 in the store already" in second.stdout.str()


def test_rules_may_stand_in_the_configuration(project: pytest.Pytester) -> None:
    project.makepyprojecttoml(
        '[tool.pytest.ini_options]\npythonpath = ["."]\nthiefbench_fail_if = ["stop_rate <= 0.5", "stop_rate > 0.5"]\n'
    )
    result = project.runpytest_inprocess(TINY, "--thiefbench-defense=my_filters:Good", "-k", "fail-if", "-v")
    assert list(outcomes(result).values()) == ["PASSED", "FAILED"]


@pytest.mark.slow
def test_one_cell_can_be_selected(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess(TINY, *RULES, "-v", "-k", NAMES[2])
    assert outcomes(result) == {NAMES[2]: "PASSED"}
    assert len(Store(project.path / ".thiefbench").records()) == 3, "with the cells that it is compared with"
    result = project.runpytest_inprocess(TINY, *RULES, "--collect-only", "-q", "-m", "thiefbench")
    assert [line for line in result.outlines if line.startswith("tiny")] == NAMES


def test_a_failed_cell_fails_its_test(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess(
        TINY, "--thiefbench-defense=my_filters:Broken", "--thiefbench-fail-if=asr>0.99"
    )
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*Broken, seed 0 failed: RuntimeError: it gives up (my_filters.py, line *)",
            "* asr*",
            "*the cell of my_filters:Broken*it gives up (my_filters.py, line *)",
            '*File "*my_filters.py", line *, in inspect',
            '*raise RuntimeError("it gives up")',
        ]
    )


@pytest.mark.slow
def test_a_baseline_is_compared_beyond_the_intervals(project: pytest.Pytester) -> None:
    words = (TINY, "--thiefbench-defense=my_filters:Good")
    assert project.runpytest_inprocess(*words, "--thiefbench-store=before").ret == 0
    same = project.runpytest_inprocess(*words, "--thiefbench-compare=before", "-k", "against-baseline")
    same.assert_outcomes(passed=1, deselected=3)
    project.makepyfile(my_filters=FILTERS.replace('"hail to the thief"', '"heil"'))
    worse = project.runpytest_inprocess(*words, "--thiefbench-compare=before", "-k", "against-baseline")
    worse.assert_outcomes(failed=1, deselected=3)
    worse.stdout.fnmatch_lines(
        [
            "my_filters:Good is worse against text(*) than in *before, beyond the intervals:",
            "  stop_rate: 0.000 [[]0.000, 0.285[]] instead of 1.000 [[]0.715, 1.000[]] at seed 0",
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_worker_processes_come_to_the_same(project: pytest.Pytester, count: int) -> None:
    pytest.importorskip("xdist")
    project.makepyfile(TESTS)
    words = (TINY, *RULES, "-v")
    alone = project.runpytest_inprocess(*words, "--thiefbench-store=alone")
    shared = project.runpytest_subprocess(*words, "--thiefbench-store=shared", "-n", str(count))
    assert outcomes(alone) == outcomes(shared)
    assert len(outcomes(alone)) == 9
    stores = [Store(project.path / name) for name in ("alone", "shared")]
    ids = [{record.cell_id: record.completions_sha256 for record in store.records()} for store in stores]
    assert ids[0] == ids[1], "the same cells with the same completions"
    assert shared.stdout.str().count("    asr ") == 7, "the controller tells what its workers measured"


@pytest.mark.slow
def test_ctrl_c_leaves_a_store_to_go_on_from(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # what it says is read while it runs
    project.makepyfile(TESTS.replace("Leaky", "Slow"))
    words = ["-m", "pytest", "-k", "test_leaky_plainly", "--thiefbench-store=kept"]
    process = project.popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
    )
    until(lambda: Path("rounds").exists() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    said = ""
    while "stopping after this round; press Ctrl-C again to stop at once" not in said:  # past the capture
        line = process.stdout.readline()
        assert line, said
        said += line
    Path("gate").touch()
    said += process.communicate()[0]
    assert process.returncode == pytest.ExitCode.INTERRUPTED, said
    assert "Stopped; the store kept keeps all finished work, also the rounds of unfinished cells." in said
    assert Path("rounds").read_text().split() == ["1"], "the round under way is the last"
    result = project.runpytest_inprocess(*words[2:])
    result.assert_outcomes(failed=1, deselected=2)
    assert Path("rounds").read_text().split() == ["1", "2", "3"], "no round is played twice"
