"""A suite file or a baseline may be a stranger's, also where pytest reads it: nothing that only they name is loaded."""

from __future__ import annotations

from contextvars import Context
from pathlib import Path

import pytest

from tests.bench import handmade, tiny
from tests.bench.test_trust import EVIL, replaced, rewritten
from tests.bench.testing.test_plugin import FILTERS, TINY, sentence
from thiefbench.suite.store.records import Store

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("loaded")

TRUST = "--thiefbench-trust-plugins"
GOOD = "--thiefbench-defense=my_filters:Good"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A user's folder with filters, hostile code beside them, and sessions that can import both."""
    monkeypatch.delenv("THIEFBENCH_TRUST_PLUGINS", raising=False)
    pytester.makepyfile(my_filters=FILTERS, evil=EVIL.format(marker=str(pytester.path / "ran")))
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    return pytester


def session(project: pytest.Pytester, *words: str) -> pytest.RunResult:
    """A session as from a shell: nobody has said whom to trust."""
    return Context().run(project.runpytest_inprocess, *words)


def sprung(project: pytest.Pytester) -> bool:
    """Whether hostile code ran."""
    return (project.path / "ran").exists()


HOSTILE = {
    "attack": {"attacks": ["evil.py:Evil"]},
    "nested attack": {"attacks": ["varied(attack='evil.py:Evil')"]},
    "module": {"attacks": ["evil:Evil"]},
    "task": {"task": "evil.py:Evil"},
    "defense": {"defenses": ["none", "evil.py:Evil"]},
    "nested defense": {"defenses": ["none", "reputation(defense='evil.py:Evil')"]},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_suite_s_file_is_loaded_without_what_it_names(project: pytest.Pytester, what: str) -> None:
    tiny.suite_file(project.path, **{"task": "gsm_micro(size=24)", **HOSTILE[what]})
    words = [TINY] if "defense" in what else [TINY, GOOD]
    said = sentence(session(project, *words))
    assert not sprung(project)
    assert f"add {TRUST} if you wrote it" in said
    session(project, *words, TRUST)
    assert sprung(project), "and with the flag it is loaded"


@pytest.mark.parametrize("what", ["attack", "task"])
def test_a_marker_s_suite_is_loaded_without_what_it_names(project: pytest.Pytester, what: str) -> None:
    tiny.suite_file(project.path, **{"task": "gsm_micro(size=24)", **HOSTILE[what]})
    project.makepyfile(
        "import pytest\nfrom my_filters import Good\n@pytest.mark.thiefbench(suite='tiny.yaml')\n"
        "def test(thiefbench): thiefbench.run(Good)\n"
    )
    result = session(project)
    result.assert_outcomes(errors=1)
    assert not sprung(project)
    assert f"add {TRUST} if you wrote it" in result.stdout.str()


def test_what_a_test_names_is_loaded(project: pytest.Pytester) -> None:
    tiny.suite_file(project.path, task="gsm_micro(size=24)")
    project.makepyfile(
        "import pytest\nfrom my_filters import Good\n"
        f"@pytest.mark.thiefbench(suite='tiny.yaml', task={tiny.TASK!r}, rounds=1)\n"
        "def test(thiefbench): assert thiefbench.run(Good()).stop_rate > 0.9\n"
    )
    session(project).assert_outcomes(passed=1)
    cells = {record.cell["defense"].rpartition(":")[2] for record in Store(project.path / ".thiefbench").records()}
    assert cells == {"none", "Good"}


def test_a_suite_of_one_s_own_runs_with_the_flag_and_its_command_has_it(project: pytest.Pytester) -> None:
    tiny.suite_file(project.path, rounds=1)
    result = session(project, TINY, TRUST, GOOD, "--thiefbench-fail-if=stop_rate>0.5")
    result.assert_outcomes(passed=3, failed=1)
    assert TRUST in next(line for line in result.outlines if "to repeat this test" in line)


def test_a_baseline_is_read_without_what_it_names(project: pytest.Pytester, tmp_path: Path) -> None:
    of = handmade.suite(attacks=(handmade.TEXT,), defenses=("none", "logit"), placebo=False, utility=False, seeds=(0,))
    store = rewritten(
        handmade.store(tmp_path / "baseline", of), replaced(handmade.TEXT, f"{project.path}/evil.py:Evil")
    )
    tiny.suite_file(project.path, task="gsm_micro(size=24)", attacks=[handmade.TEXT])
    said = sentence(session(project, TINY, "--thiefbench-defense=logit", f"--thiefbench-compare={store.root}"))
    assert not sprung(project)
    assert said
