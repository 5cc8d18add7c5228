"""What the pages show is true: examples are files that run, commands and options exist, tables are complete."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tests.docs.pages import DOCS, README, RESULTS, ROOT, blocks, commands, named, pages, prose
from thiefbench import cli, registry
from thiefbench.suite.suite_yaml import load_suite, parse_suite
from thiefbench.testing.settings import ARGUMENTS

EXAMPLES = ROOT / "tests/examples"
FILTER = EXAMPLES / "filter_project/tests/test_filter.py"
CURRENT = [page for page in pages(log=False) if page.name != "CHANGELOG.md"]

SHOWN = {
    "README.md": [EXAMPLES / "my_defense.py", EXAMPLES / "filter_of_my_defense.py"],
    "docs/write-a-defense.md": [EXAMPLES / "my_defense.py", EXAMPLES / "contract_of_my_defense.py"],
    "docs/write-an-attack.md": [
        EXAMPLES / f"{name}.py" for name in ("my_attack", "contract_of_my_attack", "my_marked_attack")
    ],
    "docs/write-a-task.md": [EXAMPLES / "my_task.py", EXAMPLES / "contract_of_my_task.py"],
    "docs/pipelines.md": [
        EXAMPLES / f"{name}.py" for name in ("my_stage_attack", "my_stage_check", "contract_of_my_stage_check")
    ],
    "docs/averaging.md": [
        EXAMPLES / f"{name}.py" for name in ("my_weight_attack", "my_aggregation", "contract_of_my_aggregation")
    ],
    "docs/test-your-filter.md": [FILTER, EXAMPLES / "filter_project/my_filters/habits.py"],
    "docs/pools.md": [EXAMPLES / "write_pools.py"],
    "docs/trainers.md": [EXAMPLES / f"defended_{name}.py" for name in ("trl", "verl", "prime_rl")],
    "docs/measures.md": [EXAMPLES / "my_metric.py"],
    "docs/completions.md": [EXAMPLES / f"load_{name}.py" for name in ("rates", "rejected", "dataset")],
}
"""Pages with the files that they show; tests run all of them."""
RUN = {"docs/trl.md"}
"""Pages whose script a test takes out and runs (tests/bench/integrations)."""


@pytest.mark.parametrize("page", CURRENT, ids=named)
def test_every_python_block_is_a_file_that_tests_run(page: Path) -> None:
    if named(page) in RUN:
        return
    files = [file.read_text() for file in SHOWN.get(named(page), [])]
    for block in blocks(page, "python"):
        assert block in files, f"{named(page)} shows a file:\n{block}"
    for file in files:
        assert file in blocks(page, "python"), f"{named(page)} shows one of its files word for word"


def test_suites_that_pages_show_are_suites() -> None:
    shown = [text for page in CURRENT for text in blocks(page, "yaml") if "attacks:" in text]
    pages_with_one = (
        "suites, getting-started, heterogeneous, sender-truth, judged-rewards, averaging, pipelines, experts"
    )
    assert len(shown) == 8, f"{pages_with_one} show one each"
    for text in shown:
        assert parse_suite(text, "docs").cells("cpu", "float32", 1)


@pytest.mark.parametrize(
    ("kind", "page", "head"),
    [
        ("attack", "write-an-attack.md", "| attack | what honest models are to learn |"),
        ("defense", "write-a-defense.md", "| defense | what it rejects |"),
        ("weight_attack", "averaging.md", "| weight attack | what malicious nodes send |"),
        ("aggregation", "averaging.md", "| aggregation | what a node adopts |"),
        ("stage_attack", "pipelines.md", "| stage attack | what the malicious stage does |"),
        ("stage_check", "pipelines.md", "| stage check | what it compares |"),
        ("task", "write-a-task.md", "| task | what is asked |"),
        ("suite", "suites.md", "| suite | for |"),
    ],
)
def test_every_plugin_is_in_its_table(kind: Any, page: str, head: str) -> None:
    table = (DOCS / page).read_text().partition(head)[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `([\w-]+)", table, re.MULTILINE)) == registry.names(kind), (
        f"one line for each {kind}"
    )


def known_options(words: list[str]) -> tuple[str, set[str]]:
    """The command that words name, and its options."""
    command: Any = typer.main.get_command(cli.app)
    name = "thiefbench"
    while words and hasattr(command, "commands"):
        name = f"{name} {words[0]}"
        assert words[0] in command.commands, f"there is no command {name}"
        command, words = command.commands[words[0]], words[1:]
    return name, {option for parameter in command.params for option in parameter.opts} | {"--help"}


@pytest.mark.parametrize("page", CURRENT, ids=named)
def test_commands_and_options_of_a_page_exist(page: Path) -> None:
    for words in commands(page):
        name, known = known_options(words)
        for word in words:
            if re.fullmatch(r"--[a-z][a-z-]*", word.partition("=")[0]):
                assert word.partition("=")[0] in known, f"{named(page)}: {name} has no option {word}"


def test_the_test_sees_the_commands() -> None:
    told = [" ".join(words) for page in CURRENT for words in commands(page)]
    assert len(told) > 40, "commands are found"
    for command in ("run smoke", "report", "compare", "matrix", "merge", "replay", "export", "audit", "zoo train"):
        assert any(words.startswith(command) for words in told), f"some page shows thiefbench {command}"
    for command in ("check", "submit", "verify", "build"):
        assert any(words.startswith(f"leaderboard {command}") for words in told), f"and leaderboard {command}"


def test_the_front_page_reports_only_what_it_has_run() -> None:
    """A plan writes no store that a report could read."""
    stores: set[str] = set()
    for command, *words in commands(README):
        if command == "run" and "--plan" not in words:
            named = words[words.index("--store") + 1] if "--store" in words else f"runs/{load_suite(words[0]).name}"
            stores.add(named)
        if command == "report":
            assert words[0] in stores, f"the README reports {words[0]} before any of its commands fills it"
    assert stores, "it runs some suite"


def test_make_targets_of_the_pages_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in CURRENT:
        text = "\n".join(blocks(page, "")) + "\n".join(re.findall(r"`(make [^`]+)`", prose(page)))
        for target in re.findall(r"^make ([\w-]+)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{named(page)} names make {target}"


def test_pytest_options_and_marker_arguments_exist() -> None:
    plugin = (ROOT / "bench/pytest_plugin.py").read_text()
    page = DOCS / "test-your-filter.md"
    named_options = set(re.findall(r"--thiefbench-[\w-]+", page.read_text()))
    for option in named_options:
        assert f'"{option}"' in plugin, f"the page names {option}"
    assert set(re.findall(r"\"(--thiefbench-[\w-]+)\"", plugin)) == named_options, "and every one that there is"
    said = prose(page).partition("## The marker")[2].partition("##")[0]
    for argument in ARGUMENTS:
        assert re.search(rf"`{argument}[=`]", said), f"the page names the marker's {argument}"


@pytest.mark.parametrize("script", ["attacks.py", "heterogeneous.py"])
def test_lists_that_the_results_name_exist(
    script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests/benchmarks"))
    monkeypatch.setattr(sys, "argv", [script, "--list"])
    runpy.run_path(str(ROOT / "tests/benchmarks" / script), run_name="__main__")
    there = set(re.findall(r"^(\w+): ", capsys.readouterr().out, re.MULTILINE))
    told = " ".join(
        block.replace("\\\n", " ")
        for page in (RESULTS, *sorted((DOCS / "log").glob("*.md")))
        for block in blocks(page, "")
    )
    asked = re.findall(rf"benchmarks/{script} ([a-z_ ]+)", told)
    assert asked, f"the results name lists of {script}"
    for name in " ".join(asked).split():
        assert name in there, f"{script} has no list {name}"


def test_files_that_the_results_name_exist() -> None:
    for page in (RESULTS, *sorted((DOCS / "log").glob("*.md"))):
        for path in re.findall(r"tests/benchmarks/\w+\.(?:py|yaml)", page.read_text()):
            assert (ROOT / path).exists(), f"{named(page)} names {path}"
        for module in re.findall(r"python -m tests\.benchmarks\.(\w+)", page.read_text()):
            assert (ROOT / f"tests/benchmarks/{module}.py").exists(), f"{named(page)} names {module}"


def test_benchmarks_that_are_named_as_scripts_run_as_scripts() -> None:
    """`python tests/benchmarks/name.py` finds no package `tests`; `python -m tests.benchmarks.name` does."""
    benchmarks = sorted((ROOT / "tests/benchmarks").glob("*.py"))
    named_as_scripts = {
        script
        for page in (*pages(), *benchmarks)
        for script in re.findall(r"python tests/benchmarks/(\w+)\.py", page.read_text())
    }
    assert len(named_as_scripts) > 5
    for script in sorted(named_as_scripts):
        source = (ROOT / f"tests/benchmarks/{script}.py").read_text()
        assert not re.search(r"^(?:from|import) tests\b", source, re.MULTILINE), f"{script} is no script"


@pytest.mark.parametrize("page", [page for page in pages() if page.name != "CHANGELOG.md"], ids=named)
def test_topologies_go_by_the_papers_words(page: Path) -> None:
    said = re.findall(r"(?<!\")\b(?:shared|owned) groups?\b(?!\")", prose(page), re.IGNORECASE)
    assert not said, f"{named(page)} says horizontal and vertical, not {said[0]}"


def test_front_pages_stay_short() -> None:
    assert len(README.read_text().split()) <= 1000, "the README is read in five minutes"
    assert len(RESULTS.read_text().split()) <= 4000, "raw measurements belong into docs/log"


def test_the_glossary_has_one_meaning_for_a_word() -> None:
    page = (DOCS / "glossary.md").read_text()
    words = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE)
    rows = [word for word in words if word != "word" and not set(word) <= set("-")]
    assert len(rows) == len(set(rows)) > 30
    for word in ("horizontal", "vertical", "backend", "training row", "forward cache", "shared cells", "heartbeat"):
        assert word in page, f"the glossary explains {word}"


def test_the_citation_names_this_version() -> None:
    told = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    (version,) = re.findall(r"^version = \"(.*)\"$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert (told["version"], told["license"]) == (version, "Apache-2.0")
    assert "2511.09780" in told["references"][0]["url"], "and the source paper"
