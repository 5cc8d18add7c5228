"""How much of a poisoned expert comes through, by how the experts' answers are weighted.

Plays the undefended cells of `experts.yaml`, then lets the trained models answer the last evaluation by every
weighting, and each expert alone: training does not depend on the weighting. Prints a row of JSON for each cell, way of
answering and domain: ASR, clean reward, and the share of answers that the domain's own expert led.

    python tests/benchmarks/experts.py --part branched --attack equations [--role attack] [--rounds 16] [--seed 0]

An attacked cell takes about four minutes of one idle core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from thiefbench import registry
from thiefbench.engine.backends.local import LocalBackend
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.round_record import CompletionRow
from thiefbench.experts.backend import EnsembleBackend
from thiefbench.experts.spec import ExpertsSpec
from thiefbench.experts.swarm import ExpertSwarm
from thiefbench.suite.execution.cell_run import build_swarm
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.suite_yaml import load_suite
from thiefbench.tasks.base import Completion, Item

WAYS = {
    "classifier": ExpertsSpec(weighting="classifier"),
    "average": ExpertsSpec(weighting="average"),
    "uniform_prior": ExpertsSpec(weighting="uniform_prior"),
    "uniform_prior, answer": ExpertsSpec(weighting="uniform_prior", evidence="answer"),
    "cached_prior": ExpertsSpec(weighting="cached_prior"),
    "cached_prior, answer": ExpertsSpec(weighting="cached_prior", evidence="answer"),
}


class Alone(LocalBackend):
    """One expert answers everything."""

    def __init__(self, cohort: Cohort) -> None:
        super().__init__()
        self.cohort = cohort

    def answers(self, phase: str, items: Sequence[Item], first: int, cohorts: Sequence[Cohort]) -> list[Completion]:
        """The expert's own answers."""
        return super().answers(phase, items, first, [self.cohort] * len(items))


def evaluations(swarm: ExpertSwarm, number: int, completions: int) -> Iterator[tuple[str, list[CompletionRow]]]:
    """The rows of the last evaluation by every way of answering."""
    ensemble = swarm.backend
    if not isinstance(ensemble, EnsembleBackend):
        yield "one model", swarm.evaluate(number, completions).rows
        return
    for way, experts in WAYS.items():
        ensemble.experts = experts
        yield way, swarm.evaluate(number, completions).rows
    for cohort in swarm.population.cohorts:
        swarm.backend = Alone(cohort)
        swarm.backend.attach(swarm.context)
        yield f"expert of {swarm.spec.population[cohort.kind].domain} alone", swarm.evaluate(number, completions).rows


def summaries(swarm: ExpertSwarm, rows: Sequence[CompletionRow]) -> Iterator[dict[str, object]]:
    """ASR, clean reward and leading expert by the domain of the question."""
    phase = "probe" if any(row.phase == "probe" for row in rows) else "eval"
    domains = [each.domain for each in swarm.spec.population]
    for label in sorted({row.label for row in rows}):
        here = [row for row in rows if row.label == label]
        outcomes = [row.outcome for row in here if row.phase == phase and row.outcome is not None]
        rewards = [row.reward for row in here if row.phase == "eval"]
        own = domains.index(label.partition(" ")[0])
        yield {
            "questions": label,
            "asr": _mean(outcomes),
            "judged": len(outcomes),
            "clean_reward": _mean(rewards),
            "answers": len(rewards),
            "own_expert": _mean([float(row.cohort == own) for row in here]),
        }


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def cell_of(part: str, attack: str, role: str, seed: int) -> CellSpec:
    """The undefended cell of a part, by a word of its attack."""
    suite = replace(load_suite(str(Path(__file__).with_name("experts.yaml"))), seeds=(seed,))
    named = {registry.canonical("attack", spec) for spec in suite.attacks if attack in spec}
    cells = suite.cells("cpu", "float32", 1)
    return next(
        cell
        for cell in cells
        if suite.part_of(cell) == part and cell.attack in named and cell.role == role and cell.defense == "none"
    )


def main() -> None:
    """Play a cell and print what its models answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="branched")
    parser.add_argument("--attack", default="equations", help="a word of the attack's spec string")
    parser.add_argument("--role", default="attack", choices=["attack", "placebo", "control"])
    parser.add_argument("--rounds", type=int, help="fewer rounds than the suite has")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    cell = cell_of(chosen.part, chosen.attack, chosen.role, chosen.seed)
    swarm, rounds = build_swarm(cell), chosen.rounds or cell.rounds
    assert isinstance(swarm, ExpertSwarm), "all parts are experts"
    about = {"part": chosen.part, "attack": chosen.attack, "role": chosen.role, "seed": chosen.seed, "rounds": rounds}
    print(json.dumps(about | {"payload": swarm.attack.describe()}), flush=True)
    for number in range(1, rounds + 1):
        swarm.round(number)
    for way, rows in evaluations(swarm, rounds, cell.evaluation.final):
        for summary in summaries(swarm, rows):
            print(json.dumps({"part": chosen.part, "role": chosen.role, "way": way} | summary), flush=True)


if __name__ == "__main__":
    main()
