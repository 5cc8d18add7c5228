"""Which of two sides a paired difference speaks for, and what may be said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from thiefbench.suite.analysis.differences import Difference, LinePair, StoreComparison
from thiefbench.suite.analysis.statistics import FEW_SEEDS
from thiefbench.suite.report.tables import write_value

Kind = Literal["better", "worse", "unclear", "same", "neutral"]

WANTED = {
    "asr": -1, "drift": -1, "divergence": -1, "harm_prevented": 1, "stop_rate": 1, "false_rejection_rate": -1,
    "utility": 1, "vector_stop_rate": 1, "vector_false_rejection_rate": -1, "stage_false_rejection_rate": -1,
}  # fmt: skip
"""Whether more (1) or less (-1) of a measure is better; of the others, such as a length, neither is."""
MAIN = ("harm_prevented", "false_rejection_rate", "utility")
"""What the headline is about; where harm prevented is not known, the ASR stands for it."""
SIGNS: dict[Kind, str] = {
    "better": "\u2713 better", "worse": "\u2717 worse", "unclear": "\u2248 not told apart", "same": "= the same",
    "neutral": "\u00b7 neither",
}  # fmt: skip
"""A sign and a word for each, so that no colour is needed."""
_ROUNDING = 1e-12


def verdict(each: Difference) -> Kind:
    """What a difference says of B.

    With an interval, B is better or worse where the interval leaves out 0; with fewer seeds than an interval takes,
    where every seed has that sign and the mean is not zero to the last digit shown, which is no test.
    """
    change = each.change
    values = [value for _, value in change.points]
    if all(abs(value) <= _ROUNDING for value in values):
        return "same"
    if change.kind == "range":
        if not any(digit in write_value(change.mean, each.column.unit) for digit in "123456789"):
            return "unclear"
        low, high = min(values), max(values)
    else:
        low, high = change.low, change.high
    if not (low > _ROUNDING or high < -_ROUNDING):
        return "unclear"
    wanted = WANTED.get(each.column.measure, 0)
    return "neutral" if wanted == 0 else "better" if wanted * change.mean > 0 else "worse"


@dataclass(frozen=True)
class Headline:
    """The main measures of the defended swarms under attack.

    Attributes:
        by_measure: the title of each, and its differences with what they say, one for each pair of lines.
        pairs: how many pairs of lines there are.
        least_seeds: of all differences.
    """

    by_measure: tuple[tuple[str, tuple[tuple[Difference, Kind], ...]], ...]
    pairs: int
    least_seeds: int

    @property
    def caveat(self) -> str:
        """What better and worse mean with few seeds; empty where there are intervals."""
        if self.least_seeds >= FEW_SEEDS:
            return ""
        if self.least_seeds == 1:
            return "One seed: better and worse are those of this seed, and another may say the opposite."
        return (
            f"With fewer than {FEW_SEEDS} seeds there is no interval: better and worse mean that every seed has that "
            "sign, which may be chance."
        )

    @property
    def sentences(self) -> str:
        """The headline without the names of the sides: what follows "B is"; empty where nothing was measured."""
        if not self.by_measure:
            return ""
        if self.pairs > 1:
            kinds = [kind for _, differences in self.by_measure for _, kind in differences]
            what = _joined([title for title, _ in self.by_measure])
            # What weighs more comes first; where both weigh the same, the harm.
            better, worse = kinds.count("better"), kinds.count("worse")
            first, second = ("better", better), ("worse", worse)
            if worse >= better:
                first, second = second, first
            counted = f"{first[0]} than A in {first[1]} of {len(kinds)} paired differences of {what}"
            return f"{counted}, and {second[0]} in {second[1]}"
        of_kind = {kind: [t for t, ((_, each),) in self.by_measure if each == kind] for kind in SIGNS}
        said = [f"{kind} than A in {_joined(of_kind[kind])}" for kind in ("better", "worse") if of_kind[kind]]
        text = " and ".join(said).replace(" and worse than A in", " and worse in")
        if not said:
            return f"not told apart from A in {_joined([title for title, _ in self.by_measure])}"
        apart = [*of_kind["unclear"], *of_kind["same"]]
        return f"{text}; {_joined(apart)} cannot be told apart" if apart else text


def headline(comparison: StoreComparison) -> Headline:
    """What is said first of two sides."""
    pairs = [pair for pair in comparison.pairs if pair.attacked and pair.state != "identical"]
    measures = [name if _measured(pairs, name) else "asr" if name == MAIN[0] else "" for name in MAIN]
    found = []
    for measure in filter(None, measures):
        differences = [each for pair in pairs for each in pair.differences if each.column.measure == measure]
        if differences:
            said = tuple((each, verdict(each)) for each in differences)
            title = differences[0].column.title
            found.append((title if title.isupper() else title.lower(), said))
    seeds = [len(each.change.points) for _, said in found for each, _ in said]
    return Headline(tuple(found), max((len(said) for _, said in found), default=0), min(seeds, default=0))


def _measured(pairs: Sequence[LinePair], measure: str) -> bool:
    return any(each.column.measure == measure for pair in pairs for each in pair.differences)


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""
