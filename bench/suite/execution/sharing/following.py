"""Parts of a swarm that follows recorded rounds: what its attack asked, and copies on which its attack rehearses.

Up to its first query, what an attack submits does not depend on the defense. So if it queried nothing in a recorded
round, it would query nothing in the same round of another cell, and its submissions can be taken over as those of an
attack that may not query.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from thiefbench.attacks.base import Attack, ThreatModel
from thiefbench.engine.backends.followed import FollowingBackend
from thiefbench.engine.colluders import Colluders
from thiefbench.engine.context import SwarmContext
from thiefbench.engine.keys import key
from thiefbench.engine.rehearsal import Rounds, SwarmRehearsal
from thiefbench.engine.round_plan import MaliciousWork, RoundPlan
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.engine.topology import Assignment
from thiefbench.engine.transport import Offer
from thiefbench.engine.views.attacker import DefenseQueries


class _WatchedColluders(Colluders):
    """Malicious nodes of whom it is known whether they have queried the defense in the last round."""

    asked = False
    _last: DefenseQueries | None = None

    def work(self, plan: RoundPlan, assignments: Sequence[Assignment], honest: Sequence[Offer]) -> MaliciousWork:
        self._last = None
        work = super().work(plan, assignments, honest)
        self.asked = self._last is not None and bool(self._last._asked)
        return work

    def _queries(self, plan: RoundPlan, assignments: Sequence[Assignment], honest: Sequence[Offer]) -> DefenseQueries:
        self._last = super()._queries(plan, assignments, honest)
        return self._last


class WatchingBackend(FollowingBackend):
    """Also takes over submissions of an attack that may query the defense and did not."""

    def attach(self, context: SwarmContext) -> None:
        """Take the swarm's parts."""
        super().attach(context)
        self.colluders: _WatchedColluders = _WatchedColluders(context, self)

    @property
    def asked(self) -> bool:
        """Whether the attack queried the defense in the last round; False if its submissions were taken over."""
        return self.colluders.asked

    @property
    def draws_alone(self) -> bool:
        """Whether the attack's submissions depend on the weights and never on the defense."""
        threat = self.context.attack.threat
        return self.context.role != "control" and threat.policy and not threat.queries

    def follow(self, pool: Sequence[CompletionRow], unasked: bool = False) -> None:
        """Play the next round with the completions of a recorded pool; with none, sample from now on.

        Args:
            pool: its rows.
            unasked: whether the attack queried nothing in the recorded round, keeps nothing from round to round, and
                its submissions have their slots' seeds.
        """
        super().follow(pool)
        threat = self.context.attack.threat  # which may be another one after a rehearsal
        self._asks = self.context.role != "control" and threat.queries > 0 and not unasked
        self.takes_submissions = self.context.role != "control" and threat.policy and not self._asks

    def malicious_work(
        self, plan: RoundPlan, assignments: Sequence[Assignment], honest: Sequence[Offer]
    ) -> MaliciousWork:
        """The attack's submissions, or the recorded ones."""
        self.colluders.asked = False
        return super().malicious_work(plan, assignments, honest)


class RehearsingSwarm(Swarm):
    """A swarm whose attack can rehearse before round 1 is begun, and on other copies.

    Attributes:
        rehearses_on: makes the copies; None for those that every swarm makes.
    """

    rehearses_on: Callable[[Attack], Rounds] | None = None

    def prepare(self) -> None:
        """Let the attack rehearse, unless it is ready to play."""
        if not self.prepared:
            copies = self.rehearses_on or self._copy
            self._play_as(self.attack.prepared(SwarmRehearsal(self.spec, self.task, copies)))

    def copied(self, attack: Attack, backend: FollowingBackend) -> Swarm:
        """A copy like those that every swarm makes (`Swarm._copy`), with another backend."""
        context = self.context
        kinds = range(len(self.spec.population) or 1)
        copied = Swarm(
            self.spec, "attack", [copy.deepcopy(self.population.first(kind).policy) for kind in kinds], self.task,
            attack, copy.deepcopy(self.cohort.defense), key(self.seed, "rehearsal"), context.judge, backend,
            context.reward_judge,
        )  # fmt: skip
        copied._prepared = True  # no rehearsals within a rehearsal
        return copied


def seeds_unrecorded(spec: SwarmSpec, threat: ThreatModel) -> bool:
    """Whether submissions would be taken over that may have other seeds than their slots'; rows hold no seeds."""
    return spec.seeds == "announced" and threat.policy and not threat.queries
