"""Results as text: how a score is written, the CSV file and the LaTeX table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thiefbench import registry
from thiefbench.spreadsheet import csv_of
from thiefbench.suite.analysis.comparison import Comparison, Line
from thiefbench.suite.analysis.drift import MEASURES as DRIFT
from thiefbench.suite.analysis.matrix import Column as MatrixColumn
from thiefbench.suite.analysis.measures import COLUMNS, OF_COMPLETIONS, OF_OTHERS, Column, Unit
from thiefbench.suite.analysis.statistics import FEW_SEEDS, Summary, paired
from thiefbench.suite.report.line_names import line_label
from thiefbench.suite.store.records import NOTHING, Score

NBSP = "\u00a0"
UNEARNED = "unearned_reward"
"""A column only for swarms in which a judge rewards."""


def columns_of(comparisons: Sequence[Comparison]) -> tuple[Column, ...]:
    """The columns that a table of these comparisons needs: none for what was not measured, or if nothing is masked."""
    lines = [line for comparison in comparisons for line in comparison.lines]
    optional = (*DRIFT, "asr_printed", UNEARNED, *OF_COMPLETIONS, *OF_OTHERS)
    left_out = {measure for measure in optional if not any(line.scores(measure) for line in lines)}
    if not any(score.value for line in lines for score in line.scores("masked_rate")):
        left_out.add("masked_rate")
    return tuple(column for column in COLUMNS if column.measure not in left_out)


@dataclass(frozen=True)
class Shown:
    """A score in writing: the value, and below it what it is uncertain by (empty where that is not known)."""

    value: str
    detail: str


def short_names(attacks: Sequence[str]) -> list[str]:
    """A heading for every attack: its name, that of an attack it is built around, and what tells it from earlier ones.

    That is the numbers among its arguments that none of these has, or a count where there are none or they are long.
    """
    headings: list[str] = []
    earlier: dict[str, list[str]] = {}
    for attack in attacks:
        name = _short_name(attack)
        alike = earlier.setdefault(name, [])
        numbered = f"{name} {len(alike) + 1}" if alike else name
        apart = _arguments_apart(attack, alike) if alike else ""
        told = f"{name} {apart}" if apart else numbered
        headings.append(numbered if told in headings else told)
        alike.append(attack)
    return headings


_APART = 24
"""Most characters of the arguments in a heading."""


def _arguments_apart(attack: str, others: Sequence[str]) -> str:
    """The numbers among an attack's arguments that no other has; empty where there are none or they are long."""
    known = [registry.parse("attack", other).arguments for other in others]
    own = sorted(registry.parse("attack", attack).arguments.items())
    numbers = [(name, value) for name, value in own if isinstance(value, int | float)]
    told = ", ".join(f"{name}={value}" for name, value in numbers if all(value != each.get(name) for each in known))
    return told if len(told) <= _APART else ""


def headings(columns: Sequence[MatrixColumn]) -> dict[MatrixColumn, str]:
    """A short name for every column."""
    return dict(zip(columns, short_names([column.attack for column in columns]), strict=True))


def _short_name(attack: str) -> str:
    parsed = registry.parse("attack", attack)
    name, inner = parsed.target.rpartition(":")[2], registry.argument("attack", parsed, "attack")
    return f"{name} {_short_name(inner)}" if isinstance(inner, str) else name


POINTS = "pp"


def write_value(value: float, unit: Unit, percent: bool = True) -> str:
    """One number in its unit. A "rate" above 1 is an outcome that is no rate, such as a length, and stays as it is."""
    if unit == "rate":
        return minus(f"{100 * value:z.1f}{NBSP}%" if percent else f"{value:z.1f}")
    digits = {"ratio": 2, "reward": 3, "tokens": 1, "seconds": 3, "milliseconds": 0, "bits": 3, "rounds": 0}[unit]
    return minus(f"{value:z.{digits}f}")


def write_signed(value: float, unit: Unit, percent: bool = True) -> str:
    """A difference in its unit, with its sign; none where it is zero to the last digit shown.

    Two shares differ by percentage points (pp).
    """
    written = write_value(value, unit, percent).replace("%", POINTS)
    plain = written.startswith("\u2212") or not any(digit in written for digit in "123456789")
    return written if plain else f"+{written}"


def minus(number: str) -> str:
    """A number in writing, with a real minus sign."""
    return number.replace("-", "\u2212")


def write_milliseconds(value: float | None) -> str:
    """Milliseconds per completion, with as many digits as say something."""
    if value is None:
        return ""
    if value < 0.001:
        return "<0.001"
    return f"{value:.3f}" if value < 1 else f"{value:.1f}"


def show(scores: Sequence[Score], unit: Unit) -> Shown | None:
    """Scores of one measure over seeds in writing: one seed with its interval, several as mean and range.

    A range whose ends agree to the last digit shown is not written.

    Returns:
        None where no seed has a value.
    """
    values = [score.value for score in scores if score.value is not None]
    if not values:
        return None
    percent = max(values) <= 1

    def bounds(low: float, high: float, pattern: str) -> str:
        return pattern.format(*(write_value(v, unit, percent).removesuffix(f"{NBSP}%") for v in (low, high)))

    if len(values) > 1:
        detail = bounds(min(values), max(values), "{} to {}")
        least, _, most = detail.partition(" to ")
        detail = "" if least == most else detail
        return Shown(write_value(sum(values) / len(values), unit, percent), detail)
    low, high = next((score.low, score.high) for score in scores if score.value is not None)
    detail = "" if low is None or high is None else bounds(low, high, "[{}, {}]")
    return Shown(write_value(values[0], unit, percent), detail)


def show_summary(summary: Summary, unit: Unit) -> Shown:
    """A measure over seeds in writing: its mean, with the interval in brackets or the range of few seeds in words.

    Limits that agree to the last digit shown are not written, as they would look like certainty. At how many seeds the
    value was good enough follows an interval, and stands in its place where there is none.
    """
    ends = [value for _, value in summary.points] + [summary.mean]
    percent = max(ends) <= 1
    low, high = (write_value(v, unit, percent).removesuffix(f"{NBSP}%") for v in (summary.low, summary.high))
    if summary.kind == "range":
        return Shown(write_value(summary.mean, unit, percent), f"{low} to {high}" if len(summary.points) > 1 else "")
    bounds = "" if summary.kind == "equal" or low == high else f"[{low}, {high}]"
    counted = summary.count.text() if summary.count else "" if bounds else f"equal at {len(summary.points)} seeds"
    return Shown(write_value(summary.mean, unit, percent), " ".join(filter(None, (bounds, counted))))


def signed(scores: Sequence[Score]) -> str:
    """The mean of a difference in reward, with its sign; empty without a value."""
    values = [score.value for score in scores if score.value is not None]
    return minus(f"{sum(values) / len(values):+z.3f}") if values else ""


def paired_difference(line: Line, other: Line, measure: str) -> Summary | None:
    """Mean over seeds of the difference of two lines, paired by seed, with its 95 % Student-t interval.

    Returns:
        None with fewer than 5 common seeds: points and range say all that is known then.
    """
    one, two = (
        {r.seed: value for r in side.results if (value := r.scores.get(measure, NOTHING).value) is not None}
        for side in (line, other)
    )
    if len(one.keys() & two.keys()) < FEW_SEEDS:
        return None
    return paired(one, two)


def csv_text(run: Mapping[str, Any], comparisons: Sequence[Comparison]) -> str:
    """Every result of every line at every seed, unrounded; intervals are over the completions of one cell."""
    lines = [line for comparison in comparisons for line in comparison.lines]
    left_out = {measure for measure in (UNEARNED, *OF_OTHERS) if not any(line.scores(measure) for line in lines)}
    shown = [column.measure for column in COLUMNS if column.measure not in left_out]
    measures = [*shown, "start_reward", "gain", "rejection_rate"]
    head = ["suite", "part", "attack", "line", "how", "role", "defense", "seed", "cell_id", "status", "problem"]
    rows: list[list[object]] = [[*head, *(f"{m}{part}" for m in measures for part in ("", "_low", "_high"))]]
    for comparison in comparisons:
        for line in comparison.lines:
            for result in line.results:
                who = [run["title"], comparison.part, comparison.attack, line.name, line.how, line.role, line.defense]
                state = [result.seed, result.cell_id, "no score" if result.problem else "ok", result.problem]
                scores = [result.scores.get(measure, NOTHING) for measure in measures]
                numbers = [number for score in scores for number in (score.value, score.low, score.high)]
                rows.append([*who, *state, *numbers])
    return csv_of(rows)


# Written out and not by pandas.DataFrame.to_latex: every report would import pandas for it, and the cells (a value with
# its interval, a row without a score) and the lines between comparisons would still be written by hand.
def tex_text(run: Mapping[str, Any], comparisons: Sequence[Comparison]) -> str:
    r"""The results table for a paper; it needs \usepackage{booktabs}."""
    columns = columns_of(comparisons)
    width = len(columns) + 1
    body: list[str] = []
    for comparison in comparisons:
        body += [r"\midrule", rf"\multicolumn{{{width}}}{{l}}{{\textit{{{tex(comparison.title)}}}}} \\"]
        body += [rf"{' & '.join(_tex_line(line, columns))} \\" for line in comparison.lines]
    few = max((len(comparison.seeds) for comparison in comparisons), default=0) == 1
    over = "95 % intervals over one cell's completions" if few else "range over seeds"
    notes = f"{run['title']}; in small type {over}. * not trained: replayed on undefended pools, or the start model."
    return tex_table(["Defense", *(column.title for column in columns)], body, notes)


def tex_table(heads: Sequence[str], body: Sequence[str], notes: str, above: Sequence[str] = ()) -> str:
    """A table for LaTeX with a line of notes below it.

    Args:
        heads: one for each column, as LaTeX; the first column is that of names.
        body: its lines, as LaTeX; the first is a rule.
        notes: as plain text.
        above: lines above the heads, as LaTeX.
    """
    width = len(heads)
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}", r"\begin{tabular}{l" + "r" * (width - 1) + "}", r"\toprule", *above,
            rf"{' & '.join(heads)} \\", *body, r"\bottomrule",
            rf"\multicolumn{{{width}}}{{l}}{{\footnotesize {tex(notes)}}} \\", r"\end{tabular}", "",
        ]
    )  # fmt: skip


def _tex_line(line: Line, columns: Sequence[Column]) -> list[str]:
    star = "" if line.how == "trained" else r"$^{*}$"
    label = tex(line_label(line.name)) + star
    if len(line.failures) == len(line.results):
        return [label, rf"\multicolumn{{{len(columns)}}}{{c}}{{no score}}"]
    shown = [show(line.scores(column.measure), column.unit) for column in columns]
    return [label, *("---" if s is None else tex_shown(s) for s in shown)]


def tex_shown(shown: Shown) -> str:
    """A score for a LaTeX table: its value, and in small type what it is uncertain by."""
    detail = rf" {{\scriptsize {tex(shown.detail)}}}" if shown.detail else ""
    return tex(shown.value) + detail


_TEX = str.maketrans({
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "_": r"\_", "&": r"\&", "%": r"\%", "#": r"\#", "$": r"\$",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", NBSP: r"\,", "\u2212": "$-$", "\u2265": r"$\geq$", "\n": " ",
})  # fmt: skip


def tex(text: str) -> str:
    """A text with what LaTeX would take as a command escaped."""
    return text.translate(_TEX)
