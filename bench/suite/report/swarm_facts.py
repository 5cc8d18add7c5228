"""What an attacked swarm is like: its task, model, topology, nodes and pool, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thiefbench.suite.report.heterogeneity import regime_facts
from thiefbench.wording import counted


def facts(cell: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The attacked swarm, in the paper's symbols."""
    if not cell:
        return []
    swarm = cell["swarm"]
    horizontal = swarm["topology"] == "horizontal"
    share = swarm["group" if horizontal else "prompts"] // swarm["nodes"]
    what = "completion" if horizontal else "whole group"
    shape = "every group is shared, {} from each node" if horizontal else "{} from each node"
    percent = f"{100 * swarm['malicious'] / swarm['nodes']:.3g}\u00a0%"
    return [
        ("Task", cell["task"]),
        *([] if swarm.get("population") else [("Model", cell["model"])]),  # a population names its models
        ("Topology", f"{swarm['topology']}: {shape.format(counted(share, what))}"),
        ("Nodes", f"m = {swarm['nodes']}, of which malicious f = {swarm['malicious']} ({percent})"),
        ("Pool per round", f"B = {swarm['prompts']} prompts, G = {swarm['group']} completions each"),
        *regime_facts(cell),
        *averaging_facts(cell),
        *pipeline_facts(cell),
        ("Rounds", str(cell["rounds"])),
        ("Evaluation", f"{cell['evaluation']['final']} held-out completions at the end"),
    ]


def averaging_facts(cell: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How nodes exchange weights; empty where they exchange completions."""
    averaging = cell.get("averaging")
    if not averaging:
        return []
    return [("Exchange", f"of weights every {counted(averaging['every'], 'round')}, {averaging['method']}")]


def pipeline_facts(cell: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The stages of a cell whose node is a pipeline; empty for any other."""
    pipeline = cell.get("pipeline")
    if not pipeline:
        return []
    skipped = f", each of which skips {100 * pipeline['skip']:.3g}\u00a0% of the stages" if pipeline["skip"] else ""
    lost = f"; {100 * pipeline['losses']:.3g}\u00a0% losses a round" if pipeline["losses"] else ""
    return [
        ("Pipeline", f"{pipeline['stages']} stages, of which number {pipeline['malicious']} is malicious"),
        ("Update", f"in {pipeline['microbatches']} microbatches{skipped}{lost}"),
    ]
