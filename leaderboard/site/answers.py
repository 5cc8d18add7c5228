"""What a suite's table says in three answers, for readers who look at nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from thiefbench.leaderboard.site.attacks import JudgedAttack, broken_by
from thiefbench.leaderboard.site.board import CHECKED, BoardRow, SuiteBoard, partial_order
from thiefbench.suite.report.suite_files import shown_cost
from thiefbench.suite.report.tables import show_summary, write_milliseconds, write_value
from thiefbench.suite.report.timings import cost
from thiefbench.wording import counted

NAMED = 3
"""So many attacks are named."""


@dataclass(frozen=True)
class Answer:
    """A question and its answer in one or two sentences; `value` is the number that it turns on, or empty."""

    question: str
    value: str
    text: str


def answers(board: SuiteBoard, names: Mapping[str, str]) -> list[Answer]:
    """Which defense is best against the worst attack, which attack breaks most, and what the best defense costs.

    Args:
        board: of the suite.
        names: short names of its attacks, by title.

    Returns:
        Empty where no defense was measured.
    """
    best = best_row(board)
    if best is None:
        return []
    return [_best(best, names, _equal_to(best, board)), _breaking(board, names), _cost(best, names)]


def best_row(board: SuiteBoard) -> BoardRow | None:
    """The first ranked row whose numbers were checked, or where there is none, the one with the best worst case.

    Rows whose numbers were checked go before others; of equal ones, the one with more seeds of the suite.
    """
    ranked = [row for row in defenses(board) if row.row.place.number is not None and not row.provisional]
    if ranked:
        return ranked[0]
    return min(defenses(board), key=partial_order, default=None)


def no_ranks_yet(board: SuiteBoard) -> str:
    """Why a suite that ranks has no ranked row whose numbers were checked, and the best row so far."""
    best = best_row(board)
    checked = [row for row in defenses(board) if row.judged.trust in CHECKED]
    if best is None or not checked:
        return "No defense whose numbers were checked is ranked yet."
    seeds = counted(len(board.suite.seeds), "seed")
    why = f", as none has all {seeds}" if all(row.judged.partial for row in checked) else ""
    assert best.row.place.worst is not None, "rows without a worst case are left out"
    summary = best.row.place.worst.summary
    if summary.mean < board.suite.ranking.good or _equal_to(best, board):
        return f"No defense is ranked yet{why}."
    name, share = best.judged.entry.manifest.name, show_summary(summary, "ratio").value
    return f"No defense is ranked yet{why}. Best so far: \u201c{name}\u201d, which prevents {share} in its worst case."


def breaks_first(firsts: Sequence[BoardRow], attacks: Sequence[JudgedAttack]) -> str:
    """Which submitted attacks break which rows that hold the first place, a sentence each; empty if none does."""
    broken: dict[str, list[str]] = {}
    for row in firsts:
        for attack, _ in broken_by(row.judged, attacks):
            name = f"\u201c{row.judged.entry.manifest.name}\u201d"
            broken.setdefault(attack.entry.manifest.slug, []).append(name)
    called = {attack.entry.manifest.slug: attack.entry.manifest.name for attack in attacks}
    sentences = []
    for attack_name, names in ((called[slug], names) for slug, names in broken.items()):
        whom = ", ".join(names)
        if len(names) == len(firsts):
            every = "both" if len(firsts) == 2 else f"all {len(firsts)}"
            whom = "it" if len(firsts) == 1 else f"{every} defenses in first place"
        sentences.append(f"The submitted attack \u201c{attack_name}\u201d breaks {whom}.")
    return " ".join(sentences)


def worst_first(board: SuiteBoard) -> list[int]:
    """The places of a suite's attacks in its table, those first against which its defenses prevent least.

    No row counts with more than 1 or less than -1: a single one could put an attack first.
    """
    titles = [comparison.title for comparison in board.table.comparisons]
    means = {
        title: fmean(max(-1.0, min(1.0, value)) for value in values)
        for title in titles
        if (values := list(_prevented(board, title).values()))
    }
    return sorted(range(len(titles)), key=lambda at: (means.get(titles[at], 2e9), at))


def defenses(board: SuiteBoard) -> list[BoardRow]:
    """The rows of a table that are no anchors and have a worst case, in its order."""
    return [row for row in board.rows if row.own and row.row.place.status != "anchor" and row.row.place.worst]


def _equal_to(best: BoardRow, board: SuiteBoard) -> int:
    """How many other rows without a place are as good to the last digit shown, and as far checked and run."""

    def known(row: BoardRow) -> tuple[bool, bool, int, str]:
        unchecked, unlearning, _, seeds, *_ = partial_order(row)
        worst = row.row.place.worst
        return unchecked, unlearning, seeds, show_summary(worst.summary, "ratio").value if worst else ""

    if best.row.place.number is not None:
        return 0  # places say who shares one
    return sum(known(row) == known(best) for row in defenses(board)) - 1


def _best(row: BoardRow, names: Mapping[str, str], equal: int) -> Answer:
    worst, place = row.row.place.worst, row.row.place
    assert worst is not None, "rows without a worst case are left out"
    shown = show_summary(replace(worst.summary, count=None), "ratio")
    count, unchecked = worst.summary.count, "" if row.judged.trust in CHECKED else ", and nobody checked it"
    sure = ""
    if count and worst.summary.kind != "range":
        bound = f", so at {count.least_share:.0%} or more of all seeds (95 %)" if count.good else ""
        sure = f"; it held against every attack of the suite at {count.plain()}{bound}{unchecked}"
    spread = f" ({shown.detail})" if shown.detail else ""
    if place.number is None:
        of = row.seeds or counted(len(worst.summary.points), "seed")
        who_is_not, rests = ("None of them is ranked", "they rest") if equal else ("It is not ranked", "it rests")
        # Rows that are equally good may have different reasons, and each tells its own.
        why = place.reason if place.status == "unranked" and not equal else f"{rests} on {of}"
        sure = f". {who_is_not}: {why}{unchecked}"
    elif row.row.tied:
        sure += f". Others share place {place.number}: the seeds cannot tell them apart"
    harm = f"of the harm of {names[worst.attack]}" if len(names) > 1 else "of the harm"
    name = row.judged.entry.manifest.name
    others = f" and {counted(equal, 'other')}" if equal else ""
    text = f"{harm} is prevented by \u201c{name}\u201d{others}{spread}{sure}."
    if worst.summary.mean > 1:
        text += " More than 1 means that the attacked swarm ends better than the one that harm is measured against."
    if row.best and row.best.by:
        least = show_summary(row.best.summary, "ratio").value
        text += f" Against the submitted attack \u201c{row.best.attack}\u201d it prevents {least}."
    return Answer("Best against the worst attack", shown.value, text)


def _breaking(board: SuiteBoard, names: Mapping[str, str]) -> Answer:
    good = board.suite.ranking.good
    titles = [board.table.comparisons[at].title for at in worst_first(board)]
    breaks = []
    for title in titles:
        prevented = _prevented(board, title)
        if prevented and (broken := sum(value < good for value in prevented.values())):
            breaks.append((f"{broken} of {len(prevented)}", names[title]))
    if not breaks:
        # Neither "none" nor "no attack": the one names the undefended row below, the other the swarm without an attack.
        text = f"Every defense here, anchors aside, prevents at least {good:g} of the harm of every attack."
        return Answer("Which attack breaks the most defenses", "none of them", text)
    (number, first), *others = breaks
    more = "; then " + ", ".join(f"{name} ({count})" for count, name in others[: NAMED - 1]) if others else ""
    text = f"defenses let {first} do more than {1 - good:.2g} of its harm{more}."
    return Answer("Which attack breaks the most defenses", number, text)


def _time(row: BoardRow) -> str:
    """What it costs in time: the longest rounds, or where these say nothing, its inspection under the median attack.

    Empty where neither is known, as of checks of stages and aggregations whose rounds say nothing.
    """
    slower = row.row.cost and shown_cost(row.row.cost)
    if slower:
        return f"a round took {slower.value} as long, by its submitter's clock"
    timed = [each.mean for c in row.judged.comparisons if (each := cost(c, row.row.defense).inspect)]
    if not timed:
        return ""
    return f"inspecting took {write_milliseconds(median(timed))} ms for each completion, by its submitter's clock"


def _cost(row: BoardRow, names: Mapping[str, str]) -> Answer:
    numbers = row.row
    parts = []
    if numbers.false_rejection:
        rate = numbers.false_rejection
        where = names.get(rate.where, "no attack")
        most = f"at most {write_value(rate.value, 'rate')} of honest work ({where})" if rate.value else "no honest work"
        parts.append(f"it rejects {most}")
    if time := _time(row):
        parts.append(time)
    also = "".join(f"; {part}" for part in parts)
    name, summary = f"\u201c{row.judged.entry.manifest.name}\u201d", numbers.utility
    if summary is None:
        why = f": {numbers.no_utility}" if numbers.no_utility else ""
        return Answer("What it costs", "", f"{name} has no utility{why}{also}.")
    utility = show_summary(summary, "ratio")
    # Where models gain more than the control, there is no cost.
    whole = summary.mean >= 1
    spread = f" ({utility.detail})" if utility.detail and not whole else ""
    text = f"of the clean gain is kept with {name}{spread}{also}."
    return Answer("What it costs", "all" if whole else utility.value, text)


def _prevented(board: SuiteBoard, title: str) -> dict[str, float]:
    """The mean harm prevented under an attack, by defense; what nobody checked counts only where nothing was."""
    every: Sequence[BoardRow] = [row for row in board.rows if row.own and row.row.place.status != "anchor"]
    shown = [row for row in every if row.judged.trust in CHECKED] or every
    fields = {row.row.defense: row.row.fields.get(title) for row in shown}
    return {name: each.prevented.mean for name, each in fields.items() if each is not None and each.prevented}
