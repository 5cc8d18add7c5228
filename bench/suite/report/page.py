"""The report of a run: a self-contained page, its plots as PNG, its numbers as CSV and as a LaTeX table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from markupsafe import Markup

from thiefbench import registry
from thiefbench.suite.analysis.comparison import Cell, Comparison, Line, Result, state_of
from thiefbench.suite.analysis.measures import COLUMNS, REJECTED, STOPPED
from thiefbench.suite.analysis.ranking import anchor_of
from thiefbench.suite.analysis.ranking_inputs import why_no_ranking
from thiefbench.suite.analysis.run_comparisons import ReportError, comparisons_of_run, last_run
from thiefbench.suite.analysis.statistics import FEW_SEEDS
from thiefbench.suite.report import plots
from thiefbench.suite.report.drawing import Plot, embed
from thiefbench.suite.report.excerpts import first_submission, poisoned_answers
from thiefbench.suite.report.heterogeneity import class_rows
from thiefbench.suite.report.hole import how_the_hole_works
from thiefbench.suite.report.overview import SuiteTable, suite_table
from thiefbench.suite.report.ranking_notes import ranking_notes
from thiefbench.suite.report.reading_notes import doubt_note, honest_drift_note
from thiefbench.suite.report.rendering import render
from thiefbench.suite.report.samples import MOST_SAMPLES
from thiefbench.suite.report.shades import legend
from thiefbench.suite.report.suite_files import shown_costs, shown_table, suite_csv, suite_tex
from thiefbench.suite.report.swarm_facts import facts
from thiefbench.suite.report.tables import (
    Shown,
    columns_of,
    csv_text,
    paired_difference,
    short_names,
    show,
    show_summary,
    signed,
    tex_text,
    write_value,
)
from thiefbench.suite.report.timings import costs
from thiefbench.suite.report.tradeoff import draw_tradeoff
from thiefbench.suite.report.unseen_notice import shown_unseen
from thiefbench.suite.report.viewer import write_viewer
from thiefbench.suite.store.arithmetic import mixture
from thiefbench.suite.store.records import NOTHING, Record, Score, Store, write_atomically
from thiefbench.trust import reads_strangers
from thiefbench.wording import counted, seeds_in_words

NAMED = plots.TOGETHER
"""The headline names up to this many defenses; of more, it names the best and the worst."""
FEW_PANELS = 8
"""For more defenses than this, only the plot of the attack's success is shown unfolded."""
FEW_ROWS = 6
"""Longer tables of cells and costs are folded."""
LISTED = 6
"""At the top of the page, up to so many reasons why cells have no score, and names for each, are listed openly."""


@reads_strangers
def write_report(
    store: Store, damaged: Callable[[Cell], None] = lambda cell: None, samples: int = MOST_SAMPLES
) -> Path:
    """Write the report of a store's last run into its folder `report`.

    Args:
        store: a store that `thiefbench run` filled. Cells may be missing, failed or damaged; the report says so.
        damaged: called with every cell whose stored files are damaged.
        samples: the most completions on the page completions.html; 0 for no such page.

    Returns:
        The page, index.html. Beside it: completions.html, the plots as PNG, results.csv, suite.csv, table.tex,
        suite.tex.

    Raises:
        ReportError: the store has no run, or none of its cells has a record.
    """
    run = last_run(store)
    comparisons = comparisons_of_run(store, run)
    if not any(cell.record for comparison in comparisons for cell in comparison.cells):
        raise ReportError(f"no cell of the run in {store.root} is finished; go on with the command that began it")
    folder = store.output_folder("report")
    for stale in folder.glob("*.png"):
        stale.unlink()
    drawn = {c.title: plots.draw_all(c, f"ThiefBench {run['title']}, {c.title}") for c in comparisons}
    for number, comparison in enumerate(comparisons, 1):
        for plot in drawn[comparison.title]:
            write_atomically(folder / f"{_prefix(number, comparisons)}{plot.name}.png", plot.png)
    write_atomically(folder / "results.csv", csv_text(run, comparisons).encode("utf-8", "replace"))
    write_atomically(folder / "table.tex", tex_text(run, comparisons).encode("utf-8", "replace"))
    table = suite_table(run, comparisons)
    tradeoff = draw_tradeoff(table, f"ThiefBench {run['title']}")
    if tradeoff:
        write_atomically(folder / "tradeoff.png", tradeoff.png)
    write_atomically(folder / "suite.csv", suite_csv(run, table).encode("utf-8", "replace"))
    write_atomically(folder / "suite.tex", suite_tex(run, table).encode("utf-8", "replace"))
    page = folder / "index.html"
    headings = short_names([comparison.attack for comparison in comparisons])
    sections = [
        _section(number, comparison, drawn[comparison.title], heading, comparisons[0])
        for number, (comparison, heading) in enumerate(zip(comparisons, headings, strict=True), 1)
    ]
    shown = write_viewer(folder, run, comparisons, samples)
    write_atomically(page, _render(run, comparisons, sections, table, tradeoff, shown).encode("utf-8", "replace"))
    for cell in (cell for comparison in comparisons for cell in comparison.cells if cell.state == "damaged"):
        damaged(cell)
    return page


def _render(
    run: Mapping[str, Any],
    comparisons: Sequence[Comparison],
    sections: Sequence[Mapping[str, Any]],
    table: SuiteTable,
    tradeoff: Plot | None,
    samples: int,
) -> str:
    """The page."""
    records = [record for comparison in comparisons for _, record in comparison.finished]
    unfinished = [cell for comparison in comparisons for cell in comparison.cells if cell.problem]
    places = [] if why_no_ranking(run["suite"], comparisons) else [row.place for row in table.rows]
    shown_cost_rows = shown_costs(costs(comparisons))
    return render(
        "page.html.jinja",
        run=run,
        suite=run["suite"],
        about=_about(run["suite"]),
        sections=sections,
        overview=_said_once(shown_table(table)),
        ranking_notes=ranking_notes(comparisons[0].rules),
        scale=legend(),
        tradeoff=tradeoff and {"svg": Markup(embed(tradeoff, "tradeoff")), "note": tradeoff.note},
        places=places,
        contents=_contents(comparisons, sections, bool(places), bool(shown_cost_rows)),
        costs=shown_cost_rows,
        few_rows=FEW_ROWS,
        few=len(table.seeds) < FEW_SEEDS,
        columns=columns_of(comparisons),
        cells=sum(len(comparison.cells) for comparison in comparisons),
        unseen=[shown for comparison in comparisons for shown in shown_unseen(comparison)],
        samples=samples,
        unfinished=len(unfinished),
        problems=_problems(unfinished, _titles(comparisons, sections)),
        listed=LISTED,
        making=_making(run, comparisons),
        timings=[(cell, cell.record) for comparison in comparisons for cell in comparison.cells],
        phases=_phases(records),
    )


def _about(suite: Mapping[str, Any]) -> str:
    """What the suite says of itself; nothing where other attacks were run than those that it describes."""
    replaced = any(label.startswith("attacks ") for label in suite["modified"])
    return "" if replaced else str(suite["about"])


def _said_once(shown: dict[str, Any]) -> dict[str, Any]:
    """The suite's table without rows that have no number, and without footnotes that every row has.

    These are its `unscored`, pairs of some defenses and why they have none, and its `everywhere`.
    """
    numbers = ("worst", "utility", "false_rejection", "drift", "cost")
    rows: list[dict[str, Any]] = []
    unscored: dict[tuple[str, ...], list[str]] = {}
    for row in shown["rows"]:
        if any(row[name] for name in numbers) or any(row["fields"]):
            rows.append(row)
        else:
            unscored.setdefault(tuple(row["footnotes"]), []).append(row["defense"])
    shared = (
        [each for each in rows[0]["footnotes"] if all(each in row["footnotes"] for row in rows)] if rows[1:] else []
    )
    for row in rows:
        row["footnotes"] = [each for each in row["footnotes"] if each not in shared]
    return shown | {
        "rows": rows,
        "unscored": [(names, "; ".join(why)) for why, names in unscored.items()],
        "everywhere": shared,
    }


def _problems(cells: Sequence[Cell], titles: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Why cells have no score, each reason once, failures first, and which cells; of several attacks it is named."""
    named: dict[str, dict[str, list[int]]] = {}
    for cell in sorted(cells, key=lambda cell: cell.state == "missing"):
        name = f"{cell.name} ({titles[cell.title]})" if len(titles) > 1 else cell.name
        named.setdefault(cell.problem, {}).setdefault(name, []).append(cell.seed)
    return [
        (problem, [f"{name}, {seeds_in_words(seeds)}" for name, seeds in names.items()])
        for problem, names in named.items()
    ]


def _titles(comparisons: Sequence[Comparison], sections: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What the page calls each comparison, by its title."""
    headed = zip(comparisons, (section["heading"] for section in sections), strict=True)
    return {each.title: f"{each.part}: {heading}" if each.part else heading for each, heading in headed}


def _contents(
    comparisons: Sequence[Comparison], sections: Sequence[Mapping[str, Any]], ranked: bool, timed: bool
) -> list[dict[str, Any]]:
    """The page's table of contents: parts of the page, each with its own parts, as (id, title)."""

    def parts(section: Mapping[str, Any]) -> list[tuple[str, str]]:
        number = section["number"]
        return [
            *([(f"curves-{number}", "curves")] if section["plots"] else []),
            (f"results-{number}", "results"),
            *([(f"answers-{number}", "what models learned to say")] if section["answers"] else []),
        ]

    entries: list[dict[str, Any]] = []
    if len(sections) > 1:
        entries.append({"id": "suite", "title": "Every defense against every attack", "parts": []})
    for section, title in zip(sections, _titles(comparisons, sections).values(), strict=True):
        entries.append({"id": f"attack-{section['number']}", "title": title, "parts": parts(section)})
    if ranked:
        entries.append({"id": "ranking", "title": "Ranking", "parts": []})
    made = [*([("costs", "what the defenses cost")] if timed else []), ("cells", "cells")]
    return [*entries, {"id": "made", "title": "How it was made", "parts": made}]


def _section(
    number: int, comparison: Comparison, drawn: Sequence[Plot], heading: str, first: Comparison
) -> dict[str, Any]:
    """What the page shows of one attack; what it shares with the first is said there."""
    records = [record for _, record in comparison.finished]
    drew = [record.payload for record in records if record.payload and record.cell["role"] != "control"]
    none = comparison.line("none")
    told = _named(comparison)
    missing = [line for line in comparison.lines if line.results and all(map(_is_missing, line.results))]
    trained = [line for line in comparison.lines if line.how == "trained" and line not in missing]
    free = [line for line in trained if line.role == "control" and line.defense != "none"]
    unattacked = free if len(free) > NAMED else []
    alone = not any((cell.role, cell.defense) == ("attack", "none") for cell in comparison.cells)
    by_domain = any(record.cell.get("experts") for record in records)
    return {
        "comparison": comparison,
        "number": number,
        "heading": heading,
        "as_before": comparison is not first and bool(_facts(comparison)),
        "payloads": list(dict.fromkeys(tuple(payload.items()) for payload in drew)),
        "facts": [fact for fact in _facts(comparison) if comparison is first or fact not in _facts(first)],
        "claims": _claims(comparison),
        "verdicts": [_verdict(line, none) for line in told if _first(line, STOPPED)],
        "speaks": any("phrase" in record.payload for record in records),
        "plots": {plot.name: _shown_plot(plot, f"s{number}-{plot.name}") for plot in drawn},
        "styles": plots.styles(comparison),
        "drawn": plots.drawn_lines(comparison),
        "crowded": any(plot.panels for plot in drawn),
        "few_panels": len(comparison.defended) <= FEW_PANELS,
        "tables": [
            ("Trained", [_row(line) for line in trained if line not in unattacked]),
            ("Not trained", [_row(line) for line in comparison.lines if line.how != "trained"]),
        ],
        "unattacked": [_row(line) for line in unattacked],
        "missing": [line.name for line in missing],
        "classes": class_rows(comparison, by_domain),
        "by_domain": by_domain,
        "seeds": comparison.seeds,
        "few": len(comparison.seeds) < FEW_SEEDS,
        "reference": comparison.reference_role,
        "honest_drift": honest_drift_note(comparison.controls),
        "undefended_elsewhere": alone,
        "doubt": doubt_note(comparison.why_inconclusive) if comparison.why_inconclusive and not alone else "",
        "computed": mixture(records),
        "paired": [
            (line.name, show_summary(difference, "rate"))
            for line in comparison.defended
            if none is not None and (difference := paired_difference(line, none, "asr")) is not None
        ],
        "answers": poisoned_answers(comparison),
        "open_answers": {"none", "no attack", *(line.name for line in told)},
        "submission": first_submission(comparison),
        "hole": how_the_hole_works(_first_cell(comparison)),
    }


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    """What its swarms were like."""
    return facts(_first_cell(comparison))


def _first_cell(comparison: Comparison) -> Mapping[str, Any]:
    """The parameters of the first cell that has a record; empty without one."""
    return next((cell.record.cell for cell in comparison.cells if cell.record), {})


def _shown_plot(plot: Plot, prefix: str) -> dict[str, Any]:
    """A plot as the page shows it: one drawing, or one for each of its panels."""
    return {
        "svg": Markup(embed(plot, prefix)) if plot.svg else "",
        "panels": [
            {"name": panel.name, "last": panel.last, "svg": Markup(embed(panel, f"{prefix}-{place}"))}
            for place, panel in enumerate(plot.panels, 1)
        ],
        "right": f"{plot.right:.3f}",
        "note": plot.note,
    }


def _is_missing(result: Result) -> bool:
    return state_of(result.problem) == "missing"


def _row(line: Line) -> dict[str, Any]:
    """A line of the table, and every seed's points if there are several."""
    shown = {column.measure: show(line.scores(column.measure), column.unit) for column in COLUMNS}
    points = [
        (result, {c.measure: show([result.scores.get(c.measure, NOTHING)], c.unit) for c in COLUMNS})
        for result in line.results
    ]
    lost, every = len(line.failures), len(line.results)
    notes = [*line.notes, *([f"no score at {lost} of {every} seeds"] if 0 < lost < every else [])]
    return {"line": line, "shown": shown, "gain": signed(line.scores("gain")), "points": points, "notes": notes}


def _named(comparison: Comparison) -> list[Line]:
    """The defended lines that the headline names: all of few, of more the best and the worst of those with a score.

    Anchors are named where nothing else was run: rejecting everything is no defense.
    """
    scored = [line for line in comparison.defended if line.scores("asr")]
    if len(scored) <= NAMED:
        return scored
    ordered = sorted([line for line in scored if not anchor_of(line.defense)] or scored, key=plots.reached)
    return [ordered[0], ordered[-1]] if len(ordered) > 1 else ordered


def _claims(comparison: Comparison) -> list[dict[str, Any]]:
    """The numbers of the headline: who, and the ASR there. Without a finished undefended cell there is no headline."""
    none, control = comparison.line("none"), comparison.line("no attack")
    if none is None or not none.scores("asr"):
        return []
    claims, named = [_claim("Without a defense", none)], _named(comparison)
    count = sum(bool(line.scores("asr")) for line in comparison.defended)
    if count <= NAMED or len(named) == 1:
        claims += [_claim("with", line, line.name) for line in named]
    elif plots.reached(named[0]) == plots.reached(named[-1]):
        shown = Shown(write_value(plots.reached(named[0]), "rate", plots.reached(named[0]) <= 1), "")
        claims.append({"who": f"with each of the {count} defenses", "spec": "", "line": None, "shown": shown})
    else:
        best, worst = named
        claims += [_claim("at best, with", best, best.name), _claim("at worst, with", worst, worst.name)]
    return claims + ([_claim("with no attacker", control)] if control is not None and control.scores("asr") else [])


def _claim(who: str, line: Line, spec: str = "") -> dict[str, Any]:
    scores = line.scores("asr")
    scored = sum(score.value is not None for score in scores)
    return {"who": who, "spec": spec, "line": line, "shown": show(scores, "rate"), "seeds": scored}


def _verdict(line: Line, undefended: Line | None) -> dict[str, Any]:
    """A defense's numbers: poison stopped, honest work rejected, share of the clean gain kept, with it and without."""
    of_completions, clipped = bool(line.scores("stop_rate")), line.scores("vector_clip_rate")
    return {
        "line": line,
        "stopped": show(_first(line, STOPPED), "rate"),
        "rejected": show(_first(line, REJECTED), "rate"),
        "clipped": show(clipped, "rate") if any(score.value for score in clipped) else None,
        "poison": "the rewarded poison" if of_completions else "the malicious vectors",
        "honest": "the rewarded honest completions" if of_completions else "the honest ones",
        "kept": _gain_kept(line),
        "kept_undefended": _gain_kept(undefended) if undefended else "",
    }


def _gain_kept(line: Line) -> str:
    """The share of the clean gain that is kept; empty if no seed has one."""
    utilities = [score.value for score in line.scores("utility") if score.value is not None]
    return f"{100 * fmean(utilities):z.0f}\u00a0%" if utilities else ""


def _first(line: Line, measures: Sequence[str]) -> list[Score]:
    """A line's scores of the first of these measures that it has; empty if it has none."""
    return next((scores for measure in measures if (scores := line.scores(measure))), [])


def _making(run: Mapping[str, Any], comparisons: Sequence[Comparison]) -> list[tuple[str, str]]:
    """How the run was made; if cells differ, all values are listed."""
    records = [cell.record for comparison in comparisons for cell in comparison.cells if cell.record is not None]

    def each(values: Iterable[object]) -> str:
        return "; ".join(dict.fromkeys(str(value) for value in values))

    def provenance(name: str) -> str:
        return each(record.provenance.get(name, "unknown") for record in records)

    hardware = each(_hardware(record) for record in records)
    versions = ", ".join(f"{name} {provenance(name)}" for name in ("torch", "transformers", "numpy"))
    started = sorted(str(r.provenance["started"]) for r in records if r.provenance.get("started"))
    finished = sorted(str(r.provenance["finished"]) for r in records if r.provenance.get("finished"))
    return [
        ("Suite", run["title"]),
        ("Suite fingerprint", run["fingerprint"]),
        ("ThiefBench", provenance("thiefbench")),
        ("Commit", each(_commit(record) for record in records)),
        ("Source SHA-256", provenance("source_sha256")),
        ("Engine revision", each(record.identity.get("engine_revision", "unknown") for record in records)),
        ("Seeds", each(seed for comparison in comparisons for seed in comparison.seeds).replace(";", ",")),
        ("Hardware", hardware),
        ("Platform", f"{provenance('platform')}; Python {provenance('python')}"),
        ("Libraries", versions),
        ("Made", f"{started[0]} to {finished[-1]}" if started and finished else "unknown"),
    ]


def _hardware(record: Record) -> str:
    provenance = record.provenance
    device, dtype = record.cell.get("device", "?"), record.cell.get("dtype", "?")
    counts = ", ".join(_count(provenance.get(f"{thing}s"), thing) for thing in ("core", "thread"))
    processor = f"{provenance.get('processor', 'unknown processor')}, {counts}"
    accelerator = "" if device == "cpu" else f" and {provenance.get('device_name', 'unknown device')}"
    return f"{processor}{accelerator}; {device}, {dtype}"


def _count(number: Any, thing: str) -> str:
    return counted(number, thing) if isinstance(number, int) else f"? {thing}s"


def _commit(record: Record) -> str:
    commit = record.provenance.get("git_commit")
    if not commit:
        return "not installed from a checkout"
    return f"{commit} with uncommitted changes" if record.provenance.get("git_dirty") else str(commit)


def _phases(records: Sequence[Record]) -> list[str]:
    """Every timed phase, in the order of a round."""
    phases = sorted({phase for record in records for phase in record.seconds})
    order = ("sample", "attack", "gather", "reward", "inspect", "update", "evaluate")
    return sorted(phases, key=lambda phase: order.index(phase) if phase in order else len(order))


def _prefix(number: int, comparisons: Sequence[Comparison]) -> str:
    """The prefix that distinguishes the files of several comparisons."""
    if len(comparisons) == 1:
        return ""
    comparison = comparisons[number - 1]
    named = f"{comparison.part} {Path(registry.parse('attack', comparison.attack).target).name}"
    return f"{number}-{re.sub(r'[^A-Za-z0-9]+', '-', named).strip('-')}-"
