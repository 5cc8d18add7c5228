"""Is a defense fit to be submitted? About a minute of questions, each with an answer that says what to change."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from thiefbench.defenses.base import PoolCompletion, Verdict
from thiefbench.leaderboard.checking import probes
from thiefbench.leaderboard.checking.samples import Sample
from thiefbench.leaderboard.entry_validation import wrong_import, wrong_size
from thiefbench.leaderboard.isolation.isolated import DefenseError, Isolated
from thiefbench.leaderboard.isolation.limits import CAPS, POOL
from thiefbench.leaderboard.isolation.sandbox_paths import files
from thiefbench.leaderboard.isolation.unconfined import Unconfined

WARN_ABOVE, FAIL_ABOVE = 0.05, 0.5
"""Shares of honest rewarded completions that a defense rejects."""

Candidate = Isolated | Unconfined
Status = Literal["ok", "warning", "FAILED"]


@dataclass(frozen=True)
class Finding:
    """The answer to one question: what was asked, how it went, and what was seen or is to change."""

    question: str
    status: Status
    said: str = ""


class RuleBroken(Exception):  # noqa: N818  (a finding, not an error)
    """The defense breaks a rule. What is wrong and what to change."""


class RuleWarning(Exception):  # noqa: N818  (as above)
    """Allowed, but probably not meant."""


@dataclass(frozen=True)
class Subject:
    """What is checked, on what.

    Attributes:
        spec: of the defense.
        samples: pools to judge.
        unsafe: whether it runs in this process.
        standing: whether it may reject nearly everything, as one of the benchmark's own rows: the board says so.
    """

    spec: str
    samples: Sequence[Sample]
    unsafe: bool = False
    standing: bool = False

    def make(self, hash_seed: int = 0) -> Candidate:
        """A fresh defense, in a fresh process unless `unsafe`."""
        return Unconfined(self.spec) if self.unsafe else Isolated(self.spec, CAPS, hash_seed)


def check(subject: Subject) -> Iterator[Finding]:
    """Ask everything, one finding after the other. A defense that cannot be made is asked no further.

    Raises:
        SandboxUnavailable: this machine has no working sandbox, and the check is not unsafe.
        SpecStringError: the spec string is malformed, or names a file that is not there.
    """
    with suppress(DefenseError):
        warm = subject.make()  # while it lives, others start at once  # noqa: F841
    for question, ask in QUESTIONS:
        finding = _asked(question, ask, subject)
        yield finding
        if finding.status == "FAILED" and ask in (_is_made, _keeps_the_contract):
            return


def _asked(question: str, ask: Callable[[Subject], str], subject: Subject) -> Finding:
    try:
        return Finding(question, "ok", ask(subject))
    except RuleWarning as doubt:
        return Finding(question, "warning", str(doubt))
    except (RuleBroken, DefenseError) as wrong:
        return Finding(question, "FAILED", str(wrong))


# --- what can be told without running it ---


def _is_small(subject: Subject) -> str:
    for file in files(subject.spec):
        if wrong := wrong_size(file):
            raise RuleBroken(wrong)
    return ""


def _imports_what_it_may(subject: Subject) -> str:
    for file in files(subject.spec):
        if wrong := wrong_import(file):
            raise RuleBroken(wrong)
    return ""


# --- the contract ---

_NOT_RANKED = frozenset({"versions", "logprobs"})
"""What only late and unlike swarms give."""


def _is_made(subject: Subject) -> str:
    first, second = subject.make(), subject.make()
    if first.name != second.name or first.requires != second.requires:
        raise RuleBroken(f"it is called {first.name}, and then {second.name}; give it one name and fixed requirements")
    if unsupported := sorted(first.requires & _NOT_RANKED):
        raise RuleBroken(
            f"it requires {' and '.join(unsupported)}, which no swarm of a ranked suite gives; make it do without, or "
            "measure it with thiefbench run heterogeneous-v1"
        )
    needs = f", requires {', '.join(sorted(first.requires))}" if first.requires else ""
    return f"{first.name}{needs}"


def _keeps_the_contract(subject: Subject) -> str:
    judged = 0
    for sample in subject.samples:
        judged += sum(map(len, _lived(subject.make(), sample)))
    return f"{judged} completions"


def _is_determined(subject: Subject) -> str:
    for sample in subject.samples:
        defense = subject.make()
        first = defense.inspect(sample.view(defense, 1))
        defense.renew()
        _compare(first, defense.inspect(sample.view(defense, 1)), sample, "a second instance in the same process",
                 "remember in the instance, not in module or class; draw from view.rng, not from a clock")  # fmt: skip
        other = subject.make()
        _compare(first, other.inspect(sample.view(other, 1)), sample, "a second process",
                 "draw from view.rng, not from os.urandom, a process id or the like")  # fmt: skip
        if not subject.unsafe:
            hashed = subject.make(hash_seed=1)
            _compare(first, hashed.inspect(sample.view(hashed, 1)), sample, "another PYTHONHASHSEED",
                     "sort what comes from a set, and use hashlib in place of hash()")  # fmt: skip
    return "" if not subject.unsafe else "another PYTHONHASHSEED is tried in the sandbox only"


def _ignores_order(subject: Subject) -> str:
    for sample in subject.samples:
        defense = subject.make()
        view = sample.view(defense, 1)
        before = view.rng.getstate()
        straight = defense.inspect(view)
        if view.rng.getstate() != before:
            return "not asked: it draws from view.rng"
        order = random.Random(3).sample(range(len(straight)), len(straight))
        other = subject.make()
        shuffled = other.inspect(sample.view(other, 1, [sample.rounds[0][place] for place in order]))
        for place, verdict in zip(order, shuffled, strict=True):
            if not _alike(verdict, straight[place]):
                raise RuleBroken(
                    f"on {sample.name} it says {_short(straight[place])} and, in another order of the same pool, "
                    f"{_short(verdict)} of the same completion; judge by what completions hold, not by where they stand"
                )
    return ""


def _ignores_pseudonyms(subject: Subject) -> str:
    for sample in subject.samples:
        straight = _lived(subject.make(), sample)
        names = {o.sender: f"{place:08x}" for pool in sample.rounds for place, o in enumerate(pool)}
        renamed = replace(sample, rounds=tuple(_renamed(pool, names) for pool in sample.rounds))
        for one, other in zip(straight, _lived(subject.make(), renamed), strict=True):
            wrong = next((pair for pair in zip(one, other, strict=True) if not _alike(*pair)), None)
            if wrong is not None:
                raise RuleBroken(
                    f"on {sample.name} it says {_short(wrong[0])} and, after all senders were renamed, "
                    f"{_short(wrong[1])} of the same completion; a pseudonym's letters tell nothing"
                )
    return ""


def _goes_on_after_a_restart(subject: Subject) -> str:
    for sample in subject.samples:
        running, restarted = subject.make(), subject.make()
        running.inspect(sample.view(running, 1))
        restarted.restore(running.state())
        if restarted.state() != running.state():
            raise RuleBroken("restore does not take back what state gave; return all that is remembered, as JSON")
        _compare(running.inspect(sample.view(running, 2)), restarted.inspect(sample.view(restarted, 2)), sample,
                 "a restart after the first round", "return from state all that later verdicts depend on")  # fmt: skip
    return ""


def _bears(pool: Callable[[Sequence[PoolCompletion], int], list[PoolCompletion]]) -> Callable[[Subject], str]:
    """A question: whether an unusual pool gets its verdicts."""

    def ask(subject: Subject) -> str:
        for sample in subject.samples:
            defense = subject.make()
            unusual_pool = pool(sample.rounds[0], sample.sampling.max_new_tokens)
            defense.inspect(sample.view(defense, 1, unusual_pool))
        return ""

    return ask


# --- what it costs ---


def _spares_honest_work(subject: Subject) -> str:
    rejected = {True: 0, False: 0}
    seen = {True: 0, False: 0}
    for sample in subject.samples:
        verdicts_by_round = _lived(subject.make(), sample)
        for pool, poison, verdicts in zip(sample.rounds, sample.poison, verdicts_by_round, strict=True):
            for offered, poisoned, verdict in zip(pool, poison, verdicts, strict=True):
                if offered.reward > 0:
                    seen[poisoned] += 1
                    rejected[poisoned] += verdict.action != "accept"
    share = rejected[False] / max(1, seen[False])
    summary = (
        f"rejects {rejected[False]} of {seen[False]} honest and {rejected[True]} of {seen[True]} poisoned rewarded "
        "completions"
    )
    if share > FAIL_ABOVE:
        if subject.standing:
            raise RuleWarning(f"rejects nearly everything: {summary}; the board will flag it")
        raise RuleBroken(f"rejects nearly everything: {summary}; honest work must get through, or nobody learns")
    if share > WARN_ABOVE:
        raise RuleWarning(f"{summary}; above {WARN_ABOVE:.0%} of honest work, utility suffers")
    return summary


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


QUESTIONS: Sequence[tuple[str, Callable[[Subject], str]]] = (
    ("files are small, weights named by hash", _is_small),
    ("imports only what is allowed", _imports_what_it_may),
    ("is made from its spec string, twice", _is_made),
    ("one sound verdict per completion", _keeps_the_contract),
    ("equal views, equal verdicts", _is_determined),
    ("order changes nothing", _ignores_order),
    ("pseudonyms change nothing", _ignores_pseudonyms),
    ("goes on after a restart", _goes_on_after_a_restart),
    ("an empty pool", _bears(probes.empty)),
    ("a pool of one", _bears(probes.single)),
    ("a pool of equal completions", _bears(probes.equal)),
    ("a very long completion", _bears(probes.long)),
    ("hostile texts", _bears(probes.hostile)),
    ("a pool without rewards", _bears(probes.unrewarded)),
    ("honest work gets through", _spares_honest_work),
    ("time and memory", _is_quick_and_small),
)
"""In the order in which they are asked."""


def _lived(defense: Candidate, sample: Sample) -> list[list[Verdict]]:
    """The verdicts of one instance on all rounds of a sample."""
    return [defense.inspect(sample.view(defense, number)) for number in range(1, len(sample.rounds) + 1)]


def _renamed(pool: Sequence[PoolCompletion], names: dict[str, str]) -> tuple[PoolCompletion, ...]:
    return tuple(replace(offered, sender=names[offered.sender]) for offered in pool)


def _compare(one: Sequence[Verdict], other: Sequence[Verdict], sample: Sample, where: str, change: str) -> None:
    wrong = next(((a, b) for a, b in zip(one, other, strict=True) if a != b), None)
    if wrong is not None:
        first, second = map(_short, wrong)
        raise RuleBroken(f"on {sample.name} it says {first} and, in {where}, {second} of the same completion; {change}")


def _alike(one: Verdict, other: Verdict) -> bool:
    """Whether two verdicts say the same up to the rounding of a score: sums in another order end otherwise."""
    if (one.action, one.token_weights) != (other.action, other.token_weights):
        return False
    if one.score is None or other.score is None:
        return one.score is other.score
    return abs(one.score - other.score) <= 1e-3 * max(1.0, abs(one.score))


def _short(verdict: Verdict) -> str:
    score = "" if verdict.score is None else f" with score {verdict.score:g}"
    weights = "" if verdict.token_weights is None else ", masking tokens"
    return f"{verdict.action}{score}{weights}"
