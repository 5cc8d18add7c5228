"""The page of completions in a browser: filters, pages, keyboard, themes, widths, no scripts, ten thousand rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.suite.report import sampled
from tests.bench.suite.report.test_viewer import changed
from tests.browsing import CONTRAST, Opener, chromium, watched
from thiefbench.suite.analysis.run_comparisons import last_run, trained_comparisons
from thiefbench.suite.report.payload_marks import NO_WORDS
from thiefbench.suite.report.viewer import FIRST, PAGE, write_viewer

pytestmark = pytest.mark.slow

__all__ = ["chromium"]  # a fixture


def built(folder: Path, completions: int) -> str:
    """The address of a page with the completions of four cells."""
    kept = sampled.store(folder, completions)
    run = last_run(kept)
    write_viewer(folder, run, trained_comparisons(kept, run, remarks=False), 10_000)
    return (folder / PAGE).as_uri()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    return built(tmp_path_factory.mktemp("small"), 240)


@pytest.fixture
def opened(chromium: Any, small: str) -> Iterator[Opener]:
    with watched(chromium, small) as open_page:
        yield open_page


def status(page: Any) -> str:
    return str(page.get_by_role("status").inner_text())


def badges(page: Any, kind: str) -> set[str]:
    return set(page.locator(f".row .badge.{kind}").all_inner_texts())


def test_filters(opened: Opener) -> None:
    page = opened()
    assert page.get_by_text("Without JavaScript").is_hidden()
    assert status(page) == "960 of 960 completions match."
    page.locator("select[name=verdict]").select_option("1")
    assert badges(page, "verdict") == {"masked"}
    masked = int(status(page).split()[0])
    assert page.locator("select[name=verdict] option:checked").inner_text() == f"masked ({masked})"
    page.locator("select[name=sender]").select_option("0")
    assert badges(page, "sender") == {"honest node"}
    wrongly = int(status(page).split()[0])
    assert 0 < wrongly < masked
    page.locator("select[name=reward]").select_option("1")
    assert all("reward 0" in text for text in page.locator(".numbers").all_inner_texts())
    page.get_by_role("button", name="Reset").click()
    page.locator("select[name=payload]").select_option("1")
    assert badges(page, "says") == {"learned"}
    assert badges(page, "sender") == {"held-out answer"}
    page.get_by_label("from round").fill("2")
    page.get_by_label("to round").fill("4")
    rounds = {text.split()[1] for text in page.locator(".numbers").all_inner_texts()}
    assert rounds and rounds <= {"2", "4"}
    page.get_by_label("Order").select_option("late")
    assert page.locator(".numbers").first.inner_text().startswith("round 4")


def test_a_cell_and_its_counts(opened: Opener) -> None:
    page = opened()
    option = page.locator("select[name=cell] option", has_text="reject='drop'")
    assert option.inner_text() == "logit(reject='drop'), seed 0 (240)"
    page.locator("select[name=cell]").select_option(option.get_attribute("value"))
    assert status(page) == "240 of 960 completions match."
    assert set(page.locator(".row .cell").all_inner_texts()) == {"logit(reject='drop'), seed 0"}
    assert "masked (0)" in page.locator("select[name=verdict]").inner_text()


def test_search_marks_what_it_finds(opened: Opener) -> None:
    page = opened()
    page.get_by_label("Words in the text").fill("THIEF cards")
    page.locator(".row mark.hit").first.wait_for()
    texts = page.locator(".row .said").all_inner_texts()
    assert texts and all("thief" in text and "cards" in text for text in texts)
    hits = {text.lower() for text in page.locator(".row mark.hit").all_inner_texts()}
    assert hits == {"thief", "cards"}


def test_payload_and_masked_tokens_are_marked(opened: Opener) -> None:
    page = opened("#verdict=1&payload=0")
    said = page.locator(".row .said").first
    assert "".join(said.locator("mark.payload").all_text_contents()) == sampled.PHRASE
    assert said.locator("mark.masked").all_text_contents() == [" hail to the thief"]


def test_every_payload_is_marked(opened: Opener) -> None:
    for kind, least in (("0", 20), ("1", 20)):
        rows = opened(f"#payload={kind}").locator(".row .said")
        assert rows.count() > least
        assert rows.locator("mark.payload").all_text_contents()
        assert rows.evaluate_all("all => all.filter((row) => !row.querySelector('mark.payload')).length") == 0
    assert opened("#payload=2").locator(".row mark.payload").count() == 0


def test_outcomes_that_are_lengths(chromium: Any, tmp_path: Path) -> None:
    kept = sampled.store(tmp_path, 120, of=sampled.suite(attacks=("dos",)))
    for record in kept.records():
        kept.cell(record.cell_id).write(record.model_copy(update={"payload": {}}))
    changed(kept, outcome=[float(10 + number) for number in range(120)])
    run = last_run(kept)
    write_viewer(tmp_path, run, trained_comparisons(kept, run, remarks=False), 10_000)
    with watched(chromium, (tmp_path / PAGE).as_uri()) as open_page:
        page, without = open_page(), open_page(java_script_enabled=False)
        one, other = (each.locator(".row summary").all_inner_texts() for each in (page, without))
        assert one == other
        page.locator("select[name=payload]").select_option("3")
        page.get_by_label("Order").select_option("outcome")
        shown = [int(text.rpartition(" ")[2]) for text in page.locator(".numbers").all_inner_texts()]
        assert len(shown) == FIRST and shown == sorted(shown, reverse=True)
        page.locator(".row summary").first.click()
        page.locator(".row .more").first.get_by_text(NO_WORDS).wait_for()  # it is filled in after the row has opened


def test_pages_and_their_address(opened: Opener) -> None:
    page = opened()
    assert page.locator(".row").count() == FIRST
    first = page.locator(".row .said").first.inner_text()
    page.get_by_role("button", name="Next").first.click()
    assert page.locator(".page").first.inner_text() == "page 2 of 20"
    assert page.locator("#list").get_attribute("start") == str(FIRST + 1)
    again = opened(page.url[page.url.index("#") :])
    assert again.locator(".page").first.inner_text() == "page 2 of 20"
    again.get_by_role("button", name="Previous").first.click()
    assert again.locator(".row .said").first.inner_text() == first
    assert "#" not in again.url


def test_an_address_that_makes_no_sense(opened: Opener) -> None:
    page = opened("#cell=__proto__&verdict=99&page=-7&item=nothing&q=%3Cimg%20src=x%20onerror=alert(1)%3E")
    assert page.locator("select[name=cell]").input_value() == ""
    assert page.locator("img").count() == 0
    assert page.get_by_label("Words in the text").input_value().startswith("<img")


def test_by_keyboard(opened: Opener) -> None:
    page = opened("#sender=0&from=1")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the completions"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "list"
    assert page.locator("select[name=sender]").input_value() == "0", "and the filters stay"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(".row:nth-child(2) details[open] dl")
    for _ in range(FIRST - 1):
        page.keyboard.press("ArrowDown")
    assert page.locator(".page").first.inner_text().startswith("page 2 of"), "past the last one comes the next page"
    page.keyboard.press("ArrowUp")
    assert page.locator(".page").first.inner_text().startswith("page 1 of")
    assert page.evaluate("document.activeElement.closest('li').nextElementSibling") is None


def test_an_opened_completion(opened: Opener) -> None:
    page = opened()
    page.locator(".row summary").first.click()
    more = page.locator(".row .more").first
    asked = more.locator(".question").inner_text()
    assert asked.strip("\u201c\u201d") in {item.question for item in sampled.items("train")}
    assert {"attack", "payload", "reward", "item"} <= set(more.locator("dt").all_inner_texts())
    more.get_by_role("button", name="All answers to the item").click()
    shown = int(status(page).split()[0])
    assert 1 < shown < 960
    page.get_by_role("button", name="Only the item").click()
    assert status(page).startswith("960 of 960")


def test_strangers_texts_run_nothing(opened: Opener) -> None:
    page = opened("#q=onerror")
    assert page.locator(".row").count() == 4
    page.locator(".row summary").first.click()
    assert sampled.HOSTILE in page.locator(".row .said").first.inner_text()
    assert page.title() == "ThiefBench: made-v1, completions"
    assert page.locator("img").count() == 0


def test_without_scripts_there_are_a_sentence_and_the_first_rows(opened: Opener) -> None:
    page = opened(java_script_enabled=False)
    page.get_by_text("Without JavaScript there are no filters.").wait_for(state="visible")
    assert page.locator(".row").count() == FIRST
    assert page.locator("#filters").is_hidden()
    assert page.get_by_role("button").count() == 0, "and no control that is dead"
    page.locator(".row summary").first.click()
    assert page.locator(".row .more").first.is_visible()


def test_both_renderings_are_the_same(opened: Opener) -> None:
    with_script, without = opened(), opened(java_script_enabled=False)
    one, other = (page.locator(".row summary").all_inner_texts() for page in (with_script, without))
    assert one == other


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_contrast(opened: Opener, scheme: str) -> None:
    """Text against what lies behind it, at least 4.5:1 (WCAG 2.2, AA)."""
    page = opened("#q=thief", color_scheme=scheme)
    page.locator(".row summary").first.click()
    page.wait_for_selector(".more dl")
    assert page.evaluate(CONTRAST) == []


@pytest.mark.parametrize("width", [360, 400, 768, 1300])
def test_no_width_scrolls_sideways(opened: Opener, width: int) -> None:
    page = opened("#q=onerror", viewport={"width": width, "height": 740})
    page.locator(".row summary").first.click()
    page.wait_for_selector(".more dl")
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_ids_are_unique(opened: Opener) -> None:
    ids = opened().evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids))


def test_ten_thousand_rows(chromium: Any, tmp_path: Path) -> None:
    with watched(chromium, built(tmp_path, 2_600)) as open_page:
        page = open_page()
        assert status(page) == "10,000 of 10,000 completions match."
        assert page.evaluate("document.querySelectorAll('*').length") < 2_500, (
            "only one page of rows is in the document"
        )
        took = page.evaluate("""() => {
          const start = performance.now();
          const field = document.querySelector("select[name=sender]");
          for (const value of ["0", "1", "2", ""]) {
            field.value = value;
            field.dispatchEvent(new Event("input", { bubbles: true }));
          }
          return (performance.now() - start) / 4;
        }""")
        assert took < 1_000, "a filter answers at once, and within a second on a busy machine"
