"""The built site in a browser, from the file system: by mouse and keyboard, without scripts, dark and light, small."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browsing import CONTRAST, Opener, chromium, watched
from tests.leaderboard import made_attacks
from tests.leaderboard.made_entries import entry, prevents, verified
from thiefbench.leaderboard.site.writing import write_site

pytestmark = pytest.mark.slow

__all__ = ["chromium"]  # a fixture

SUITE = "standard-v1"  # of five seeds, so that its defenses have places
ROWS = f'table[data-suite="{SUITE}"] tbody'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a site with all that a row can be."""
    root = tmp_path_factory.mktemp("board")
    entries, seen = root / "entries", root / "verified"
    verified(seen, entry(entries, "best", prevents(0.9), SUITE, name="Zeta"), "re-executed")
    verified(seen, entry(entries, "tenth", prevents(0.1), SUITE, name="beta"), "rescored", flags=("depends on order",))
    verified(seen, entry(entries, "below", prevents(-0.2), SUITE, name="Alpha"), "rescored")
    entry(entries, "claims", prevents(0.95), SUITE, name="<script>document.title='owned'</script>" + "W" * 150)
    verified(seen, entry(entries, "strict", prevents(1.0, utility=0.4), SUITE, name="Strict"), "re-executed")
    verified(seen, entry(entries, "forged", prevents(), SUITE, name="Forged"), "rejected", reasons=("it was forged",))
    wide = entry(entries, "other", prevents(0.7), "trial", name="Wide")
    verified(seen, wide, "rescored")
    attack = made_attacks.attack(entries, [wide])
    verified(seen, attack, "rescored")  # type: ignore[arg-type]
    write_site(root / "site", entries, seen)
    return (root / "site/index.html").as_uri()


@pytest.fixture
def opened(chromium: Any, site: str) -> Iterator[Opener]:
    """Opens the site's first page, or a part of it."""
    with watched(chromium, site) as open_page:
        yield open_page


SCROLLING_WITHOUT_KEYS = """() => [...document.querySelectorAll("body *")].filter((each) => {
  const style = getComputedStyle(each);
  return /auto|scroll/.test(style.overflowX) && each.scrollWidth > each.clientWidth + 1 && each.tabIndex < 0;
}).map((each) => each.outerHTML.slice(0, 80))"""
"""The boxes that scroll sideways and are no stop of the Tab key, which not every browser makes of them by itself."""


def names(page: Any) -> list[str]:
    """The rows that are shown, in their order, by the start of their names."""
    shown = page.locator(f"{ROWS}:visible th").all_inner_texts()
    return [re.split(r"[\s(<]", text.strip("<"))[0].lower() for text in shown]


def head(page: Any, name: str) -> Any:
    return page.locator(f'table[data-suite="{SUITE}"] th[data-key="{name}"]')


RANKED = ["script>document.title='owned'", "zeta", "beta", "alpha", "oracle", "oracle", "none", "strict"]


def test_sorting_by_mouse(opened: Opener) -> None:
    page = opened()
    assert names(page) == RANKED, "at first by rank, then anchors, then what is not ranked"
    head(page, "worst").get_by_role("button").click()
    assert head(page, "worst").get_attribute("aria-sort") == "descending", "of what is better when larger, best first"
    by_worst = ["oracle", "oracle", "script>document.title='owned'", "zeta", "beta", "none", "alpha", "strict"]
    assert names(page) == by_worst, "as numbers, and what is not ranked last"
    head(page, "worst").get_by_role("button").click()
    assert names(page) == [*by_worst[-2::-1], "strict"], "the other way round, and still last"
    assert page.locator("#status").inner_text().endswith("sorted: standard-v1 by Worst case, ascending.")
    head(page, "defense").get_by_role("button").click()
    assert names(page)[1:7] == ["alpha", "beta", "none", "oracle", "oracle", "zeta"], "text without regard to case"
    assert head(page, "worst").get_attribute("aria-sort") is None, "one column at a time"
    head(page, "utility").get_by_role("button").click()
    assert names(page)[-2:] == ["oracle", "strict"], "a row without the number behind those that have it"


def test_sorting_and_filtering_by_keyboard(opened: Opener) -> None:
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent").startswith("Skip to"), "the first stop skips the head"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    head(page, "trust").get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert head(page, "trust").get_attribute("aria-sort") == "ascending"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "who walks by keyboard sees where they are"
    page.get_by_label("Search").focus()
    page.keyboard.type("zeta")
    assert names(page) == ["zeta"]


def test_filters_and_their_address(opened: Opener) -> None:
    page = opened()
    total = int(page.locator("#status").inner_text().split()[2])
    page.get_by_label("Trust").select_option("re-executed rescored")
    assert "script>document.title='owned'" not in names(page), "self-reported rows are hidden"
    page.get_by_label("Status").select_option("unranked")
    assert names(page) == ["strict"]
    assert page.locator("#status").inner_text().startswith(f"1 of {total} rows shown")
    page.get_by_label("Status").select_option("")
    page.get_by_label("Search").fill("depends ORDER")
    assert names(page) == ["beta"], "words are looked for in all of a row, flags as well"
    head(page, "worst").get_by_role("button").click()
    again = opened(page.url[page.url.index("#") :])
    assert names(again) == ["beta"], "the address holds the view"
    assert head(again, "worst").get_attribute("aria-sort") == "descending"
    again.get_by_role("button", name="Reset").click()
    assert names(again) == RANKED and "#" not in again.url


def test_an_address_that_makes_no_sense(opened: Opener) -> None:
    page = opened("#trust=nobody&sort.standard-v1=__proto__&q=%3Cimg%20src=x%3E")
    assert names(page) == [], "what it looks for is text"
    assert page.get_by_label("Trust").input_value() == ""
    assert names(opened("#standard-v1")) == RANKED, "a link to a suite is no view"


def test_an_entrys_page(opened: Opener) -> None:
    page = opened()
    page.get_by_role("link", name="<script>").click()
    assert page.title().startswith("ThiefBench: <script>"), "its name is text, and ran nothing"
    assert page.get_by_role("heading", level=2).first.inner_text().startswith("<script>document.title")
    assert page.locator("figure svg").count() == 2 * 6, (
        "curves of the outcome and of the clean reward under each attack"
    )
    page.get_by_text("Every score").click()
    assert page.get_by_role("region", name="Scores of every").is_visible()
    page.get_by_role("link", name="All entries").click()
    page.get_by_role("link", name="Forged").click()
    assert "it was forged" in page.get_by_role("note").first.inner_text()


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_dark_and_light(opened: Opener, scheme: str) -> None:
    page = opened(color_scheme=scheme)
    paper = "getComputedStyle(document.body).backgroundColor"
    colours = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}
    assert page.evaluate(paper) == colours.pop(scheme), "as the system says"
    page.locator("#theme").click()
    (other,) = colours.values()
    assert page.evaluate(paper) == other, "and the other by the button"
    page.get_by_role("link", name="Zeta").click()
    page.wait_for_url("**/entries/best.html")
    assert page.evaluate(paper) == other, "which the next page remembers"


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_contrast(opened: Opener, scheme: str) -> None:
    """Text against what lies behind it, at least 4.5:1 (WCAG 2.2, AA)."""
    for path in ("", "entries/best.html"):
        page = opened(color_scheme=scheme)
        if path:
            page.get_by_role("link", name="Zeta").click()
        assert page.evaluate(CONTRAST) == []


@pytest.mark.parametrize("link", ["", "<script>", "Wide", "Breaker"])
def test_on_a_phone_no_page_scrolls_sideways(opened: Opener, link: str) -> None:
    page = opened(viewport={"width": 360, "height": 740})
    if link:
        page.get_by_role("link", name=link).first.click()
    assert page.evaluate("document.documentElement.scrollWidth") == 360, "what is wide scrolls in its own box"
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert page.evaluate(SCROLLING_WITHOUT_KEYS) == [], "and every such box can be reached by keyboard"


@pytest.mark.parametrize("suite", [SUITE, "trial-v1"])  # with the column of ranks, and without it
def test_names_stay_at_the_left_while_the_table_scrolls(opened: Opener, suite: str) -> None:
    page = opened(viewport={"width": 360, "height": 740})
    table = page.locator(f'table[data-suite="{suite}"]')
    for name in (table.locator("tbody th").first, table.locator('thead th[data-key="defense"]')):
        style = name.evaluate("e => [getComputedStyle(e).position, getComputedStyle(e).textAlign]")
        assert style == ["sticky", "left"]
    trust = table.locator('thead th[data-key="trust"]').evaluate("e => getComputedStyle(e).position")
    assert trust == "static", "only the names stay"


def test_without_scripts_everything_is_there(opened: Opener) -> None:
    page = opened(java_script_enabled=False)
    assert names(page) == RANKED, "in the order of the ranking"
    assert page.locator("#filters").is_hidden() and page.locator("#theme").is_hidden(), "and no control that is dead"
    page.get_by_role("link", name="Zeta").click()
    assert page.get_by_role("heading", name="How it was verified").is_visible()


def test_what_a_screen_reader_meets(opened: Opener) -> None:
    page = opened()
    assert page.get_by_role("columnheader").filter(has=page.get_by_role("button")).count() > 8, "real buttons in heads"
    assert page.get_by_role("status").count() == 1, "one place that says how many rows are shown"
    assert (
        page.get_by_role(
            "table", name="Defenses on standard-v1 by harm prevented in the worst case over attacks"
        ).count()
        == 1
    )
    assert page.get_by_role("main").count() == page.get_by_role("search").count() == 1
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids)), "no id stands twice"
