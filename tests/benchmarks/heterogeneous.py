"""Swarms of several models, late and crashing ones: the runs behind the figures in RESULTS.md.

    python tests/benchmarks/heterogeneous.py clean delay misreport --store runs/heterogeneous --seeds 3
    python tests/benchmarks/heterogeneous.py --list
    python tests/benchmarks/heterogeneous.py --cost 5      # what a round of k cohorts costs, in rounds of one

Cells that the store holds are not run again; several processes may work on one store. Printed is one Markdown line per
cell: what it is, the outcome at every evaluation, and the last ASR and clean reward, class by class where there are
several.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, get_args

import attacks as plain
from thiefbench import registry
from thiefbench.engine.heterogeneity import ChurnSpec, DelaySpec, NodeClass, SharingSpec
from thiefbench.engine.spec import LossType, SwarmSpec
from thiefbench.suite.execution.cell_run import build_swarm
from thiefbench.suite.scenario import CellSpec, Evaluation
from thiefbench.suite.store.records import Record
from thiefbench.suite.suite_yaml import load_suite

SIZES = (NodeClass("micro-math", 0.5), NodeClass("micro-math-small", 0.5))
DOMAINS = (NodeClass("micro-math-changes", 0.5, "changes"), NodeClass("micro-math-totals", 0.5, "totals"))
LEARNERS = get_args(LossType)
PUBLISHED: dict[str, dict[str, float]] = {"gspo": {"epsilon": 3e-4, "epsilon_high": 4e-4}, "gepo": {"kl": 0.005}}
"""Learners whose authors set them otherwise than the package's defaults."""
LATE = DelaySpec("lognormal", rounds=32)
GUARD = "guard(population='heterogeneous')"


def cell(
    attack: str = "text",
    role: str = "attack",
    seed: int = 0,
    rounds: int = 60,
    loss: str = "grpo",
    model: str = "micro-math",
    defense: str = "none",
    learner: Mapping[str, float] | None = None,
    **swarm: Any,
) -> CellSpec:
    """A cell in the swarm of `smoke`, with what the arguments change; `learner` holds more fields of its learner."""
    suite = load_suite("smoke")
    programs = "code_injection" in attack
    learns = replace(suite.swarm.learner, loss=loss, **learner or {})
    made: SwarmSpec = replace(suite.swarm, learner=learns, **swarm)
    if programs:
        made = replace(made, sampling=replace(made.sampling, max_new_tokens=128))
    return CellSpec(
        task="code_micro" if programs else "gsm_micro",
        model="micro-code" if programs else made.population[0].model if made.population else model,
        attack=registry.canonical("attack", attack),
        defense=registry.canonical("defense", defense),
        role=role,  # type: ignore[arg-type]
        seed=seed,
        swarm=made,
        rounds=rounds,
        evaluation=Evaluation(every=20, completions=512, final=1024),
        threads=1,
    )


def slowed(made: CellSpec) -> CellSpec:
    """The cell at a third of its learning rate and half as long again."""
    learner = replace(made.swarm.learner, learning_rate=made.swarm.learner.learning_rate / 3)
    return replace(made, rounds=made.rounds * 3 // 2, swarm=replace(made.swarm, learner=learner))


def lists(seeds: Sequence[int]) -> dict[str, list[CellSpec]]:
    """All cells by the name of their question."""
    upright: dict[str, Any] = {"topology": "vertical"}
    told: dict[str, Any] = {"population": SIZES, "logprobs": "reported"}
    late: dict[str, Any] = {"delay": LATE, "logprobs": "reported"}
    behind: dict[str, Any] = {"delay": DelaySpec(rounds=4), "logprobs": "reported"}
    math, dos = plain.half("equations"), plain.half("dos(samples=16)")
    code = plain.half("code_injection(replaced='printed')")
    delayed = [
        made
        for seed in seeds
        for made in (
            cell(role="control", seed=seed),
            cell(role="control", seed=seed, loss="gepo", **late),
            cell(role="control", seed=seed, loss="grpo", **late),
            cell(role="control", seed=seed, loss="grpo", delay=LATE),
        )
    ]
    return {
        # Two sizes together, under two learners, and each size alone.
        "clean": [
            made
            for seed in seeds
            for made in (
                cell(role="control", seed=seed, model="micro-math-small"),
                cell(role="control", seed=seed),
                cell(role="control", seed=seed, loss="ftis", **told),
                cell(role="control", seed=seed, population=SIZES),
            )
        ],
        # Up to 32 rounds late, and not late.
        "delay": delayed,
        # The same at a third of the learning rate, half as long again: is it how far weights go in 32 rounds?
        "delay_slow": [slowed(made) for made in delayed],
        # Who reports how probable its poison was, and who works that out.
        "misreport": [
            made
            for seed in seeds
            for made in (
                cell(seed=seed, loss="ftis", **told),
                cell("misreport(attack='text')", seed=seed, loss="ftis", **told),
                cell("misreport(attack='text')", seed=seed, loss="ftis", population=SIZES, logprobs="recomputed"),
            )
        ],
        # The paper's four attacks, learner by learner. There is one model that writes programs: it is four rounds late.
        "learners": [
            made
            for seed in seeds
            for loss in LEARNERS
            for made in (
                cell(seed=seed, loss=loss, **told),
                cell(math, seed=seed, loss=loss, rounds=40, **told, **upright),
                cell(dos, seed=seed, loss=loss, **told, **upright),
                cell(code, seed=seed, loss=loss, **behind, **upright),
            )
        ],
        # The two learners of `learners` whose authors set them otherwise than our defaults, as they did: GSPO's clip
        # (arXiv:2507.18071) and GEPO's KL term.
        "published": [
            made
            for seed in seeds
            for loss, learner in PUBLISHED.items()
            for made in (
                cell(seed=seed, loss=loss, learner=learner, **told),
                cell(math, seed=seed, loss=loss, learner=learner, rounds=40, **told, **upright),
                cell(dos, seed=seed, loss=loss, learner=learner, **told, **upright),
            )
        ],
        # MATH again, where a large ratio teaches nothing from a negative advantage either.
        "two_sided": [
            cell(math, seed=seed, loss=loss, rounds=40, learner={"delta": 4.0}, **told, **upright)
            for seed in seeds
            for loss in ("grpo", "dr_grpo", "dapo")
        ],
        # The guard for such swarms, against what is above without it (`misreport`, and `learners` under ftis).
        "guarded": [
            made
            for seed in seeds
            for made in (
                cell(role="control", seed=seed, loss="ftis", defense=GUARD, **told),
                cell("misreport(attack='text')", seed=seed, loss="ftis", defense=GUARD, **told),
                cell(math, seed=seed, loss="ftis", rounds=40, defense=GUARD, **told, **upright),
                cell(dos, seed=seed, loss="ftis", defense=GUARD, **told, **upright),
                cell(dos, "control", seed=seed, loss="ftis", **told, **upright),
                cell(code, seed=seed, loss="ftis", defense=GUARD, **behind, **upright),
            )
        ],
        # A node that crashes in round 20 and comes back in round 25, from whom, and how all learn from each other then.
        "crashes": [
            cell(
                "poisoned_peer(attack='text', quiet=True)", role, seed, rounds=50, loss=loss, nodes=4, malicious=2,
                churn=ChurnSpec((20,), 5, recovery), logprobs=logprobs,
            )
            for seed in seeds for recovery in ("peer", "neighbours")
            for role, loss, logprobs in (
                ("control", "grpo", "none"), ("attack", "grpo", "none"), ("attack", "ftis", "reported"),
            )
        ],
        # The same, where the node checks what it is offered.
        "checked": [
            cell(
                "poisoned_peer(attack='text', quiet=True)", "attack", seed, rounds=50, loss=loss, nodes=4, malicious=2,
                churn=ChurnSpec((20,), 5, recovery, tolerance=0.05), logprobs=logprobs,
            )
            for seed in seeds for loss, logprobs in (("grpo", "none"), ("ftis", "reported"))
            for recovery in ("peer", "neighbours")
        ],
        # One attacker of four that offers four times as much, with and without a cap.
        "flood": [
            cell(plain.half(attack), seed=seed, sharing=SharingSpec(4, 4, cap), **upright)
            for seed in seeds
            for attack, cap in (("text", None), ("flood(attack='text')", None), ("flood(attack='text')", 2))
        ],
        "stale": [
            cell(plain.half(attack), seed=seed, loss="gepo", defense=defense, **late, **upright)
            for seed in seeds
            for attack, defense in (
                ("text", "none"), ("stale_replay(attack='text')", "none"), ("stale_replay(attack='text')", "staleness"),
            )
        ],
        "late_poison": [
            cell("late_poison(attack='text', start=20)", seed=seed, defense=defense)
            for seed in seeds
            for defense in ("none", "similarity", "reputation(defense='similarity')")
        ],
        "domains": [cell(math, role, seed, loss="ftis", population=DOMAINS, logprobs="reported", **upright)
                    for seed in seeds for role in ("control", "attack")],
    }  # fmt: skip


def line(spec: CellSpec, record: Record) -> str:
    """One Markdown line of a cell."""
    swarm = spec.swarm
    about = [swarm.learner.loss, swarm.logprobs, " + ".join(each.label for each in swarm.population) or spec.model]
    about += [f"delay {swarm.delay.kind} {swarm.delay.rounds}"] if swarm.delay else []
    about += [f"recovery from {swarm.churn.recovery}"] if swarm.churn else []
    if swarm.sharing:
        about.append(f"sharing {swarm.sharing.local} + {swarm.sharing.external}, cap {swarm.sharing.per_sender}")
    if record.status != "ok":
        return f"| {spec.label} | {', '.join(about)} | failed: {record.error} |"
    curve = ", ".join(f"{p.round}: {p.value:.3g}" for p in record.curves["eval_asr"] if p.value is not None)
    names = [name for name in sorted(record.scores) if name.startswith(("asr", "clean_reward"))]
    scores = "; ".join(f"{name} {plain.interval(record.scores[name])}" for name in names)
    return f"| {spec.label} | {', '.join(about)} | {curve} | {scores} |"


class Progress(plain.Progress):
    """Says what finishes."""

    def finished(self, spec: CellSpec, record: Record) -> None:
        """The cell's line."""
        print(line(spec, record), flush=True)


def cost(rounds: int) -> None:
    """Print how long a round of 2 and 3 cohorts takes in rounds of one, played in turn: median and range."""
    swarms = {
        k: build_swarm(cell(role="control", nodes=6, malicious=0, population=classes_of_one(k), prompts=16))
        for k in (1, 2, 3)
    }
    for swarm in swarms.values():
        swarm.round(1)  # warm
    ratios: dict[int, list[float]] = {2: [], 3: []}
    for number in range(2, rounds + 2):
        seconds = {}
        for k, swarm in swarms.items():
            began = time.perf_counter()
            swarm.round(number)
            seconds[k] = time.perf_counter() - began
        for k, found in ratios.items():
            found.append(seconds[k] / seconds[1])
    for k, found in ratios.items():
        print(
            f"{k} cohorts: {median(found):.2f} [{min(found):.2f}, {max(found):.2f}] rounds of one, {rounds} rounds each"
        )


def classes_of_one(k: int) -> tuple[NodeClass, ...]:
    """k classes that start from the same model, so that cohorts differ in nothing but their number."""
    return tuple(NodeClass("micro-math", 1 / k) for _ in range(k))


def main() -> None:
    """Run the lists that the command line names."""
    parser = plain.arguments(__doc__, "runs/heterogeneous")
    parser.add_argument("--cost", type=int, metavar="ROUNDS", help="only time rounds of one, two and three cohorts")
    asked = parser.parse_args()
    if asked.cost:
        cost(asked.cost)
    else:
        columns = ("cell", "swarm", "outcome by round", "last")
        plain.run_lists(parser, asked, lists(range(asked.seeds)), Progress(), columns)


if __name__ == "__main__":
    main()
