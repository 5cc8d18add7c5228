"""The games of a check: a sample's rounds and further ones, which an instance of a defense judges in turn."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thiefbench.defenses.base import PastRound, PoolCompletion, Verdict
from thiefbench.leaderboard.checking import probes
from thiefbench.leaderboard.checking.samples import Sample, finished
from thiefbench.leaderboard.isolation.isolated import DefenseError, Isolated
from thiefbench.leaderboard.isolation.limits import POOL
from thiefbench.leaderboard.isolation.unconfined import Unconfined

ROUNDS_OF_ALL, ROUNDS_OF_FIRST = 12, 64
"""Rounds that are played with every sample, and with the first one, if its suite has no more."""
RESTARTS = (1, 6)
"""Rounds that a restart follows, beside one that is drawn by the submission's content."""
_GROUPS = 2
"""Groups in the pool of each round after those of the sample, which cost less than whole pools; later ones have one."""

Candidate = Isolated | Unconfined


@dataclass(frozen=True)
class Game:
    """A sample with further rounds.

    Attributes:
        pools: of every round: those of the sample, and then parts of them in turn. In the game with the most rounds,
            one pool has the size of a suite's, and in one all completions are equal.
        restarts: the rounds that a restart follows, each with the last round that is compared after it.
    """

    sample: Sample
    pools: Sequence[Sequence[PoolCompletion]]
    restarts: Mapping[int, int]


@dataclass(frozen=True)
class Played:
    """What one instance did in a game, in which its own verdicts were its history.

    Attributes:
        verdicts: on every round's pool.
        history: the finished rounds.
        states: what `state()` returned at the end of rounds that a restart follows, and of the last ones compared.
        drew: for every round, whether it drew from `view.rng`.
    """

    verdicts: list[list[Verdict]] = field(default_factory=list)
    history: list[PastRound] = field(default_factory=list)
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    drew: list[bool] = field(default_factory=list)


def game_of(sample: Sample, rounds: int, rng: random.Random) -> Game:
    """A sample's rounds and further ones: a few groups of its own rounds in turn.

    Args:
        sample: the sample.
        rounds: how many there will be.
        rng: draws the round of a third restart and, if there are more than `ROUNDS_OF_ALL`, those of the two
            unusual pools.
    """
    pools = [list(pool) for pool in sample.rounds]
    for number in range(len(pools), rounds):
        pool = sample.rounds[number % len(sample.rounds)]
        groups = sorted({offered.group for offered in pool})
        begin = number // len(sample.rounds) * _GROUPS
        taken = {groups[(begin + more) % len(groups)] for more in range(_GROUPS if number < ROUNDS_OF_ALL else 1)}
        pools.append([offered for offered in pool if offered.group in taken])
    early = min(rounds, ROUNDS_OF_ALL)
    restarts = dict.fromkeys(RESTARTS, early)
    if rounds > early:
        large, equal = rng.sample(range(early, rounds), 2)
        pools[large] = sample.full(POOL)
        pools[equal] = probes.equal(sample.rounds[0], sample.sampling.max_new_tokens)
        restarts[rng.randrange(early, rounds - 1)] = rounds
    else:
        restarts[rng.choice([after for after in range(1, rounds - 1) if after not in RESTARTS])] = rounds
    return Game(sample, pools, restarts)


def play_game(defense: Candidate, game: Game, history: Sequence[PastRound] = ()) -> Played:
    """Let one instance judge a game's rounds, after those of `history`.

    Raises:
        DefenseError: it fails; the message says in which round.
    """
    played = Played(history=list(history))
    sample = game.sample
    for number, pool in enumerate(game.pools[len(history) :], len(history) + 1):
        view = sample.view(defense, number, pool, played.history)
        before = view.rng.getstate()
        try:
            verdicts = defense.inspect(view)
            if number in {*game.restarts, *game.restarts.values()}:
                played.states[number] = defense.state()
        except DefenseError as error:
            raise DefenseError(f"in round {number} of {sample.name}: {error}") from error
        played.verdicts.append(verdicts)
        played.drew.append(view.rng.getstate() != before)
        played.history.append(finished(view, verdicts))
    return played
