"""What defenses cost in time, from the seconds that every cell recorded by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from thiefbench import provenance
from thiefbench.suite.analysis.comparison import Comparison
from thiefbench.suite.analysis.statistics import Summary, paired, summarize
from thiefbench.suite.store.records import SHARED, Record

UNEXPLAINED = 0.1
"""By so much of an undefended round, rounds may be longer than undefended ones and the defense's work together."""

DEFENDING = ("inspect", "checks", "exchange")
"""Phases in which a defense works: on completions, on stages, or on weights. A swarm without one has them, too."""

NOT_A_ROUND = {"evaluate", "attack", "rehearse", "lessons"}
"""Phases that no honest node spends in a round: what measures it, and what the attacker works on its poison or tries
or learns before the first round.

An attacker that asks the defense pays for the answers itself, and asks a swarm without one nothing.
"""


@dataclass(frozen=True)
class Cost:
    """What a defense costs under one attack; over the seeds that have it, None without any.

    Attributes:
        comparison: its title.
        defense: its spec string.
        seconds: per round, everything but evaluations and the attacker's own work.
        ratio: the same divided by that of the undefended cell of the same seed, made on the same kind of machine.
        added: milliseconds per round more than there.
        explained: whether the defense's own work accounts for these at every seed.
        inspect: milliseconds of the inspection per completion of the pool; None where stages or weights are judged.
        elsewhere: seeds whose undefended cell ran on another kind of machine.
    """

    comparison: str
    defense: str
    seconds: Summary | None
    ratio: Summary | None
    added: Summary | None
    explained: bool
    inspect: Summary | None
    elsewhere: tuple[int, ...]

    @property
    def withheld(self) -> bool:
        """Whether there is a ratio that the defense's own work does not explain.

        A defense adds its own time and nothing else. So where rounds were shorter than undefended, or longer by more
        than its work took, something else made them so: the load of the machine changed between the two cells,
        answers became longer or shorter, or rejected completions were not learned from. Seeds are looked at one by
        one, so that those above and those below do not cancel.
        """
        return self.ratio is not None and not self.explained

    @property
    def slowdown(self) -> Summary | None:
        """The ratio, unless it is withheld."""
        return None if self.withheld else self.ratio


def costs(comparisons: Sequence[Comparison]) -> list[Cost]:
    """One for every trained defense under every attack, `none` first."""
    return [
        cost(comparison, defense)
        for comparison in comparisons
        for defense in dict.fromkeys(
            line.defense for line in comparison.lines if (line.how, line.role) == ("trained", "attack")
        )
    ]


def cost(comparison: Comparison, defense: str) -> Cost:
    """What a defense costs under one attack."""
    defended = _records(comparison, defense)
    base = _records(comparison, "none")
    both = [seed for seed in defended if seed in base]
    same = [seed for seed in both if _machine(defended[seed]) == _machine(base[seed])]
    defended_seconds, undefended_seconds = (
        {seed: each for seed in records if (each := seconds_per_round(records[seed]))} for records in (defended, base)
    )
    pairs = [seed for seed in same if seed in defended_seconds and seed in undefended_seconds]
    added = (
        {seed: 1000 * defended_seconds[seed] for seed in pairs},
        {seed: 1000 * undefended_seconds[seed] for seed in pairs},
    )
    inspected = {seed: each for seed in defended if (each := inspect_milliseconds(defended[seed])) is not None}
    return Cost(
        comparison.title,
        defense,
        _over(defended_seconds),
        _over({seed: defended_seconds[seed] / undefended_seconds[seed] for seed in pairs}),
        replace(paired(*added), count=None) if pairs else None,  # more is neither good nor bad
        all(_explained(defended[seed], base[seed], defended_seconds[seed], undefended_seconds[seed]) for seed in pairs),
        _over(inspected),
        tuple(seed for seed in both if seed not in same),
    )


def seconds_per_round(record: Record) -> float | None:
    """Mean seconds of a round without what is `NOT_A_ROUND`; None if none was timed, or some were taken over."""
    if SHARED in record.seconds:
        return None
    spent = [seconds for phase, seconds in record.seconds.items() if phase not in NOT_A_ROUND]
    return sum(spent) / record.cell["rounds"] if spent else None


def _explained(defended: Record, undefended: Record, here: float, there: float) -> bool:
    """Whether a defense's work accounts for how its rounds, of `here` seconds, differ from undefended ones of `there`.

    The policy's reading of a pool may move from the update to the inspection, and what is rejected is not learned from,
    so up to a whole update may be missing.
    """
    work = _seconds(defended, *DEFENDING) - _seconds(undefended, *DEFENDING)
    beyond, slack = here - there - work, UNEXPLAINED * there
    return here >= there and -_seconds(undefended, "update") - slack <= beyond <= slack


def _seconds(record: Record, *phases: str) -> float:
    """Mean seconds of a round in some phases."""
    return sum(record.seconds.get(phase, 0.0) for phase in phases) / record.cell["rounds"]


def inspect_milliseconds(record: Record) -> float | None:
    """Milliseconds of the inspection per completion; None where it was not timed, or no completions are judged.

    It holds the policy's reading of the pool where the defense asks for it, of which the update then needs less.
    """
    swarm = record.cell["swarm"]
    pool = swarm["prompts"] * swarm["group"]
    judged = "inspect" in record.seconds and record.seconds.keys().isdisjoint(DEFENDING[1:])
    return 1000 * _seconds(record, "inspect") / pool if judged else None


def _records(comparison: Comparison, defense: str) -> dict[int, Record]:
    """A defense's attacked cells that have scores, by seed."""
    records = {seed: comparison.record("attack", defense, seed) for seed in comparison.seeds}
    return {seed: record for seed, record in records.items() if record is not None}


def _machine(record: Record) -> tuple[object, ...]:
    return (record.cell.get("device"), *(record.provenance.get(name) for name in provenance.MACHINE))


def _over(values: Mapping[int, float]) -> Summary | None:
    return summarize(values) if values else None
