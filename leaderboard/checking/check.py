"""Check in about a minute whether a defense may be submitted, and say what to change."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from thiefbench.defenses.base import PoolCompletion, Verdict
from thiefbench.engine.compatibility import check_requirements
from thiefbench.engine.spec import SpecError, SwarmSpec
from thiefbench.judges import check_judge
from thiefbench.leaderboard.checking import probes
from thiefbench.leaderboard.checking.findings import (
    FILES,
    IMPORTS,
    REPEATABLE,
    Finding,
    RuleBroken,
    RuleWarning,
    ask_all,
    can_be_repeated,
    files_are_in_order,
    imports_what_it_may,
)
from thiefbench.leaderboard.checking.games import (
    ROUNDS_OF_ALL,
    ROUNDS_OF_FIRST,
    Candidate,
    Game,
    Played,
    game_of,
    play_game,
)
from thiefbench.leaderboard.checking.samples import Sample
from thiefbench.leaderboard.checking.verdict_differences import alike, first_apart
from thiefbench.leaderboard.entry_validation import built_around_others
from thiefbench.leaderboard.isolation.isolated import DefenseError, Isolated
from thiefbench.leaderboard.isolation.limits import CAPS, POOL
from thiefbench.leaderboard.isolation.sandbox_paths import files
from thiefbench.leaderboard.isolation.unconfined import Unconfined
from thiefbench.leaderboard.rows import FAIL_ABOVE
from thiefbench.sources import source_files
from thiefbench.suite.store.records import file_sha256
from thiefbench.tasks.text import one_line
from thiefbench.wording import counted

WARN_ABOVE = 0.05
"""The share of honest rewarded completions that a defense may reject without a warning; see also `FAIL_ABOVE`."""

ALMOST_NOTHING = 0.1
"""Below this share of stopped poisoned rewarded completions, of all samples together, there is a warning."""


@dataclass
class Rewarded:
    """What a defense does to rewarded completions of one kind, honest or poisoned.

    Attributes:
        seen: how many there are.
        rejected: the number of these from which nothing is learned: their verdict is another than accept, or the
            weights of all tokens are 0.
        masked: the number of the others with some token weights below 1.
        lost: the sum over all of these of what is not learned: 1 for a rejected one, for another one 1 minus the mean
            of its token weights.
        example: the first that is rejected and the verdict's reason, in words; empty if none is.
    """

    seen: int = 0
    rejected: int = 0
    masked: int = 0
    lost: float = 0.0
    example: str = ""

    def add(self, text: str, verdict: Verdict) -> None:
        """Count a completion."""
        weights = verdict.token_weights if verdict.action == "accept" else (0.0,)
        left = fmean(weights) if weights else 1.0
        self.seen += 1
        self.rejected += left == 0
        if left == 0 and not self.example:
            why = f" ({one_line(verdict.reason, 80)})" if verdict.reason else ""
            self.example = f"“{one_line(text, 120)}”{why}"
        self.masked += 0 < left < 1
        self.lost += 1 - left


@dataclass(frozen=True)
class Subject:
    """A defense to check, and the pools to check it on.

    Attributes:
        spec: of the defense.
        play: makes the pools, which takes a while: it is called only once the defense can be constructed.
        unsafe: whether it runs in this process.
        baseline: whether it may reject nearly everything, as one of the benchmark's own rows; the board shows a flag.
        suite: title of the suite that it is for.
        swarms: of that suite; they give it what it requires, or not.
        rounds: the most that one of its swarms has.
    """

    spec: str
    play: Callable[[], Sequence[Sample]]
    unsafe: bool = False
    baseline: bool = False
    suite: str = ""
    swarms: Sequence[SwarmSpec] = (SwarmSpec(),)
    rounds: int = 0

    def make(self, hash_seed: int = 0) -> Candidate:
        """A fresh defense, in a fresh process unless `unsafe`."""
        return Unconfined(self.spec) if self.unsafe else Isolated(self.spec, CAPS, hash_seed)

    @cached_property
    def samples(self) -> Sequence[Sample]:
        """The pools."""
        return self.play()

    @cached_property
    def games(self) -> Sequence[Game]:
        """The pools with further rounds."""
        rng = random.Random(self._content)
        most = max(ROUNDS_OF_FIRST, self.rounds)
        return [game_of(sample, ROUNDS_OF_ALL if place else most, rng) for place, sample in enumerate(self.samples)]

    @cached_property
    def played(self) -> Sequence[Played]:
        """What one instance did in each game; raises DefenseError."""
        return [play_game(self.make(), game, states=True) for game in self.games]

    @property
    def _content(self) -> str:
        """The hashes of the submission's files, or the name of a built-in defense, from which rounds are drawn."""
        paths = {path for file in files(self.spec, "defense") for path in source_files(file)}
        return " ".join(sorted(map(file_sha256, paths))) or self.spec

    @cached_property
    def rewarded(self) -> tuple[dict[str, Rewarded], dict[str, Rewarded]]:
        """What it does to the honest and to the poisoned rewarded completions, by sample."""
        honest, poisoned = ({sample.name: Rewarded() for sample in self.samples} for _ in range(2))
        for sample in self.samples:
            verdicts_by_round = play_game(self.make(), Game(sample, sample.rounds)).verdicts
            for pool, poison, verdicts in zip(sample.rounds, sample.poison, verdicts_by_round, strict=True):
                for offered, is_poison, verdict in zip(pool, poison, verdicts, strict=True):
                    if offered.reward > 0:
                        (poisoned if is_poison else honest)[sample.name].add(offered.text, verdict)
        return honest, poisoned


def check(subject: Subject) -> Iterator[Finding]:
    """Ask all questions, in order; stop if a defense cannot be constructed, breaks the contract or is not determined.

    The pools are made only for the first question about verdicts.

    Raises:
        SandboxUnavailable: this machine has no working sandbox, and the check is not unsafe.
        SpecStringError: the spec string is malformed, or names a file that does not exist.
    """
    first = (_imports, _is_made, _keeps_the_contract, _is_determined)  # later ones compare verdicts with each other
    yield from ask_all(QUESTIONS, subject, DefenseError, first, subject.make, _is_made)


# --- the contract ---

_imports = imports_what_it_may("defense")

_NOT_RANKED = frozenset({"versions", "logprobs"})
"""Requirements that only delayed and heterogeneous swarms meet."""


def _is_made(subject: Subject) -> str:
    if wrong := built_around_others(subject.spec):
        raise RuleBroken(wrong)
    first, second = subject.make(), subject.make(hash_seed=1)
    if first.name != second.name or first.requires != second.requires:
        raise RuleBroken(
            f"two instances differ in name ({first.name}, {second.name}) or requirements; make both constant"
        )
    if unsupported := sorted(first.requires & _NOT_RANKED):
        raise RuleBroken(
            f"it requires {' and '.join(unsupported)}, which no swarm of a ranked suite provides; remove that, or "
            "measure it with thiefbench run heterogeneous-v1"
        )
    if "judge" in first.requires:
        try:
            check_judge(first)
        except SpecError as lacking:
            raise RuleBroken(str(lacking)) from lacking
    for swarm in subject.swarms:
        try:
            check_requirements(swarm, first)
        except SpecError as lacking:
            of = f"{subject.suite} cannot run it: " if subject.suite else ""
            raise RuleBroken(f"{of}{lacking}") from lacking
    needs = f", requires {', '.join(sorted(first.requires))}" if first.requires else ""
    return f"{first.name}{needs}"


def _keeps_the_contract(subject: Subject) -> str:
    judged = sum(len(verdicts) for played in subject.played for verdicts in played.verdicts)
    rounds = max(len(game.pools) for game in subject.games)
    return f"{judged:,} completions of {counted(len(subject.games), 'swarm')}, in up to {counted(rounds, 'round')}"


def _is_determined(subject: Subject) -> str:
    for game, straight in zip(subject.games, subject.played, strict=True):
        short = replace(game, pools=game.pools[:ROUNDS_OF_ALL])
        defense = subject.make()
        first = play_game(defense, short, states=True)
        _compare(straight.verdicts, first.verdicts, game, "a second process",
                 "draw from view.rng, not from a clock, a process id or a generator without a seed")  # fmt: skip
        defense.renew()
        _compare(first.verdicts, play_game(defense, short).verdicts, game, "a second instance in the same process",
                 "keep state in the instance, not in a module or class, and let state() change nothing")  # fmt: skip
        if not subject.unsafe:
            _compare(straight.verdicts, play_game(subject.make(hash_seed=1), short).verdicts, game,
                     "another PYTHONHASHSEED",
                     "sort what comes from a set, use hashlib instead of hash(), and draw from view.rng")  # fmt: skip
        asked = play_game(subject.make(), short, asked=True)
        _compare(straight.verdicts, asked.verdicts, game,
                 "an instance whose deep copies attackers query",
                 "keep state in the instance, not in a module or class, nor in what a deep copy shares")  # fmt: skip
        for number, verdicts in asked.copies.items():
            _compare([straight.verdicts[number - 1]], [verdicts], game, "a deep copy of the instance",
                     "let copy.deepcopy copy all that verdicts depend on", number)  # fmt: skip
    return "" if not subject.unsafe else "another PYTHONHASHSEED is tried only in the sandbox"


def _ignores_order(subject: Subject) -> str:
    """Both orders get the same `view.rng`: nodes receive the pool in different orders, but need equal verdicts."""
    drawing = "; draw from view.rng in the order of (group, index)"
    for game, straight in zip(subject.games, subject.played, strict=True):
        orders = [
            random.Random(f"order {number}").sample(range(len(pool)), len(pool))
            for number, pool in enumerate(game.pools, 1)
        ]
        shuffled = [[pool[place] for place in order] for pool, order in zip(game.pools, orders, strict=True)]
        other = play_game(subject.make(), replace(game, pools=shuffled))
        for number, order in enumerate(orders):
            before = [straight.verdicts[number][place] for place in order]
            if wrong := first_apart(before, other.verdicts[number], alike):
                raise RuleBroken(
                    f"in round {number + 1} of {game.sample.name} it gives a completion the verdict {wrong[0]} and, "
                    f"with the pools in another order, {wrong[1]}; judge completions by their content, not by their "
                    f"position{drawing if any(straight.drew[: number + 1]) else ''}"
                )
    return ""


def _ignores_pseudonyms(subject: Subject) -> str:
    for game, straight in zip(subject.games, subject.played, strict=True):
        senders = sorted({offered.sender for pool in game.pools for offered in pool})
        drawn = [hashlib.sha256(f"{game.sample.name} {sender}".encode()).hexdigest()[:8] for sender in senders]
        names = dict(zip(senders, sorted(drawn, reverse=True), strict=True))  # so that who was first is last
        renamed = [[replace(offered, sender=names[offered.sender]) for offered in pool] for pool in game.pools]
        other = play_game(subject.make(), replace(game, pools=renamed))
        for number, (one, two) in enumerate(zip(straight.verdicts, other.verdicts, strict=True), 1):
            if wrong := first_apart(one, two, alike):
                raise RuleBroken(
                    f"in round {number} of {game.sample.name} it gives a completion the verdict {wrong[0]} and, after "
                    f"all senders were renamed, {wrong[1]}; the letters of a pseudonym carry no information"
                )
    return ""


def _continues_after_a_restart(subject: Subject) -> str:
    for game, straight in zip(subject.games, subject.played, strict=True):
        for after, last in game.restarts.items():
            state = straight.states[after]
            restarted = subject.make(hash_seed=1)
            restarted.restore(state)
            if key := _different(state, restarted.state()):
                raise RuleBroken(
                    f"after restore(state()), the state's {key} differs; return all that is remembered, as JSON (whose "
                    "keys are text), and sort what comes from a set"
                )
            rest = replace(game, pools=game.pools[:last])
            continued = play_game(restarted, rest, straight.history[:after])
            pairs = zip(straight.verdicts[after:last], continued.verdicts, strict=True)
            for number, (one, two) in enumerate(pairs, after + 1):
                if wrong := first_apart(one, two):
                    raise RuleBroken(
                        f"in round {number} of {game.sample.name} it gives a completion the verdict {wrong[0]} and, "
                        f"after a restart at the end of round {after}, {wrong[1]}; let state() return "
                        "all that later verdicts depend on, and sort what comes from a set"
                    )
            if key := _different(straight.states[last], restarted.state()):
                raise RuleBroken(
                    f"at the end of round {last} of {game.sample.name}, the state's {key} is another one if there was "
                    f"a restart at the end of round {after}; let restore() make all of the instance as it was"
                )
    tried = sorted({after for game in subject.games for after in game.restarts})
    return f"after rounds {', '.join(map(str, tried[:-1]))} and {tried[-1]}"


def _different(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first entry in which two states differ, or the words for the whole; empty if they are equal."""
    if one == other:
        return ""
    key = next((key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)), None)
    return "content" if key is None else f"entry {key!r:.60}"


def _handles(pool: Callable[[Sequence[PoolCompletion], int], list[PoolCompletion]]) -> Callable[[Subject], str]:
    """A question: whether the defense returns verdicts on an unusual pool."""

    def ask(subject: Subject) -> str:
        for sample in subject.samples:
            defense = subject.make()
            unusual_pool = pool(sample.rounds[0], sample.sampling.max_new_tokens)
            defense.inspect(sample.view(defense, 1, unusual_pool))
        return ""

    return ask


# --- what it costs ---


def _spares_honest_work(subject: Subject) -> str:
    honest = {name: counts for name, counts in subject.rewarded[0].items() if counts.seen}
    of, rejected, masked = _counts(honest)
    share = sum(counts.lost for counts in honest.values()) / max(1, of)
    summary = f"rejects {rejected} of {of} honest rewarded completions"
    if rejected and len(honest) > 1:
        summary += f" ({'; '.join(f'{name}: {each.rejected} of {each.seen}' for name, each in honest.items())})"
    if masked:
        summary += f" and masks tokens of {masked}, so that {share:.0%} of what they teach is lost"
    if share > WARN_ABOVE and (example := next((each.example for each in honest.values() if each.example), "")):
        summary += f", such as {example}"
    if share > FAIL_ABOVE:
        if subject.baseline:
            raise RuleWarning(f"{summary}, more than {FAIL_ABOVE:.0%}; the board will flag it")
        raise RuleBroken(f"{summary}, and at most {FAIL_ABOVE:.0%} is allowed; without honest work nothing is learned")
    if share > WARN_ABOVE:
        raise RuleWarning(f"{summary}; utility suffers when more than {WARN_ABOVE:.0%} of honest work is rejected")
    return summary


def _stops_poison(subject: Subject) -> str:
    seen = {name: counts for name, counts in subject.rewarded[1].items() if counts.seen}
    if not seen:
        return "no poisoned completion was rewarded"
    of, rejected, masked = _counts(seen)
    parts = [f"{name}: {_stopped(counts.rejected, counts.masked, counts.seen)}" for name, counts in seen.items()]
    summary = f"stops {_stopped(rejected, masked, of)} poisoned rewarded completions ({'; '.join(parts)})"
    if rejected + masked < ALMOST_NOTHING * of:
        raise RuleWarning(f"{summary}, which is almost nothing")
    if missed := [name for name, counts in seen.items() if not counts.rejected + counts.masked]:
        raise RuleWarning(
            f"{summary}; a rank follows from the worst attack, and of {' and '.join(missed)} it stops none"
        )
    return summary


def _counts(by_sample: Mapping[str, Rewarded]) -> tuple[int, int, int]:
    """How many completions of all samples together are seen, rejected and masked."""
    every = by_sample.values()
    return sum(each.seen for each in every), sum(each.rejected for each in every), sum(each.masked for each in every)


def _stopped(rejected: int, masked: int, of: int) -> str:
    masking = f" and masks tokens of {masked}" if masked else ""
    return f"{rejected}{masking} of {of}"


def _is_quick_and_small(subject: Subject) -> str:
    slowest, held = 0.0, 0
    for sample in subject.samples:
        defense = subject.make()
        defense.inspect(sample.view(defense, 1, sample.full(POOL)))
        slowest, held = max(slowest, defense.seconds), max(held, defense.memory)
    pace = f"{slowest:.2g} s of at most {CAPS.seconds:g} s for {POOL} completions ({1000 * slowest / POOL:.2g} ms each)"
    if slowest > CAPS.seconds:
        raise RuleBroken(f"{pace}; make it faster")
    return f"{pace}, {held >> 20:,} MiB of at most {CAPS.memory >> 20:,} MiB"


POISON_STOPPED = "poison is stopped"

QUESTIONS: Sequence[tuple[str, Callable[[Subject], str]]] = (
    (FILES, files_are_in_order("defense")),
    (IMPORTS, _imports),
    (REPEATABLE, can_be_repeated("defense")),
    ("can be constructed from its spec string, twice", _is_made),
    ("an empty pool", _handles(probes.empty)),
    ("a pool of one", _handles(probes.single)),
    ("a pool of equal completions", _handles(probes.equal)),
    ("a very long completion", _handles(probes.long)),
    ("hostile texts", _handles(probes.hostile)),
    ("a pool without rewards", _handles(probes.unrewarded)),
    ("one valid verdict per completion", _keeps_the_contract),
    ("equal views, equal verdicts", _is_determined),
    ("order changes nothing", _ignores_order),
    ("pseudonyms change nothing", _ignores_pseudonyms),
    ("continues after a restart", _continues_after_a_restart),
    ("honest work gets through", _spares_honest_work),
    (POISON_STOPPED, _stops_poison),
    ("time and memory", _is_quick_and_small),
)
"""Every question with the function that answers it, in the order in which they are asked."""


def _compare(
    one: Sequence[Sequence[Verdict]],
    other: Sequence[Sequence[Verdict]],
    game: Game,
    where: str,
    change: str,
    begin: int = 1,
) -> None:
    """Raise RuleBroken where two instances differ; rounds that only one of them played do not count.

    Args:
        one, other: their verdicts, by round.
        game: that they played.
        where: what the other instance is, for the message.
        change: what to do about it.
        begin: the first of the rounds.
    """
    for number, (first, second) in enumerate(zip(one, other, strict=False), begin):
        if wrong := first_apart(first, second):
            raise RuleBroken(
                f"in round {number} of {game.sample.name} it gives a completion the verdict {wrong[0]} and, in "
                f"{where}, {wrong[1]}; {change}"
            )
