"""No link of a page is dead: the file is there, and so is the heading."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import DOCS, anchors, links, named, pages


@pytest.mark.parametrize("page", pages(), ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{named(page)} links to {path}, which is not there"
        if anchor:
            assert anchor in anchors(target), f"{named(page)} links to #{anchor}, which {named(target)} has not"


def test_the_test_sees_dead_links(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('# A `code` title, twice\n\n[here](#a-code-title-twice), [there](no.md#x), <img src="no.svg">\n')
    assert list(links(page)) == [("", "a-code-title-twice"), ("no.md", "x"), ("no.svg", "")]
    assert anchors(page) == {"a-code-title-twice"}


def test_every_page_is_reached_from_the_first_one() -> None:
    reached, left = set(), [DOCS / "index.md"]
    while left:
        page = left.pop()
        reached.add(page)
        text = page.read_text(encoding="utf-8")
        for block in text.split("```{toctree}\n")[1:]:
            for name in block.partition("```")[0].splitlines():
                found = page.parent.glob(f"{name}.md") if name and not name.startswith(":") else ()
                left += [each for each in found if each not in reached]
    assert sorted(DOCS.rglob("*.md")) == sorted(reached), "a page that no toctree names is on no menu"
