"""The board as Markdown: what readers of a repository see without building the site."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.site.answers import Answer
from thiefbench.suite.report.tables import Shown

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&$@]|:(?=//)|(?<=www)[.])")
_AT_START = re.compile(r"^(\d{0,9})([#+.)-])(?=[#\s])")
"""What Markdown, or a host that shows it, would read as markup; addresses would become links."""

TITLE = "# The leaderboard"
_HEAD = rf"""{TITLE}

Defenses of decentralised GRPO against poisoned completions, in short. The site that `thiefbench leaderboard build site`
writes has a column for every attack, plots, costs, submitted attacks and a page for every entry.

- **Worst case**: the share of harm prevented under the attack that the defense handles worst
  ([statistics](../docs/statistics.md)).
- **Utility**: the share of the gain in clean reward that is kept without an attack ([measures](../docs/measures.md)).
- **False rejection**: the largest share of rewarded honest completions that is rejected in any cell; of vectors where
  nodes exchange weights, of stages in pipelines.
- **Rank**: only defenses with all seeds of the suite have one. "2=": the seeds cannot tell these apart. "unranked": it
  costs too much learning: its utility without an attack is not shown to be at least 0.9, or under some attack it is
  more than 0.1 below the oracle's. A dash stands for anchors, the benchmark's own rows for comparison, and for those
  whose seeds are not complete ([ranking](../docs/statistics.md#the-ranking)).
- **Numbers**: means over seeds; \[95 % interval\] with all five, (range) with fewer. "4 of 5 seeds, ≥ 0.34" counts the
  seeds at which the row held: it prevents at least half of the harm of every attack or, under *utility*, keeps at least
  0.9. The bound is on the share of all seeds, with 95 % confidence.
- **Against**: the attack of the worst case; empty where the suite has one attack. Those that are made around others are
  read from the outside in: "contrast own borrowed" is `contrast(attack="own(attack='borrowed')")`, and `borrowed` are
  the false verbs of the results; `thiefbench show NAME` says what each one does.
- **Trust**: cells were run again (re-executed), completions were scored again (rescored), or the numbers are their
  authors' (self-reported; [verification](../docs/verification.md)).

[Submit a defense](../docs/submit.md), or [attack one that is listed](../docs/attack-a-defense.md). This page is written
by `thiefbench leaderboard build site --readme`.
"""


def page_beside(entries: Path) -> Path:
    """The README.md that `leaderboard build --readme` writes, in the folder that holds the folder of entries.

    Raises:
        EntryError: there is one that is not such a page.
    """
    page = entries.resolve().parent / "README.md"
    if page.is_symlink() or page.exists():
        ours = page.is_file() and not page.is_symlink() and page.read_bytes().startswith(f"{TITLE}\n".encode())
        if not ours:
            raise EntryError(
                f"{page} is not a page of the board, and would be overwritten; move it, or leave out --readme"
            )
    return page


def board_markdown(suites: Sequence[Mapping[str, Any]], entries: str) -> str:
    """The three answers and the table of every suite.

    Args:
        suites: what `index_page.shown_suite` gives.
        entries: the folder of entries, as seen from the page.
    """
    return "\n".join([_HEAD, *(_suite(suite, entries) for suite in suites)])


def plain(text: str) -> str:
    """Text, perhaps a stranger's, as Markdown that shows it as it stands, in one line."""
    line = _SPECIAL.sub(r"\\\1", " ".join(text.split()))
    return _AT_START.sub(r"\1\\\2", line)


def _suite(suite: Mapping[str, Any], entries: str) -> str:
    lines = [f"## {plain(suite['title'])}", "", plain(suite["about"])]
    if suite["superseded"]:
        lines += ["", f"**Superseded suite.** {plain(suite['superseded'])}"]
    if claim := " ".join(filter(None, (suite["unclaimed"], suite["broken"]))):
        lines += ["", plain(claim)]
    lines += ["", *(_answer(answer) for answer in suite["answers"])]
    head = ["defense", "seeds", "trust", "worst case", "against", "utility", "false rejection"]
    rows = [_cells(row, entries) for row in suite["rows"]]
    if suite["ranks"]:
        head.insert(0, "rank")
        rows = [[plain(row["rank"]), *cells] for row, cells in zip(suite["rows"], rows, strict=True)]
    table = [head, ["---"] * len(head), *rows]
    return "\n".join([*lines, "", *(f"| {' | '.join(cells)} |" for cells in table), ""])


def _answer(answer: Answer) -> str:
    value = f"**{plain(answer.value)}** " if answer.value else ""
    return f"- {answer.question}: {value}{plain(answer.text)}"


def _cells(row: Mapping[str, Any], entries: str) -> list[str]:
    """One row without its rank."""
    name = plain(row["name"])
    if row["slug"]:
        name = f"[{name}]({quote(entries)}/{quote(row['slug'])}/entry.json)"
    if row["anchor"]:
        name += " (anchor)"
    flags = "; ".join(plain(said) for said in (*(flag.name for flag in row["flags"]), row["why_unranked"]) if said)
    return [
        f"{name}<br>*{flags}*" if flags else name,
        plain(row["seeds"] or "all"),
        row["trust"],
        _number(row["worst"]),
        plain(row["worst_attack"]),
        _number(row["utility"]),
        row["false_rejection"].value if row["false_rejection"] else "",
    ]


def _number(shown: Shown | None) -> str:
    """A measure with its interval or range."""
    if shown is None:
        return ""
    detail = plain(shown.detail)
    if detail and not shown.detail.startswith("["):
        detail = f"({detail})"
    return f"{shown.value} {detail}".strip()
