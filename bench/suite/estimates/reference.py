"""How long work took on a reference machine, for plans of suites that were never run here.

The machine: two cores of an Intel Xeon virtual machine (family 6), torch 2.15, otherwise idle, two threads. Finished
cells of `smoke` took 2.9 to 3.8 ms for each unit of work (`thiefbench.suite.estimates.eta`), loading aside. What other
settings take in proportion was measured by processor time (`tests/benchmarks/paces.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from thiefbench import registry
from thiefbench.suite.scenario import CellSpec

MACHINE = "two idle cores of an Intel Xeon"

_SMOKE = (2.9e-3, 3.8e-3)
"""Seconds for a unit of work: of the quickest and the slowest cell."""

_AT_WORST = 1.6
"""How much longer than the slowest cell: a run of `smoke` with a defense took 7.7 minutes beside other work."""

_RATIOS = {
    "gsm_micro by micro-math": 1.0,
    "gsm_micro by micro-math, late": 1.24,
    "gsm_micro by micro-math and micro-math-small": 0.76,
    "gsm_micro by micro-math-changes and micro-math-totals": 1.05,
    "gsm_micro by micro-math-small, exchanging weights": 2.34,
    "code_micro by micro-code": 1.53,
    "code_functions by micro-programs": 2.47,
}
"""By `setting_of`, how much longer a unit of work takes than in `smoke`, in an attack's first rounds."""

_DEFENSES = 1.25
"""How much longer a cell may take with a defense: most cost up to a fifth of a round, and a judge much more."""

_JUDGED = (2.0, 4.5)
"""How many times as long a unit of work takes where `micro-judge` rewards: 2.8 times in a first run, and 3.9 times with
an attacker who runs the judge too. Servers and other models were not measured."""

_QUESTIONS = 8.0
"""How much longer it may take where the attacker asks the defense, each question being an inspection."""


_REHEARSED = 2.0
"""How much longer it takes at least where the attack rehearses: cells of `auto` behind `guard` and `seed_replay` took
2.1 to 5.2 times as long as without the rehearsal."""


@dataclass(frozen=True)
class Span:
    """Seconds, at least and at most."""

    low: float
    high: float


def setting_of(spec: CellSpec) -> str:
    """What a unit of work is that a pace was measured of; prompts, group size and learner hardly change it."""
    late = ", late" if spec.swarm.delay else ""
    exchanging = ", exchanging weights" if spec.averaging else ""
    return f"{registry.parse('task', spec.task).target} by {' and '.join(spec.models)}{late}{exchanging}"


def reference_pace(spec: CellSpec) -> Span | None:
    """Seconds for a unit of a cell's work on the reference machine; None where nothing like it was measured.

    One thread takes at most twice as long as two. Of more threads nothing was measured, and small models gain little.
    """
    ratio = _RATIOS.get(setting_of(spec))
    if ratio is None or spec.device != "cpu" or spec.dtype != "float32":
        return None
    # Answers grow longer or shorter as models learn: programs' first rounds are slow, and finished cells were quick.
    low, high = min(1.0, ratio) * _SMOKE[0], max(1.0, ratio) * _SMOKE[1] * _AT_WORST
    if spec.swarm.reward != "rule":
        if spec.swarm.reward_judge.endpoint is not None or spec.swarm.reward_judge.model != "micro-judge":
            return None
        low, high = low * _JUDGED[0], high * _JUDGED[1]
    if spec.threads == 1:
        high *= 2
    if spec.rehearses and spec.role == "attack":
        low *= _REHEARSED
    if spec.defense != "none":
        high *= _QUESTIONS if spec.asks else _DEFENSES
    return Span(low, high)
