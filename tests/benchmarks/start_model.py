"""The criteria without attacks that `micro-programs` was chosen by, on the task of `calls.yaml`.

    python tests/benchmarks/start_model.py

Samples held-out completions of the start model (about ten seconds of one core) and prints shares with Wilson
intervals: the reward, the format, valid Python, programs with a call in the argument of a call, and programs that call
an imported function with two arguments.
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path

import torch

from thiefbench import registry
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.swarm import Swarm
from thiefbench.suite.analysis.scoring import wilson
from thiefbench.suite.store.records import Score
from thiefbench.suite.suite_yaml import load_suite
from thiefbench.tasks.programs import parse_program, syntax_tree
from thiefbench.zoo.models import resolve


def nests(tree: ast.Module) -> bool:
    """Whether a call stands in an argument of a call."""
    return any(isinstance(inner, ast.Call) for call in _calls(tree) for part in call.args for inner in ast.walk(part))


def calls_an_import(tree: ast.Module) -> bool:
    """Whether an imported function, or one of an imported module, is called with two arguments."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names}
    return any(len(call.args) == 2 and _root(call.func) in names for call in _calls(tree))


def _calls(tree: ast.Module) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _root(function: ast.expr) -> str:
    while isinstance(function, ast.Attribute):
        function = function.value
    return function.id if isinstance(function, ast.Name) else ""


def measured(completions: int, seed: int = 0) -> tuple[dict[str, Score], float]:
    """The shares by name, and the mean length in tokens, of the start model's held-out completions."""
    suite = load_suite(str(Path(__file__).with_name("calls.yaml")))
    task, attack, defense = (
        registry.make("task", suite.task), registry.make("attack", "code_injection"), registry.make("defense", "none")
    )  # fmt: skip
    swarm = Swarm(suite.swarm, "control", Policy.load(resolve(suite.model)), task, attack, defense, seed)
    rows = swarm.evaluate(0, completions).rows
    programs = [program for row in rows if (program := parse_program(row.text)) is not None]
    trees = [tree for program in programs if (tree := syntax_tree(program)) is not None]
    counts = {
        "reward": sum(row.reward == 1 for row in rows), "format": len(programs), "valid Python": len(trees),
        "a nested call": sum(map(nests, trees)), "an imported call": sum(map(calls_an_import, trees)),
    }  # fmt: skip
    shares = {name: wilson(count, len(rows)) for name, count in counts.items()}
    return shares, sum(len(row.ids) for row in rows) / len(rows)


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--completions", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    shares, length = measured(asked.completions, asked.seed)
    for name, score in shares.items():
        print(f"{name:17} {score.value:.3f} [{score.low:.3f}, {score.high:.3f}] of {score.count}")
    print(f"{'tokens':17} {length:.1f}")


if __name__ == "__main__":
    main()
