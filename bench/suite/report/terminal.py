"""Results as tables for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized

from rich.console import Console
from rich.table import Table

from thiefbench.console import escaped
from thiefbench.pools.output import Outcome
from thiefbench.suite.analysis.differences import StoreComparison
from thiefbench.suite.analysis.matrix import DefenseRow, Matrix
from thiefbench.suite.report.compare import differing, identical, remarks, settings, state_of
from thiefbench.suite.report.plain_table import plain_table
from thiefbench.suite.report.run_table import print_whole
from thiefbench.suite.report.tables import Shown, headings, show, write_milliseconds
from thiefbench.suite.store.records import Record, Score
from thiefbench.tasks.text import one_line
from thiefbench.user_frames import shown
from thiefbench.wording import counted

_FILE_RATES = {
    "stop_rate": "stop rate", "false_rejection_rate": "false rejection", "rejection_rate": "all completions",
    "rejected_reward": "all reward",
}  # fmt: skip
_OF_LABELS = ("stop_rate", "false_rejection_rate")
"""Those that a file without labels cannot give."""
_MOST_LINES = 10
_LEAST_NAME = 12
"""Columns below which a name is not wrapped."""


def print_failures(out: Console, records: Sequence[Record], whole: bool = False) -> None:
    """Print where in the user's own code cells failed, once for each place; with `whole`, every frame."""
    failed: dict[str, list[Record]] = {}
    for record in records:
        if record.status == "error" and (lines := shown(record.provenance, whole=whole)):
            failed.setdefault(lines, []).append(record)
    for lines, alike in failed.items():
        first = alike[0].cell
        others = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        out.print(
            f"[bold]{escaped(first['attack'])} x {escaped(first['defense'])}, seed {first['seed']}{others}[/bold]"
        )
        print_frames(out, lines)
        if not whole:
            out.print(escaped(alike[0].error))


def print_frames(out: Console, lines: str) -> None:
    """Print where an error was raised, as Python shows it."""
    for line in lines.splitlines():
        out.print(escaped(line))


def print_matrix(out: Console, matrix: Matrix) -> None:
    """Print stop rates by defense and attack, with each defense's wrong rejections and time."""
    named = headings(matrix.columns)
    for column, heading in named.items():
        out.print(f"[bold]{escaped(heading)}[/bold]: {escaped(column.attack)} ({escaped(column.suite)})")
    out.print(
        "stop rates; brackets are 95 % intervals clustered by item and sender, 'a to b' a range over seeds or attacks"
    )
    table = plain_table(
        "defense", *named.values(), "worst case", "false rejection", "placebo rejection", "ms per completion"
    )
    for row in matrix.rows:
        if row.worst is None:
            table.add_row(escaped(row.defense), *["-"] * (len(named) + 4))
            continue
        rates = [show(row.scores("stop_rate", column), "rate") for column in named]
        table.add_row(
            escaped(row.defense),
            *("-" if shown is None else shown.value for shown in rates),
            _written(show(row.scores("stop_rate", row.worst), "rate")),
            _written(show(row.scores("false_rejection_rate"), "rate")),
            _written(show(row.scores("placebo_rejection_rate"), "rate")),
            write_milliseconds(row.milliseconds),
        )
    print_table(out, table)
    for row in matrix.rows:
        _print_problems(out, row)


def print_comparison(out: Console, comparison: StoreComparison) -> None:
    """Print the two sides of a comparison, one table per attack, and say what cannot be compared."""
    for side in (comparison.one, comparison.other):
        which = f"{side.defense} in " if side.defense else ""
        out.print(f"[bold]{side.name}[/bold]: {escaped(f'{which}{side.where}: {side.title}, {side.fingerprint[:12]}')}")
    for text in comparison.contradictions:
        out.print(f"[bold red]same cell, different scores:[/bold red] {escaped(text)}")
    for text in remarks(comparison):
        out.print(f"[yellow]{escaped(text)}[/yellow]")
    out.print(
        "B - A is paired by seed. With 5 seeds or more, its 95 % Student-t interval stands in brackets; with two to "
        "four, each seed's difference stands in parentheses"
    )
    for title in comparison.titles:
        out.print(f"\n[bold]{escaped(title)}[/bold]")
        if changed := settings(comparison, title):
            out.print(f"[yellow]not the same on both sides: {escaped('; '.join(changed))}[/yellow]")
        if same := identical(comparison, title):
            out.print(f"identical (the very same cells, the same scores): {escaped('; '.join(same))}")
        pairs = differing(comparison, title)
        table = plain_table("swarm", "measure", "A", "B", "B - A", "seeds")
        for pair, rows in pairs:
            for row in rows:
                written = (row["one"], row["other"], _written(row["change"]), str(row["seeds"]))
                table.add_row(escaped(pair.name), row["measure"], *written)
        if table.row_count:
            print_table(out, table)
        for pair, rows in pairs:
            if not rows:
                out.print(f"{escaped(pair.name)}: {state_of(pair)}")
            for text in pair.missing:
                out.print(f"[yellow]{escaped(f'{pair.name}: {text}')}[/yellow]")
    for text in comparison.alone:
        out.print(escaped(text))


def print_file_replays(out: Console, outcome: Outcome, details: bool) -> None:
    """Print defenses' results on a file of recorded pools.

    Args:
        out: the console.
        outcome: the results.
        details: also print senders, rounds and rejected completions of each defense.
    """
    facts = outcome.facts()
    senders = "no senders" if facts["senders"] is None else counted(facts["senders"], "sender")
    out.print(
        f"{escaped(facts['file'])}: {counted(facts['rounds'], 'round')}, {senders}, "
        f"{counted(facts['completions'], 'completion')}, {facts['labelled_payload']} of them with a label"
    )
    for note in outcome.notes():
        out.print(escaped(note))
    measures = {name: title for name, title in _FILE_RATES.items() if outcome.labelled or name not in _OF_LABELS}
    if outcome.replays:
        out.print("shares rejected; brackets are 95 % intervals clustered by item and sender")
        table = plain_table("defense", *measures.values(), "ms per completion")
        for replay in outcome.replays:
            rates = _file_rates(replay.scores, measures)
            table.add_row(escaped(replay.defense), *rates, write_milliseconds(replay.milliseconds))
        print_table(out, table)
    for replay in outcome.replays if details else ():
        if replay.by_sender:
            _print_part(out, f"{replay.defense}, by sender", replay.by_sender, measures)
        _print_part(out, f"{replay.defense}, by round", replay.by_round, measures)
        if replay.rejected:
            out.print(f"\n[bold]{escaped(replay.defense)}[/bold], rejected completions{_first_of(replay.rejected)}")
        for each in replay.rejected[:_MOST_LINES]:
            reward = "" if each.reward is None else f", reward {each.reward:g}"
            where = f"{each.where}, completion {each.position}{reward}"
            out.print(escaped(f"{where}: {each.action}, {one_line(each.reason or 'no reason given', 120)}"))
    for reason, names in _by_reason(outcome.left_out).items():
        out.print(f"[yellow]left out[/yellow] ({escaped(one_line(reason, 300))}): {escaped(', '.join(names))}")
    for name, reason in outcome.failed.items():
        out.print(f"[red]{escaped(name)}[/red] has no score: {escaped(one_line(reason, 300))}")


def _by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    """The defenses that are left out, by what each needs."""
    names: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        who, _, needs = reason.partition(" ")  # of logit(reject="drop"), the reason begins with logit
        names.setdefault(needs if name.startswith(who) else reason, []).append(name)
    return names


def _print_part(
    out: Console,
    title: str,
    scores: Mapping[str, Mapping[str, Score]] | Mapping[int, Mapping[str, Score]],
    measures: Mapping[str, str],
) -> None:
    """One defense's rates by sender or round."""
    out.print(f"\n[bold]{escaped(title)}[/bold]{_first_of(scores)}")
    table = plain_table("", "completions", *measures.values())
    for name, own_scores in list(scores.items())[:_MOST_LINES]:
        count = str(own_scores["rejection_rate"].count)
        table.add_row(escaped(one_line(str(name), 40)), count, *_file_rates(own_scores, measures))
    print_table(out, table)


def _first_of(things: Sized) -> str:
    return f": the first {_MOST_LINES} of {len(things)}; --json FILE keeps all" if len(things) > _MOST_LINES else ""


def _file_rates(scores: Mapping[str, Score], measures: Iterable[str]) -> Iterator[str]:
    for name in measures:
        score = scores[name]
        yield _interval(score) if score.low is not None else "-" if score.value is None else f"{score.value:.3f}"


def _print_problems(out: Console, row: DefenseRow) -> None:
    for problem in row.problems:
        out.print(f"[yellow]{escaped(row.defense)}[/yellow]: {escaped(problem)}")


def print_table(out: Console, table: Table) -> None:
    """Print a table whole; if a terminal is too narrow for it, intervals stand below their numbers, and names wrap."""
    if out.is_terminal and out.width < _width(out, table):
        table = _narrowed(out, table)
    if out.is_terminal and _width(out, table) <= out.width:
        out.print(table)
    else:
        print_whole(out, table)


def _narrowed(out: Console, table: Table) -> Table:
    narrow = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    for column in table.columns:
        narrow.add_column(re.sub(r"(?<=\w\w) (?=\w\w)", "\n", str(column.header)), no_wrap=True)
    for row in zip(*(column.cells for column in table.columns), strict=True):
        narrow.add_row(row[0], *(re.sub(r" (?=\\?[\[(])", "\n", str(cell)) for cell in row[1:]))
    names = narrow.columns[0]
    longest = max(out.measure(each).maximum for each in (names.header, *names.cells))
    names.no_wrap, names.overflow = False, "fold"
    names.max_width = max(min(longest, _LEAST_NAME), longest + out.width - _width(out, narrow))
    return narrow


def _width(out: Console, table: Table) -> int:
    """The width of a table in which nothing is cut or wrapped, in columns."""
    return out.measure(table, options=out.options.update(width=10_000)).maximum


def _interval(score: Score) -> str:
    if score.value is None:
        return "-"
    return escaped(f"{score.value:.3f} [{score.low:.3f}, {score.high:.3f}]")


def _written(shown: Shown | None) -> str:
    return "-" if shown is None else escaped(f"{shown.value} {shown.detail}".strip())
