"""The board as Markdown: the same rows as on the site, and what strangers write stays text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from tests.leaderboard.made_entries import entry, prevents, verified
from thiefbench.cli import app
from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.site.markdown import plain
from thiefbench.leaderboard.site.writing import write_site

REPOSITORY = Path(__file__).parents[3]
SUITE = "standard-v1"
NAME = "`a` | **b** [c](https://example.org) <img src=x> $d$"


def shown(markdown: str) -> str:
    return MarkdownIt("commonmark").enable("table").render(markdown)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a board with a hostile name, an attack's flag and an entry that has only some seeds."""
    tmp_path = tmp_path_factory.mktemp("board")
    entries, seen = tmp_path / "my entries", tmp_path / "verified"
    for folder in (entries, seen):
        folder.mkdir()
    verified(seen, entry(entries, "good", prevents(0.9), SUITE), "re-executed")
    verified(seen, entry(entries, "hostile", prevents(0.5), SUITE, name=NAME), "rescored")
    entry(entries, "claims", prevents(0.99), SUITE)
    write_site(tmp_path / "site", entries, seen, readme=tmp_path / "README.md")
    return (tmp_path / "README.md").read_text(encoding="utf-8")


def test_every_row_has_its_place_and_leads_to_its_entry(page: str) -> None:
    assert re.findall(r"^\| (\S+) \| \[(\w+)\]\(my%20entries/(\w+)/entry.json\)", page, re.MULTILINE) == [
        ("(1)", "Claims", "claims"), ("1", "Good", "good"),
    ]  # fmt: skip
    (header,) = re.findall(r"<thead>.*?</thead>", shown(page), re.DOTALL)
    columns = header.count("<th>")
    rows = re.findall(r"<tr>\s*<td>.*?</tr>", shown(page), re.DOTALL)
    assert len(rows) >= 3
    assert {row.count("<td>") for row in rows} == {columns}, "a name with a bar adds no column"
    assert re.search(
        r"entries/hostile/entry.json\)<br>\*its code was not run\* \| all \| rescored \| 0\.50 \\\[0\.4", page
    )


def test_a_stranger_s_name_is_text(page: str) -> None:
    made = shown(page)
    assert "`a` | **b** [c](https://example.org) &lt;img src=x&gt; $d$" in made
    assert "<img" not in made
    assert "example.org" not in "".join(re.findall(r'href="[^"]*"', made))
    assert not {"$d$", "https://example.org"} & set(re.findall(r"\S+", page)), "hosts make formulas and links of these"
    assert "https://" not in page


def test_the_answers_come_first(page: str) -> None:
    assert page.index("Best against the worst attack: **0.90** of the harm") < page.index("| rank |")


def test_plain_text_is_one_line_and_starts_nothing() -> None:
    assert plain("a\n# b\r\n\tc") == "a # b c"
    for text in ("# h", "## h", "- l", "+ l", "1. l", "12) l", "0.84 and more", "-0.5", "www.example.org"):
        assert shown(plain(text)) == f"<p>{text}</p>\n"


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_a_readme_of_somebody_s_own_is_not_overwritten(kind: str, tmp_path: Path) -> None:
    (tmp_path / "entries").mkdir()
    page = tmp_path / "README.md"
    if kind == "file":
        page.write_text("# My project")
    elif kind == "link":
        (tmp_path / "elsewhere").write_text("# The leaderboard\n")
        page.symlink_to(tmp_path / "elsewhere")
    else:
        page.mkdir()
    words = ["leaderboard", "build", str(tmp_path / "site"), "--entries", str(tmp_path / "entries"), "--readme"]
    with pytest.raises(EntryError, match="is not a page of the board, and would be overwritten"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert not (tmp_path / "site").exists(), "it is told before anything is written"


def test_the_command_writes_it_beside_the_entries(tmp_path: Path) -> None:
    (tmp_path / "entries").mkdir()
    words = ["leaderboard", "build", str(tmp_path / "site"), "--entries", str(tmp_path / "entries")]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert not (tmp_path / "README.md").exists()
    assert CliRunner().invoke(app, [*words, "--readme"]).exit_code == 0
    assert (tmp_path / "README.md").read_text().startswith("# The leaderboard")


@pytest.mark.slow
def test_the_committed_page_is_that_of_the_committed_entries(tmp_path: Path) -> None:
    board = REPOSITORY / "leaderboard"
    write_site(tmp_path / "site", board / "entries", board / "verified", readme=tmp_path / "README.md")
    made = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert made == (board / "README.md").read_text(encoding="utf-8"), "thiefbench leaderboard build site --readme"
