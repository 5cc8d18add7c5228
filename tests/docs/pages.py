"""The documentation's pages, their blocks and their links, as the tests read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOG = DOCS / "log"
README = ROOT / "README.md"
RESULTS = ROOT / "RESULTS.md"

_BLOCK = re.compile(r"^```([^`\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|<img[^>]*\ssrc=\"([^\"]+)\"")


def pages(log: bool = True) -> list[Path]:
    """Every page that people read, the repository's front pages first; without the log, those that are kept current."""
    boards = [ROOT / "leaderboard" / name / "README.md" for name in ("", "entries", "shared")]
    front = [README, RESULTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *boards]
    zoo = sorted((ROOT / "bench/zoo").glob("*/README.md"))
    own = [page for page in sorted(DOCS.rglob("*.md")) if log or LOG not in page.parents]
    return [*front, *zoo, *own]


def named(page: Path) -> str:
    """A page's path in the repository, for messages and test ids."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language, "" for those without one."""
    return [text for said, text in _BLOCK.findall(page.read_text(encoding="utf-8")) if said == language]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Every link that leads to a file or a heading of the repository: (path or "", anchor or "")."""
    for first, second in _LINK.findall(prose(page)):
        target = first or second
        if not re.match(r"https?:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


def anchors(page: Path) -> set[str]:
    """The names that GitHub and the site give to a page's headings."""
    found: set[str] = set()
    for title in re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        name = re.sub(r"[^\w\- ]", "", plain.replace("`", "")).replace(" ", "-")
        number = 0
        while (made := f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(made)
    return found


def commands(page: Path) -> Iterator[list[str]]:
    """The words behind `thiefbench` on every command line that a page shows."""
    for text in blocks(page, "") + blocks(page, "bash"):
        for line in text.replace("\\\n", " ").splitlines():
            said = re.search(r"(?:^|-m |; |do )\s*thiefbench (.*)", line.partition(" # ")[0].partition("  # ")[0])
            if said and not line.startswith("python -m pytest"):
                yield said[1].split()
