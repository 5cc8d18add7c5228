"""Cells whose node is a pipeline, checked from what they recorded.

Their rounds are those of one honest node, which the engine computes again from the recorded tokens. What passed between
stages is too large to be recorded, so verdicts and weights follow from nothing here: only running a cell again tells
whether they are true. But which stage is malicious, which are lost and skipped, and which scores follow is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from thiefbench.defenses.stages.honest_stages import REASON
from thiefbench.engine.keys import generator
from thiefbench.leaderboard.isolation.isolated_stage_check import ACTIONS
from thiefbench.leaderboard.isolation.limits import STAGE_CHECK_CAPS
from thiefbench.pipeline.compatibility import NONE
from thiefbench.pipeline.report import StageRow
from thiefbench.pipeline.spec import PipelineSpec
from thiefbench.pipeline.stages import lost, skip_schedule
from thiefbench.suite.analysis.ranking import anchor_of
from thiefbench.suite.scenario import CellSpec


class StagesError(Exception):
    """Recorded stages are inconsistent with any valid run. The message is a clause that says why."""


def check_stages(spec: CellSpec, rows: Sequence[StageRow], learned: Mapping[int, int] | None = None) -> None:
    """Check that what became of a cell's stages could have become of them, whatever the check said.

    Args:
        spec: the cell.
        rows: in stored order.
        learned: how many completions each round learned from; None if that is not known.

    Raises:
        StagesError: it could not.
    """
    pipeline = spec.pipeline
    if pipeline is None:
        raise StagesError("its node is not a pipeline")
    places = [(number, stage) for number in range(1, spec.rounds + 1) for stage in range(1, pipeline.stages + 1)]
    if [(row.round, row.stage) for row in rows] != places:
        raise StagesError("its stages are not those of its rounds: each once in every round, in order")
    malicious = None if spec.role == "control" else pipeline.malicious
    for number, of_round in enumerate(_rounds(rows, pipeline), 1):
        gone = lost(pipeline.stages, pipeline.losses, generator(spec.seed, "lost", number))
        skips = skip_schedule(
            pipeline.stages, pipeline.skipped, pipeline.microbatches, generator(spec.seed, "skipped", number)
        )
        reached = {row.passes + row.skipped for row in of_round}
        for row in of_round:
            labels = (row.malicious, row.lost)
            wrong = (
                "" if labels == (row.stage == malicious, row.stage - 1 in gone) else "other labels than its seed gives"
            )
            wrong = wrong or _wrong(row, spec.role, skips) or _not_of_anchor(row, spec)
            if not wrong and len(reached) > 1:
                wrong = "another number of passes than the other stages have"
            wrong = wrong or _other_bytes(row, of_round[0])
            if wrong:
                raise StagesError(f"round {row.round}, stage {row.stage}: {wrong}")
        (passes,) = reached
        if sum(row.skipped for row in of_round) != passes * pipeline.skipped:
            raise StagesError(f"round {number}: {pipeline.skipped} of the stages skip every pass, and not so many do")
        # A pass has one completion at least, or their prompts alone.
        if learned is not None and passes > 2 * learned.get(number, 0):
            raise StagesError(f"round {number}: more passes than the completions that it learned from give")
        if any(row.malicious and row.action == "reject" for row in of_round):
            malicious = None  # an honest participant runs it from then on


def _rounds(rows: Sequence[StageRow], pipeline: PipelineSpec) -> list[Sequence[StageRow]]:
    size = pipeline.stages
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def _wrong(row: StageRow, role: str, skips: Sequence[frozenset[int]]) -> str:
    """What no valid run can record of a stage, whatever the check; empty if nothing.

    Args:
        row: of the stage.
        role: of the cell; what a stage sends is refused under attack alone.
        skips: the stages that every microbatch of the round skips, numbered from 0.
    """
    if row.action not in ACTIONS:
        return f"a stage check gives no verdict {row.action!r:.40}"
    if row.score is not None and not math.isfinite(row.score):
        return "a score that is not finite"
    if not (math.isfinite(row.moved) and row.moved >= 0):
        return "weights that moved by no finite length"
    if min(row.passes, row.skipped, row.refused, row.bytes) < 0 or row.refused > row.passes:
        return "a count that no run gives"
    if row.altered and not row.malicious:
        return "an honest stage that changed its weights beyond the update"
    if bool(row.refused) != bool(row.refusal) or (row.refused and not (row.malicious and role == "attack")):
        return "only a malicious stage's activations are refused, and with a reason"
    if row.skipped and not any(row.stage - 1 in skipped for skipped in skips):
        return "passes that skipped a stage which none skips"
    if row.passes and all(row.stage - 1 in skipped for skipped in skips):
        return "passes that reached a stage which all skip"
    if len(row.reason) > STAGE_CHECK_CAPS.reason:
        return f"a reason of more than {STAGE_CHECK_CAPS.reason} characters"
    return ""


def _other_bytes(row: StageRow, first: StageRow) -> str:
    """What the bytes that a stage sent cannot be beside those of the first one, which every pass reaches."""
    sent = row.passes - row.refused
    if bool(sent) != bool(row.bytes) or row.bytes > first.bytes or (sent == first.passes and row.bytes != first.bytes):
        return "other bytes than the passes that it sent have"
    return ""


def _not_of_anchor(row: StageRow, spec: CellSpec) -> str:
    """What an anchor that knows nothing, or the labels alone, cannot have made of a stage; empty if nothing."""
    if spec.defense == NONE and (row.action != "accept" or row.reason or row.score is not None or row.recomputed):
        return "a verdict, but there is no stage check in this cell"
    if anchor_of(spec.defense) == "oracle":
        if row.score is not None or row.recomputed:
            return "the oracle gives no score and has nothing repeated"
        rejected = row.malicious and spec.role == "attack"
        if (row.action, row.reason) != (("reject", REASON) if rejected else ("accept", "")):
            return "the oracle rejects exactly the malicious stage"
    return ""
