"""What a node receives: on paper for large swarms, and counted in a simulated one.

    python tests/benchmarks/exchange_bytes.py [--nodes 1000] [--parameters 1.5e9]    # at once
    python tests/benchmarks/exchange_bytes.py --simulate 64                          # about two minutes of one core

The simulation plays two rounds of a swarm of tiny models with random weights, a quarter of the nodes malicious, with an
exchange after each, and compares the bytes in its rows with the formula.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

FLOAT, TOKEN = 4, 4
"""Bytes of a number of a vector, and of a token id."""


def received(nodes: int, parameters: float) -> dict[str, float]:
    """Bytes that one node receives per exchange, by method."""
    return {
        "mean, diloco: every vector": (nodes - 1) * parameters * FLOAT,
        "mean, diloco: ring all-reduce, no vector seen": 2 * (nodes - 1) / nodes * parameters * FLOAT,
        "noloco: two vectors of one partner": 2 * parameters * FLOAT,
    }


def beside(nodes: int, hidden: int = 1536, groups: int = 8, group: int = 12, tokens: int = 256) -> dict[str, float]:
    """Bytes that one node receives per round where completions or activations are exchanged.

    Args:
        nodes: of the swarm.
        hidden: of a model of 1.5 billion parameters (Qwen2.5-1.5B).
        groups, group, tokens: every node answers so many prompts, each with so many completions of so many tokens.
    """
    mine = groups * group * tokens
    return {
        "completions: all others', token ids": (nodes - 1) * mine * TOKEN,
        "pipeline stage: activations and their gradients, bfloat16": 2 * mine * hidden * 2,
    }


def simulate(nodes: int) -> None:
    """Play a swarm of so many nodes by every method, and print what its rows say."""
    from tests.bench import tiny
    from tests.bench.averaging.test_averaging import suite
    from thiefbench.averaging.spec import AveragingSpec
    from thiefbench.averaging.swarm import AveragingSwarm, flat
    from thiefbench.engine.spec import LearnerSpec, SwarmSpec
    from thiefbench.suite.execution.cell_run import build_swarm
    from thiefbench.tasks.base import Sampling

    spec = SwarmSpec(
        topology="vertical", nodes=nodes, malicious=nodes // 4, prompts=nodes, group=4,
        sampling=Sampling(max_new_tokens=12), learner=LearnerSpec(learning_rate=1e-2),
    )  # fmt: skip
    for method, rule in (("diloco", "coordinate_median"), ("noloco", "centered_clipping")):
        averaging = AveragingSpec(method, every=1)  # type: ignore[arg-type]
        cells = tiny.cells(suite(rule, swarm=spec, averaging=averaging))
        swarm = build_swarm(next(cell for cell in cells if cell.role == "attack"))
        assert isinstance(swarm, AveragingSwarm)
        parameters, began = len(flat(swarm.cohort.masters)), time.perf_counter()
        for number in (1, 2):
            swarm.round(number)
        by_node: dict[tuple[int, int], int] = {}
        for row in swarm.exchanges:
            by_node[row.exchange, row.receiver] = by_node.get((row.exchange, row.receiver), 0) + row.bytes
        expected = [value for name, value in received(nodes, parameters).items() if name.startswith(("mean", "noloco"))]
        wanted = expected[0] if method == "diloco" else expected[-1]
        assert set(by_node.values()) == {int(wanted)}, "the rows hold what the formula says"
        print(
            f"{method}, {rule}: {nodes} nodes of {parameters:,} parameters, {len(swarm.exchanges):,} vectors in two "
            f"exchanges, {int(wanted):,} bytes per node and exchange, {time.perf_counter() - began:.0f} s"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--parameters", type=float, default=1.5e9)
    parser.add_argument("--simulate", type=int, default=0, metavar="NODES")
    asked = parser.parse_args()
    if asked.simulate:
        simulate(asked.simulate)
        return
    print(f"{asked.nodes:,} nodes, {asked.parameters:.3g} parameters in float32")
    for name, count in received(asked.nodes, asked.parameters).items():
        print(f"per exchange | {name} | {count / 1e9:,.2f} GB")
    for name, count in beside(asked.nodes).items():
        print(f"per round | {name} | {count / 1e9:,.3f} GB")


if __name__ == "__main__":
    main()
