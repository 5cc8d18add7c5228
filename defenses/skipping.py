"""The action "skip", beside those of `thiefbench.defenses.base.Action`.

A skipped completion stays in its group's mean and standard deviation with its own reward, but nothing is learned from
it. This is the rule of prime-rl's former rollout filters: "Reward is kept as-is for baseline calculation"
(`orchestrator/filters.py` before commit 61f2448). It lies between "accept" and "drop": the others of the group get the
advantages that they would have beside an accepted completion. Like a dropped one, it is not among the rows over which a
loss is a mean, it counts as rejected, and whatever the verdict, a refused completion leaves its group.
"""

from __future__ import annotations

from typing import Final, cast, get_args

from thiefbench.defenses.base import Action

# Not in `Action` itself: the contract's code is part of every defense's identity, and its cells are still valid.
SKIP: Final = cast(Action, "skip")
"""The action, as in ``Verdict(SKIP)``."""
ACTIONS: Final = (*get_args(Action), SKIP)
"""All actions of a verdict."""
