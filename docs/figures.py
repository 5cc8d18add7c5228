"""Draws the demo's picture and writes its table, from the store that `make demo` leaves.

    python docs/figures.py runs/smoke                       # docs/figures/demo.svg, and the table on the terminal
    python docs/figures.py runs/smoke --readme README.md    # also puts the table into the README

Every number comes from the records of the store's last run.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import matplotlib as mpl
from matplotlib.figure import Figure

from thiefbench.suite.store.records import Point, Record, Score, Store

HERE = Path(__file__).parent
BEGIN, END = "<!-- demo: begin (python docs/figures.py runs/smoke --readme README.md) -->", "<!-- demo: end -->"

# Okabe and Ito's palette: (on white, on a dark page), at least 4.5:1 on either.
COLOURS = {
    "ink": ("#1b1f24", "#e6e9ed"),
    "muted": ("#57606a", "#a3acb8"),
    "rule": ("#dfe3e8", "#343b44"),
    "attacked": ("#c2410c", "#f0834a"),
    "defended": ("#0060a8", "#66b2f0"),
    "control": ("#00795a", "#3fb58f"),
}
PAPER = ("#ffffff", "#14171c")


@dataclass(frozen=True)
class Curve:
    """One swarm of the picture.

    Attributes:
        label: what the legend calls it.
        colour: a key of `COLOURS`.
        dashes, marker: as matplotlib has them, so that lines which meet can be told apart without colour.
        by_round: ASR over the honest nodes' training completions, round by round.
        evaluated: ASR over held-out completions, with 95 % intervals.
    """

    label: str
    colour: str
    dashes: str
    marker: str
    by_round: Sequence[Point]
    evaluated: Sequence[Point]


class FigureError(Exception):
    """The store does not hold what the picture shows. One sentence for the user."""


def records_of(store: Store) -> list[Record]:
    """The records of the last run: the control, the undefended swarm, then the defended ones.

    Raises:
        FigureError: there is no run, a cell is missing or failed, or there is more than one attack or seed.
    """
    run = store.read_run()
    if run is None:
        raise FigureError(f"{store.root} holds no run; write `make demo` first")
    found = [store.cell(entry["cell_id"]).read() for entry in run["cells"]]
    records = [record for record in found if record is not None and record.status == "ok"]
    if len(records) < len(found):
        raise FigureError(f"{len(found) - len(records)} of the run's cells are not finished; write `make demo` again")
    if len({(record.cell["attack"], record.cell["seed"]) for record in records}) != 1:
        raise FigureError("the picture shows one attack and one seed; give it the store of `make demo`")
    order = {"control": 0, "attack": 1}
    kept = [record for record in records if record.cell["role"] in order]
    kept.sort(key=lambda record: (order[record.cell["role"]], record.cell["defense"] != "none"))
    if [record.cell["role"] for record in kept[:2]] != ["control", "attack"] or kept[1].cell["defense"] != "none":
        raise FigureError("the picture needs a swarm without an attack and an undefended one beside the defended ones")
    return kept


def name_of(record: Record) -> str:
    """What the table calls a swarm."""
    if record.cell["role"] == "control":
        return "no attack"
    defense = record.cell["defense"].replace("'", '"')
    return "attacked, no defense" if defense == "none" else f"attacked, `{defense}`"


def curves_of(records: Sequence[Record]) -> list[Curve]:
    """The lines of the picture."""
    looks = [("control", ":", "o"), ("attacked", "-", "o"), ("defended", "--", "s")]
    made = []
    for number, record in enumerate(records):
        colour, dashes, marker = looks[min(number, len(looks) - 1)]
        points = record.curves.get("train_asr", []), record.curves.get("eval_asr", [])
        made.append(Curve(name_of(record).replace("`", ""), colour, dashes, marker, *points))
    return made


def draw(curves: Sequence[Curve], title: str, alt: str) -> str:
    """The picture as SVG with a background of its own, readable on a light and on a dark page and 360 pixels wide."""
    settings = {
        "font.size": 11.5, "font.family": "sans-serif", "svg.fonttype": "none", "svg.hashsalt": "demo",
        "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "ytick.left": False,
        "axes.edgecolor": COLOURS["muted"][0], "xtick.color": COLOURS["muted"][0], "ytick.color": COLOURS["muted"][0],
        "axes.labelcolor": COLOURS["muted"][0], "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True,
        "grid.color": COLOURS["rule"][0], "text.color": COLOURS["ink"][0],
    }  # fmt: skip
    with mpl.rc_context(settings):
        figure = Figure(figsize=(5.0, 3.7), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.14, h_pad=0.14)
        axes = figure.subplots()
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=COLOURS["ink"][0])
        for curve in curves:
            _add(axes, curve)
        last = max((point.round for curve in curves for point in curve.evaluated), default=1) or 1
        axes.set_xlim(0, last)
        axes.set_ylim(0, 100)
        axes.set_xlabel("round")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        axes.legend(
            *_handles(axes, curves), loc="upper left", fontsize=10.5, handlelength=2.2, borderaxespad=0,
            framealpha=1, facecolor=PAPER[0], edgecolor=PAPER[0], fancybox=False,
        )  # fmt: skip
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_any_page(written.getvalue(), alt)


def _add(axes: mpl.axes.Axes, curve: Curve) -> None:
    colour = COLOURS[curve.colour][0]
    rounds = [(point.round, 100 * point.value) for point in curve.by_round if point.value is not None]
    if rounds:
        axes.plot(*zip(*rounds, strict=True), color=colour, linewidth=1, alpha=0.55, clip_on=False)
    judged = [point for point in curve.evaluated if point.value is not None]
    values = [100 * point.value for point in judged if point.value is not None]
    spread = [
        [max(0.0, value - 100 * (point.low or 0)) for point, value in zip(judged, values, strict=True)],
        [max(0.0, 100 * (point.high or 0) - value) for point, value in zip(judged, values, strict=True)],
    ]
    axes.errorbar(
        [point.round for point in judged], values, yerr=spread, color=colour, linestyle=curve.dashes, linewidth=2,
        marker=curve.marker, markersize=5 if curve.marker == "s" else 7, capsize=2.5, clip_on=False, label=curve.label,
    )  # fmt: skip


def _handles(axes: mpl.axes.Axes, curves: Sequence[Curve]) -> tuple[list[object], list[str]]:
    """The legend, the line that climbs first."""
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(curves)), key=lambda at: -max((p.value or 0 for p in curves[at].evaluated), default=0))
    return [handles[at] for at in order], [labels[at] for at in order]


def _for_any_page(svg: str, alt: str) -> str:
    """Matplotlib's SVG with a text alternative, a background, and colours that follow the reader's scheme."""
    head, body = svg[svg.index("<svg") :].split(">", 1)
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head)
    assert box is not None, "matplotlib writes a viewBox"
    width, height = (float(size) for size in box.groups())
    body = re.sub(r"<(metadata|style)\b.*?</\1>", "", body, flags=re.DOTALL)
    body = re.sub(r"font-family: [^;\"]*", "font-family: system-ui, sans-serif", body)
    for name, (light, _) in {**COLOURS, "paper": PAPER}.items():
        body = body.replace(light, f"var(--{name})")
    schemes = [
        " ".join(f"--{name}: {pair[dark]};" for name, pair in {**COLOURS, "paper": PAPER}.items()) for dark in (0, 1)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 {width:g} '
        f'{height:g}" width="{width * 4 / 3:.0f}" height="{height * 4 / 3:.0f}" role="img">\n'
        f"<title>{escape(alt)}</title>\n"
        f"<style>svg {{ {schemes[0]} }} @media (prefers-color-scheme: dark) {{ svg {{ {schemes[1]} }} }}</style>\n"
        f'<rect width="100%" height="100%" rx="8" style="fill: var(--paper); stroke: var(--rule)"/>{body}'
    )


def told(records: Sequence[Record]) -> str:
    """The picture in words: where each line ends."""
    ends = [(name_of(record).replace("`", ""), record.scores["asr"].value) for record in records]
    return "Attack success rate by round. At the end: " + "; ".join(
        f"{name} {100 * (v or 0):.1f} %" for name, v in ends
    )


def table(records: Sequence[Record]) -> str:
    """The README's table, and how it was made."""
    start = records[0].scores["start_reward"].value
    lines = [
        f"| swarm | ASR | stop rate | false rejection | clean reward (start {start:.3f}) |",
        "|---|---|---|---|---|",
    ]
    for record in records:
        names = ("asr", "stop_rate", "false_rejection_rate", "clean_reward")
        lines.append(f"| {name_of(record)} | {' | '.join(_shown(record.scores[name]) for name in names)} |")
    return "\n".join([*lines, "", made(records)])


def made(records: Sequence[Record]) -> str:
    """Suite, engine revision, versions, machine and time of the cells."""
    first, of = records[0], records[0].provenance
    count = first.scores["asr"].count
    seconds = sum(sum(record.seconds.values()) for record in records)
    return (
        f"Brackets are 95 % intervals over {count:,} held-out completions, or over all rewarded training completions. "
        f"One run at seed {first.cell['seed']}, {first.cell['rounds']} rounds, engine revision "
        f"{first.identity['engine_revision']}, torch {of['torch']}, {of['threads']} threads of {of['processor']}: "
        f"{seconds / 60:.1f} minutes of computing."
    )


def _shown(score: Score) -> str:
    if score.value is None:
        return "-"
    return f"{score.value:.3f} [{score.low:.3f}, {score.high:.3f}]"


def put_into(readme: str, text: str) -> str:
    """The README with another table between its marks.

    Raises:
        FigureError: the marks are not there.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise FigureError(f"the README has no lines {BEGIN} and {END} to write between")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main(words: Sequence[str] | None = None) -> None:
    """Write the picture, print the table; `words` stand in for the command line's."""
    parser = argparse.ArgumentParser(description="The demo's picture and table, from the store of `make demo`.")
    parser.add_argument("store", type=Path, help="such as runs/smoke")
    parser.add_argument("--out", type=Path, default=HERE / "figures" / "demo.svg", help="the picture")
    parser.add_argument("--readme", type=Path, help="a README to put the table into, between its marks")
    given = parser.parse_args(words)
    try:
        records = records_of(Store(given.store))
        text = table(records)
        if given.readme:
            given.readme.write_text(put_into(given.readme.read_text(encoding="utf-8"), text), encoding="utf-8")
    except FigureError as error:
        sys.exit(f"error: {error}")
    picture = draw(curves_of(records), "Attack success rate by round", told(records))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(picture, encoding="utf-8")
    print(text)
    print(f"\n{given.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
