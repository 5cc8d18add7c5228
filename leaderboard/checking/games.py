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
_HOSTILE = 5
"""The round whose pool holds what no honest node sends."""
_LARGE = (8, 9, 10)
"""Rounds of the game with the most rounds whose pools have the size of a suite's, beside one that is drawn."""

Candidate = Isolated | Unconfined


@dataclass(frozen=True)
class Game:
    """A sample with further rounds.

    Attributes:
        pools: of every round: those of the sample, and then parts of them in turn; one round has hostile texts, too. In
            the game with the most rounds, some pools have the size of a suite's, and in one all completions are equal.
        others: for every round, other completions in the slots of its pool.
        restarts: the rounds that a restart follows, each with the last round that is compared after it.
    """

    sample: Sample
    pools: Sequence[Sequence[PoolCompletion]]
    others: Sequence[Sequence[PoolCompletion]] = ()
    restarts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Played:
    """What one instance did in a game, in which its own verdicts were its history.

    Attributes:
        verdicts: on every round's pool.
        history: the finished rounds.
        states: what `state()` returned at the end of rounds that a restart follows, and of the last ones compared.
        drew: for every round, whether it drew from `view.rng`.
        copies: for the rounds in which a copy of it was asked about the pool, the copy's verdicts.
    """

    verdicts: list[list[Verdict]] = field(default_factory=list)
    history: list[PastRound] = field(default_factory=list)
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    drew: list[bool] = field(default_factory=list)
    copies: dict[int, list[Verdict]] = field(default_factory=dict)


def game_of(sample: Sample, rounds: int, rng: random.Random) -> Game:
    """A sample's rounds and further ones: a few groups of its own rounds in turn.

    Args:
        sample: the sample.
        rounds: how many there will be.
        rng: draws the round of a third restart and, if there are more than `ROUNDS_OF_ALL`, those of two unusual
            pools.
    """
    pools = [list(pool) for pool in sample.rounds]
    for number in range(len(pools), rounds):
        pool = sample.rounds[number % len(sample.rounds)]
        groups = sorted({offered.group for offered in pool})
        begin = number // len(sample.rounds) * _GROUPS
        taken = {groups[(begin + more) % len(groups)] for more in range(_GROUPS if number < ROUNDS_OF_ALL else 1)}
        pools.append([offered for offered in pool if offered.group in taken])
    pools[_HOSTILE - 1] += probes.short_hostile(sample.rounds[0])
    early = min(rounds, ROUNDS_OF_ALL)
    restarts = dict.fromkeys(RESTARTS, early)
    if rounds > early:
        large, equal = rng.sample(range(early, rounds), 2)
        for place in (*(number - 1 for number in _LARGE), large):
            pools[place] = sample.full(POOL)
        pools[equal] = probes.equal(sample.rounds[0], sample.sampling.max_new_tokens)
        restarts[rng.randrange(early, rounds - 1)] = rounds
    else:
        restarts[rng.choice([after for after in range(1, rounds - 1) if after not in RESTARTS])] = rounds
    others = []
    for number, shown in enumerate(pools):
        slots = {(offered.group, offered.index) for offered in shown}
        another = sample.rounds[(number + 1) % len(sample.rounds)]
        others.append([offered for offered in another if (offered.group, offered.index) in slots])
    return Game(sample, pools, others, restarts)


def play_game(
    defense: Candidate, game: Game, history: Sequence[PastRound] = (), states: bool = False, asked: bool = False
) -> Played:
    """Let one instance judge a game's rounds, after those of `history`.

    Args:
        defense: the instance.
        game: the game.
        history: the rounds before.
        states: call `state()` at the end of the rounds that a restart follows, and of the last ones compared.
        asked: before every round, ask a copy of the instance, as attackers' queries do: about other completions in
            odd rounds, and about the round's own in even ones.

    Raises:
        DefenseError: it fails; the message says in which round.
    """
    played = Played(history=list(history))
    sample = game.sample
    for number, pool in enumerate(game.pools[len(history) :], len(history) + 1):
        view = sample.view(defense, number, pool, played.history)
        before = view.rng.getstate()
        try:
            if asked and number % 2:
                defense.inspect_copy(sample.view(defense, number, game.others[number - 1], played.history))
            elif asked:
                played.copies[number] = defense.inspect_copy(sample.view(defense, number, pool, played.history))
            verdicts = defense.inspect(view)
            if states and number in {*game.restarts, *game.restarts.values()}:
                played.states[number] = defense.state()
        except DefenseError as error:
            raise DefenseError(f"in round {number} of {sample.name}: {error}") from error
        played.verdicts.append(verdicts)
        played.drew.append(view.rng.getstate() != before)
        played.history.append(finished(view, verdicts))
    return played
