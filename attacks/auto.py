"""`auto`: the strongest of a fixed set of attacks against the defense that it faces, as AutoAttack is for images."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from thiefbench.attacks.adaptive import BUDGET, Adaptive
from thiefbench.attacks.base import Attack, AttackerView, ChoiceView, Poison, Rehearsal, ThreatModel, Tried
from thiefbench.attacks.completions import highest_outcome, with_forms
from thiefbench.attacks.contrast import Contrast
from thiefbench.attacks.dodge import Dodge
from thiefbench.attacks.item_grind import ItemGrind
from thiefbench.attacks.near_ties import NearTies
from thiefbench.attacks.own import Own
from thiefbench.attacks.prefill import Prefill
from thiefbench.attacks.sift import Sift
from thiefbench.attacks.spec import AttackSpec
from thiefbench.attacks.varied import Varied
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.tasks.base import Ask, Completion, Item, Task

ROUNDS, COMPLETIONS = 8, 256
"""Rounds that every member is tried for, and completions that are evaluated after them."""
NAMES = 1_000_000
"""Pseudonyms of a malicious node, for members that use many."""


class Auto(AttackWrapper):
    """Try each of a fixed set of attacks on copies of the swarm before round 1, then play the one that got furthest.

    Like AutoAttack (arXiv:2003.01690) it has nothing to tune. All members have the same goal:

    1. "naive": the attack itself; in the vertical topology with gibberish in half of its slots ("gibberish");
    2. "contrast": with plausible decoys;
    3. "own": in the policy's own right completions and inside its support, with decoys;
    4. "prefill": with the policy continuing after the payload, with decoys;
    5. "support": the payload word by word as it enters the sampler's support (`adaptive(mode="logit")`), with decoys;
    6. "black-box": reworded until the defense accepts it (`adaptive`), with decoys;
    7. "dodge": reworded in the policy's own completions until the defense accepts it, with decoys;
    8. "names", "own names", "dodge names": 2, 3 and 7 under a million pseudonyms;
    9. "sift": honest draws that suit the attack;
    10. "near ties": completions that a replay with a tolerance of 0.7 logits accepts as honest draws;
    11. "items": every honest draw of items that are picked because their draws suit the attack.

    3 to 7 put a payload into solutions. An attack that samples its poison from the policy, such as `dos`, has only the
    other members. 11 takes an attack that fits the vertical topology, and where nodes may not pick their items it only
    sends honest draws.

    A member that does not fit the swarm is left out. Each plays 8 rounds on a copy, and 256 completions are evaluated.
    Members within two standard errors of the highest outcome count as equal; of these, the one that taught most
    (`Tried.taught`) is played. This costs up to 104 rounds and 13 evaluations of 256 completions once per cell, and at
    most 32 queries per slot and round.

    Args:
        attack: the goal. Whichever member is played, the outcome is the highest among the goal's forms.
    """

    name = "auto"

    def __init__(self, attack: Attack | str = "equations") -> None:
        super().__init__(attack)
        self._played: Attack | None = None
        self._choice: dict[str, str] = {}

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """Everything that a member is granted, and a rehearsal."""
        goal = self.attack.threat
        return replace(goal, policy=True, queries=max(goal.queries, BUDGET), beacon=True, rehearsal=True)

    @property
    def variants(self) -> AttackSpec:  # type: ignore[override]  # of most attacks a constant
        """Those of the member that is played."""
        return AttackSpec() if self._played is None else self._played.variants

    def members(self) -> dict[str, Attack]:
        """The attacks, by the names above, in the order in which they are tried."""
        goal = self.attack
        members: dict[str, Attack] = {
            "naive": goal, "gibberish": Varied(goal, gibberish=0.5), "contrast": Contrast(goal),
            "names": Varied(Contrast(goal), identities=NAMES), "sift": Sift(goal), "near ties": NearTies(goal),
        }  # fmt: skip
        if "vertical" in goal.threat.topologies:
            members["items"] = ItemGrind(goal)
        if goal.threat.policy:
            return members
        own, dodge = Contrast(Own(goal)), Contrast(Dodge(goal))
        return members | {
            "own": own, "prefill": Contrast(Prefill(goal)), "support": Contrast(Adaptive(goal, mode="logit")),
            "black-box": Contrast(Adaptive(goal)), "dodge": dodge, "own names": Varied(own, identities=NAMES),
            "dodge names": Varied(dodge, identities=NAMES),
        }  # fmt: skip

    def prepared(self, rehearsal: Rehearsal) -> Attack:
        """This attack, set to play the best member."""
        left_out = "naive" if rehearsal.topology == "vertical" else "gibberish"
        tried = {
            name: rehearsal.play(self._playing(name), ROUNDS, COMPLETIONS)
            for name, member in self.members().items()
            if name != left_out and rehearsal.possible(member)
        }
        return self._playing(best(tried), tried)

    def recalled(self, described: Mapping[str, str]) -> Attack:
        """This attack, set to play the member that was chosen.

        Raises:
            ValueError: there is no such member.
        """
        if described.get("member") not in self.members():
            raise ValueError(f"auto: its member is one of {', '.join(self.members())}")
        recalled = self._playing(described["member"])
        recalled._choice["rehearsal"] = described.get("rehearsal", "")
        return recalled

    def _playing(self, name: str, tried: Mapping[str, Tried] | None = None) -> Auto:
        playing = copy.copy(self)
        playing._played = self.members()[name]
        said = (f"{each} {it.outcome:.3f} ({it.taught:.3f} taught)" for each, it in (tried or {}).items())
        playing._choice = {"member": name, "rehearsal": ", ".join(said)}
        return playing

    def draw(self, rng: random.Random) -> Self:
        """This attack with the goal's drawn payload; the chosen member stays."""
        return super().draw(rng) if self._played is None else copy.copy(self)

    def draw_for(self, task: Task, rng: random.Random) -> Self:
        """This attack with the goal's payload for a task; the chosen member stays."""
        return super().draw_for(task, rng) if self._played is None else copy.copy(self)

    def describe(self) -> dict[str, str]:
        """The goal's payload and, once chosen, the member, with all members' results in the rehearsal."""
        return {**self.attack.describe(), **self._choice}

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """The member's."""
        return (self._played or self.attack).poison(view)

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """The member's."""
        return (self._played or self.attack).placebo(view)

    def choose_items(self, items: Sequence[Item], count: int, rng: random.Random) -> Sequence[Item]:
        """The member's choice."""
        return (self._played or self.attack).choose_items(items, count, rng)

    def choose_items_from(self, items: Sequence[Item], view: ChoiceView) -> Sequence[Item]:
        """The member's choice."""
        return (self._played or self.attack).choose_items_from(items, view)

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float | None:
        """The highest outcome among the goal and its other forms; None where every form's outcome is None."""
        return highest_outcome(with_forms(self.attack, BUDGET), item, completion, ask)


def best(tried: Mapping[str, Tried]) -> str:
    """Of the members within two standard errors of the highest outcome, the one that taught most; of equals, the first.

    Raises:
        ValueError: nothing was tried.
    """
    if not tried:
        raise ValueError("auto: no member fits the swarm")
    highest = max(tried.values(), key=lambda each: each.outcome)
    near = {name: it for name, it in tried.items() if it.outcome >= highest.outcome - 2 * _finite(highest.error)}
    return max(near, key=lambda name: near[name].taught)


def _finite(error: float) -> float:
    return error if error < float("inf") else 0.0
