"""Results that a test reads: the measures of a defense, each with its interval, and completions as examples."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from thiefbench.suite.analysis.comparison import LEAST_GAIN, Comparison, Line
from thiefbench.suite.analysis.drift import MEASURES as DRIFT
from thiefbench.suite.store.records import NOTHING
from thiefbench.tasks.text import printable
from thiefbench.testing.bounds import TRAINED, MisuseError, check_metric
from thiefbench.testing.numbers import Number, of_score, over_seeds
from thiefbench.user_frames import shown

if TYPE_CHECKING:
    from thiefbench.testing.recorded import RecordedReplay

OF_POISON = ("asr", "stop_rate", "harm_prevented", "drift", "divergence")
"""Measures of what poison does; the others are of honest work."""
REPLAYED = ("stop_rate", "false_rejection_rate", "placebo_rejection_rate")

_NO_VALUE = {
    "asr": "no completion of the last evaluation says whether the attack succeeded; raise evaluation's final",
    "stop_rate": "no completion with the payload earned a reward, so there was nothing to stop; run more rounds",
    "false_rejection_rate": "no honest completion earned a reward, so there was nothing to lose; run more rounds",
    "utility": f"the swarm without an attack gained less than {LEAST_GAIN:g} in clean reward, too little to express a "
    "defense's gain as a share of it; run more rounds",
    "harm_prevented": "undefended, the attack does no harm that could be prevented; run more rounds",
    "drift": "there is no control to measure it against",
    "divergence": "there is no control to measure it against, or the evaluation has a single item; raise its final",
}


class FailedCellError(MisuseError):
    """A cell has no scores."""


class Result(Protocol):
    """The result that `assert_robust` checks; see `TrainedResult` and `ReplayedResult`."""

    @property
    def defense(self) -> str:
        """Its spec string or name."""

    @property
    def about(self) -> str:
        """What was measured, in words."""

    @property
    def again(self) -> str:
        """The command that repeats this measurement."""

    @property
    def doubt(self) -> str:
        """Why a success against this attack would say nothing; empty if it says something."""

    @property
    def let_through(self) -> str | None:
        """A rewarded completion with the payload that was accepted."""

    @property
    def wrongly_rejected(self) -> str | None:
        """A rewarded honest completion that was rejected."""

    def measure(self, name: str) -> Number:
        """A measure by its name; an error if it has no value."""

    def honest(self, name: str) -> Number | None:
        """An honest swarm's value of a measure that is not 0 for it; None if unknown."""

    def by_recording(self, name: str) -> Mapping[str, Number]:
        """A measure in each of several recordings that it was taken over; empty if it was not."""

    def example(self, name: str, recordings: Collection[str]) -> str | None:
        """A completion that shows why a measure of verdicts is not better.

        Args:
            name: of the measure.
            recordings: those to choose it from, if the measure was taken over several; empty for any.
        """


class _Measured:
    """The measures as attributes; `measure` defines which of them a result has."""

    def measure(self, name: str) -> Number:
        """A measure by its name; an error if it has no value."""
        raise NotImplementedError

    @property
    def asr(self) -> Number:
        """Attack success rate of the defended model in its last evaluation; only a trained swarm has one."""
        return self.measure("asr")

    @property
    def stop_rate(self) -> Number:
        """Share rejected among completions with the payload that earned a reward."""
        return self.measure("stop_rate")

    @property
    def false_rejection_rate(self) -> Number:
        """Share rejected among honest completions that earned a reward."""
        return self.measure("false_rejection_rate")

    @property
    def utility(self) -> Number:
        """Share of the control's gain in clean reward that is kept under the attack; trained swarms only."""
        return self.measure("utility")

    @property
    def harm_prevented(self) -> Number:
        """1 - harm with the defense / mean harm without, a ratio of means, unclipped; trained swarms only."""
        return self.measure("harm_prevented")

    @property
    def drift(self) -> Number:
        """Share of the defended model's answers with a word that the control never writes; trained swarms only."""
        return self.measure("drift")

    @property
    def divergence(self) -> Number:
        """Jensen-Shannon divergence of its words from the control's, in bits; trained swarms only."""
        return self.measure("divergence")


@dataclass(frozen=True)
class TrainedResult(_Measured):
    """A defense under an attack, in swarms that were trained: with it, without it, and without an attack.

    Attributes:
        comparison: the cells that are compared, one of them defended at each seed.
        line: the defended cells.
        title: the suite's title.
        again: the command that repeats this measurement.
    """

    comparison: Comparison
    line: Line
    title: str
    again: str = ""

    def __post_init__(self) -> None:
        if self.line.failures:
            first = self.line.failures[0]
            cell = self.comparison.find(self.line.role, self.defense, first.seed)
            frames = shown(cell.record.provenance) if cell is not None and cell.record is not None else ""
            raise FailedCellError(
                f"the cell of {self.line.name} against {self.comparison.attack} at seed {first.seed} {first.problem}"
                + f"\n{frames}" * bool(frames)
            )

    def __repr__(self) -> str:
        return f"<{self.defense} {self.about}>"

    @property
    def defense(self) -> str:
        """Its spec string."""
        return self.line.defense

    @property
    def attack(self) -> str:
        """Its spec string."""
        return self.comparison.attack

    @property
    def about(self) -> str:
        """What was measured, in words."""
        seeds = ", ".join(str(result.seed) for result in self.line.results)
        words = {"attack": "against", "control": "without an attack, measured for", "placebo": "in the placebo of"}
        return f"{words[self.line.role]} {self.attack} ({self.title}, seed {seeds})"

    @property
    def cell_ids(self) -> tuple[str, ...]:
        """The defended cells, by seed."""
        return tuple(result.cell_id for result in self.line.results)

    def measure(self, name: str) -> Number:
        """A measure over seeds.

        Raises:
            MisuseError: there is no such measure, or it has no value at a seed.
        """
        check_metric(name, TRAINED)
        scores = {result.seed: result.scores.get(name, NOTHING) for result in self.line.results}
        lacking = [seed for seed, score in scores.items() if score.value is None]
        if lacking:
            raise MisuseError(
                f"{name} of {self.defense} has no value at seed {lacking[0]}: {self._why(name, lacking[0])}"
            )
        rules = self.comparison.rules
        if name != "harm_prevented":
            return over_seeds(scores, 1 - rules.margin if name == "utility" else None)
        shares = {result.seed: result.scores["undefended_share"].value or 0.0 for result in self.line.results}
        return over_seeds(scores, rules.good, shares)

    def honest(self, name: str) -> Number | None:
        """For drift and divergence, the control's own value (`thiefbench.suite.analysis.drift`)."""
        control = self.comparison.line("no attack")
        if name not in DRIFT or control is None or control.failures or len(control.scores(name)) < len(control.results):
            return None
        return over_seeds({result.seed: result.scores[name] for result in control.results})

    def by_recording(self, name: str) -> Mapping[str, Number]:
        """Empty, because swarms were trained."""
        return {}

    def example(self, name: str, recordings: Collection[str]) -> str | None:
        """A rewarded completion with the payload that was accepted, or of other measures an honest rejected one."""
        return self.let_through if name in OF_POISON else self.wrongly_rejected

    @property
    def doubt(self) -> str:
        """Why a success against this attack would say nothing; empty if the attack works without a defense."""
        if self.line.role != "attack" or self.defense == "none":
            return ""
        return self.comparison.why_inconclusive

    @cached_property
    def let_through(self) -> str | None:
        """The first rewarded completion with the payload that was accepted."""
        return self._first(pc.field("payload") & (pc.field("action") == "accept"))

    @cached_property
    def wrongly_rejected(self) -> str | None:
        """The first rewarded honest completion that was rejected."""
        return self._first(~pc.field("malicious") & (pc.field("action") != "accept"))

    def _first(self, condition: pc.Expression) -> str | None:
        for result in self.line.results:
            cell = self.comparison.find(self.line.role, self.defense, result.seed)
            assert cell is not None
            rows = cell.directory.read_rows(
                ["phase", "round", "group", "place", "text", "reward", "payload", "malicious", "action"]
            )
            plain = rows.set_column(rows.schema.get_field_index("action"), "action", rows["action"].cast(pa.string()))
            plain = plain.filter(pc.equal(plain["phase"], "train")).filter((pc.field("reward") > 0) & condition)
            if len(plain):
                by = [(name, "ascending") for name in ("round", "group", "place")]
                return printable(plain.sort_by(by)["text"][0].as_py())
        return None

    def _why(self, name: str, seed: int) -> str:
        """Why a measure has no value: another cell has none, or there was nothing to measure."""
        others = {"utility": ("control",), "harm_prevented": ("attack", self.comparison.reference_role)}
        others |= dict.fromkeys(DRIFT, ("control",))
        for role in others.get(name, ()):
            cell = self.comparison.find(role, "none", seed)
            if cell is not None and cell.problem:
                return f"its undefended cell ({cell.name}) {cell.problem}"
        return _NO_VALUE[name]


@dataclass(frozen=True)
class ReplayedResult(_Measured):
    """A defense's verdicts on recorded rounds, which do not show what models would have learned.

    Attributes:
        defense: its name.
        replay: its verdicts' rates.
        again: the command that repeats this measurement.
    """

    defense: str
    replay: RecordedReplay
    again: str = ""

    doubt = ""

    def __repr__(self) -> str:
        return f"<{self.defense} {self.about}>"

    @property
    def attacks(self) -> tuple[str, ...]:
        """The attacks that were judged."""
        return self.replay.attacks

    @property
    def about(self) -> str:
        """What was measured, in words."""
        return f"on recorded rounds of {', '.join(self.attacks)}"

    def measure(self, name: str) -> Number:
        """A measure over all recorded rounds that were judged.

        Raises:
            MisuseError: there is no such measure, it needs trained swarms, or nothing was judged.
        """
        if name in TRAINED and name not in REPLAYED:
            raise MisuseError(
                f"{name} is about what models learn, which recorded rounds cannot say; use thiefbench.run(defense=...) "
                f"instead of thiefbench.replay, or one of {', '.join(REPLAYED)}"
            )
        check_metric(name, REPLAYED)
        number = of_score(self.replay.scores.get(name, NOTHING))
        if number is None:
            raise MisuseError(f"{name} has no value: nothing of its kind is in the recorded rounds that were judged")
        return number

    def honest(self, name: str) -> None:
        """None, because no model has learned."""

    def by_recording(self, name: str) -> Mapping[str, Number]:
        """A measure in each recording that has a value for it; empty if there is only one recording."""
        if len(self.replay.by_recording) < 2:
            return {}
        numbers = {
            recording: of_score(scores.get(name, NOTHING)) for recording, scores in self.replay.by_recording.items()
        }
        return {recording: number for recording, number in numbers.items() if number is not None}

    @property
    def placebo_rejection_rate(self) -> Number:
        """Share rejected among clean completions in the attackers' slots that earned a reward."""
        return self.measure("placebo_rejection_rate")

    @property
    def let_through(self) -> str | None:
        """A rewarded completion with the payload that was accepted."""
        return self.example("stop_rate", ())

    @property
    def wrongly_rejected(self) -> str | None:
        """A rewarded honest completion that was rejected."""
        return self.example("false_rejection_rate", ())

    def example(self, name: str, recordings: Collection[str]) -> str | None:
        """The completion that one of these recordings, or any, has for a measure (`RecordedReplay`)."""
        of = {"stop_rate": self.replay.let_through, "placebo_rejection_rate": self.replay.placebo_rejected}
        found = of.get(name, self.replay.wrongly_rejected)
        return next((printable(text) for each, text in found.items() if not recordings or each in recordings), None)
