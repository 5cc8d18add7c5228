"""CODE and TEXT in programs: `code_functions` and `micro-programs`, undefended.

    python -m tests.benchmarks.functions clean --store runs/programs         # no attack
    python -m tests.benchmarks.functions code_vertical --store runs/programs --seeds 5
    python -m tests.benchmarks.functions text_calls --store runs/calls       # TEXT in the swarm of calls.yaml
    python -m tests.benchmarks.functions --list

Cells that the store holds are not run again. Printed is one Markdown line per cell: the outcome at every evaluation,
the last with its 95 % interval over completions, the source paper's own rule, clean reward and mean length.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmarks.attacks import PAPER, Progress, arguments, interval, line, run_lists
from thiefbench import registry
from thiefbench.suite.scenario import CellSpec, Evaluation
from thiefbench.suite.store.records import NOTHING, Record
from thiefbench.suite.suite_yaml import load_suite

CODE = "code_injection"
COMMENT = PAPER.replace("text", "comment")
LEVELS = (3, 3, 2, 1)


def contrast(attack: str) -> str:
    """The attack with the policy's own wrong programs beside it."""
    return f"contrast(attack={attack!r})"


def half(attack: str) -> str:
    """The attack with half of every group gibberish."""
    return f"varied(attack={attack!r}, gibberish=0.5)"


def cell(
    attack: str = CODE,
    role: str = "attack",
    seed: int = 0,
    rounds: int = 60,
    topology: str = "vertical",
    learning_rate: float = 6e-4,
    levels: Sequence[float] = LEVELS,
    every: int = 10,
    **learner: Any,
) -> CellSpec:
    """A cell in the swarm of `smoke`, on programs."""
    suite = load_suite("smoke")
    weights = ", ".join(f"{level:g}" for level in levels)
    return CellSpec(
        task=registry.canonical("task", f"code_functions(levels=({weights}))"),
        model="micro-programs",
        attack=registry.canonical("attack", attack),
        defense="none",
        role=role,  # type: ignore[arg-type]
        seed=seed,
        swarm=replace(
            suite.swarm,
            topology=topology,  # type: ignore[arg-type]
            sampling=replace(suite.swarm.sampling, max_new_tokens=128),
            learner=replace(suite.swarm.learner, learning_rate=learning_rate, **learner),
        ),
        rounds=rounds,
        evaluation=Evaluation(every=every, completions=256, final=512),
        threads=1,
    )


def in_calls(attack: str, seed: int) -> CellSpec:
    """The attacked, undefended cell that `calls.yaml` has for an attack, without its placebo and control."""
    suite = load_suite(str(Path(__file__).with_name("calls.yaml")))
    return CellSpec(
        task=registry.canonical("task", suite.task),
        model="micro-programs",
        attack=registry.canonical("attack", attack),
        defense="none",
        role="attack",
        seed=seed,
        swarm=suite.swarm,
        rounds=suite.rounds,
        evaluation=suite.evaluation,
        threads=1,
    )


def lists(seeds: Sequence[int]) -> dict[str, list[CellSpec]]:
    """All cells by the name of their question."""
    flat: dict[str, Any] = {"topology": "horizontal"}
    return {
        "clean": [cell(role="control", rounds=100)],
        "code_horizontal": [cell(seed=seed, rounds=100, **flat) for seed in seeds],
        "code_horizontal_60": [cell(seed=seed, **flat) for seed in seeds if seed],
        "code_vertical": [cell(contrast(CODE), seed=seed) for seed in seeds],
        "code_gibberish": [cell(half(CODE), seed=seed) for seed in seeds],
        "text_horizontal": [cell(PAPER, seed=seed, rounds=40, **flat) for seed in seeds],
        "text_calls": [in_calls(COMMENT, seed) for seed in seeds],
        "text_doubled": [in_calls(PAPER, seed) for seed in seeds],
        "text_vertical": [cell(contrast(PAPER), seed=seed) for seed in seeds],
        "placebo": [cell(role=role, **flat) for role in ("placebo", "control")],
    }


class ProgramProgress(Progress):
    """Adds the source paper's rule to a cell's line."""

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        """A sign of life every tenth round."""
        if done % 10 == 0:
            print(f"  {spec.label}: round {done} of {total}", flush=True)

    def finished(self, spec: CellSpec, record: Record) -> None:
        """The cell's line."""
        rewards = ", ".join(f"{p.round}: {p.value:.3g}" for p in record.curves.get("eval_reward", []) if p.value)
        printed = interval(record.other_rules.get("asr_printed", NOTHING))
        print(f"{line(spec, record)} printed: {printed} | reward: {rewards} |", flush=True)


def main() -> None:
    """Run the lists that the command line names."""
    parser: argparse.ArgumentParser = arguments(__doc__, "runs/programs")
    asked = parser.parse_args()
    columns = ("cell", "swarm", "outcome by round", "last outcome", "start reward", "clean reward", "length", "other")
    run_lists(parser, asked, lists(range(asked.seeds)), ProgramProgress(), columns)


if __name__ == "__main__":
    main()
