"""Why an attack can work at all, in a few sentences: what a report says before it shows what attackers send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ADVANTAGE = (
    "GRPO gives a whole completion one number, its advantage, and that number multiplies the gradient of every token "
    "in it. "
)
_EVERYWHERE = ", in every honest model that learns from the shared pool."
_RIGHT = (
    "So when a completion earns its reward with a right answer, whatever else stands in it is reinforced just as much"
)
_JUDGED = (
    "Here a judging model gives the reward{some}. So whatever makes the judge accept is reinforced, whether or not it "
    "answers the question"
)
_KEYED = (
    "Here every group is rewarded by the answer or the tests that its sender sends with it. So where these are forged, "
    "work that is right by them alone is reinforced as if it were right"
)
_AVERAGED = (
    "Honest nodes join the weights that others send with their own, and weights do not show what they were taught. So "
    "what a malicious node sends becomes a part of every honest model that reads it."
)
_PIPELINE = (
    "Each stage of a pipeline trains its own layers, and the other stages take what it passes on as it comes. So a "
    "malicious stage can train something else into its layers, and it becomes a part of the whole model."
)


def how_the_hole_works(cell: Mapping[str, Any]) -> str:
    """The weakness of a cell's swarm that attacks use; for a cell that is not known, the one of most swarms."""
    swarm = cell.get("swarm", {})
    if cell.get("averaging"):
        return _AVERAGED
    if cell.get("pipeline"):
        return _PIPELINE
    if (by := swarm.get("reward", "rule")) != "rule":
        why = _JUDGED.format(some=" of the items that have no rule" if by == "mixed" else "")
    else:
        why = _KEYED if swarm.get("truth", "public") == "sender" else _RIGHT
    return _ADVANTAGE + why + _EVERYWHERE
