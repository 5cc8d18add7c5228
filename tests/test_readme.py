"""The README's code is code that runs, and its commands exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from thiefbench import cli, registry

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_defense_in_the_readme_is_the_example_file():
    example = (ROOT / "tests/examples/my_defense.py").read_text()
    assert f"```python\n{example}```" in README, "the README shows tests/examples/my_defense.py word for word"
    made = registry.make("defense", f"{ROOT / 'tests/examples/my_defense.py'}:PlausibleOpening(floor=-3.0)")
    assert made.floor == -3.0


def test_the_attack_in_the_readme_is_the_example_file():
    example = (ROOT / "tests/examples/my_attack.py").read_text()
    assert f"```python\n{example}```" in README, "the README shows tests/examples/my_attack.py word for word"


def test_the_metric_in_the_readme_is_the_example_file():
    example = (ROOT / "tests/examples/my_metric.py").read_text()
    assert f"```python\n{example}```" in README, "the README shows tests/examples/my_metric.py word for word"


def test_the_tests_of_a_filter_in_the_readme_are_the_example_project_s():
    example = (ROOT / "tests/examples/filter_project/tests/test_filter.py").read_text()
    assert f"```python\n{example}```" in README, "the README shows tests/test_filter.py of the project word for word"


def test_pytest_options_of_the_readme_exist():
    plugin = (ROOT / "bench/pytest_plugin.py").read_text()
    for option in set(re.findall(r"--thiefbench-[\w-]+", README)):
        assert f'"{option}"' in plugin, f"the README names {option}"


@pytest.mark.parametrize("kind", ["attack", "defense"])
def test_the_contracts_in_the_readme_are_the_example_files(kind):
    example = (ROOT / f"tests/examples/contract_of_my_{kind}.py").read_text()
    assert f"```python\n{example}```" in README, f"the README shows contract_of_my_{kind}.py word for word"


@pytest.mark.parametrize(
    ("kind", "head"),
    [("attack", "| attack | what honest models shall learn |"), ("defense", "| defense | what it rejects |")],
)
def test_every_attack_and_defense_is_in_the_readme(kind, head):
    table = README.partition(head)[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)", table, re.MULTILINE)) == registry.names(kind), f"one line for each {kind}"


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target} is in the README, not in the Makefile"


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^thiefbench (\w+)", README, re.MULTILINE))))
def test_commands_of_the_readme_exist(command):
    done = subprocess.run(
        [sys.executable, "-m", "thiefbench", command, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"the README names `thiefbench {command}`: {done.stderr}"


def test_options_of_the_cluster_guide_exist():
    text = (ROOT / "docs/cluster.md").read_text().replace("\\\n", " ")
    command = typer.main.get_command(cli.app).commands["run"]
    known = {option for parameter in command.params for option in parameter.opts}
    used = {option for line in re.findall(r"thiefbench run .*", text) for option in re.findall(r"--[a-z-]+", line)}
    assert {"--executor", "--ray-address", "--gpus-per-cell"} <= used, "the guide shows what is for a cluster"
    assert used <= known, "and nothing that does not exist"
