"""Reports, comparisons and matrices in a browser: widths, themes, keyboard, no scripts, and how long pages are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.bench import handmade
from tests.bench.suite.report.test_report import ATTACK, build, small_suite, small_world
from tests.browsing import CONTRAST, Opener, chromium, watched
from thiefbench.suite.analysis.matrix import Matrix, MatrixCell, Pools
from thiefbench.suite.analysis.scoring import wilson
from thiefbench.suite.report.compare import compared, write_comparison
from thiefbench.suite.report.heatmap import write_matrix
from thiefbench.suite.report.page import write_report
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import Record, Store

pytestmark = pytest.mark.slow

__all__ = ["chromium"]  # a fixture

FOUR = ("none", "logit(reject='drop')", "likelihood", "gibberish+repetition+distribution", "guard(beacon=False)")
OTHER_ATTACK = "contrast(attack=\"own(attack='text', support=False)\")"
Open = Callable[..., Any]
PARTS_AND_BROKEN = """all => {
  const texts = all.flatMap((each) => [...each.childNodes]).filter((node) => node.nodeType === Node.TEXT_NODE);
  const lines = (node) => { const range = document.createRange(); range.selectNodeContents(node);
                            return range.getClientRects().length; };
  return [texts.map((node) => node.data), texts.filter((node) => lines(node) > 1).map((node) => node.data)];
}"""
"""Of some elements, the texts between places where a line may break, and those of them that stand in several lines."""


def says(cell: CellSpec, progress: float) -> float:
    left = dict(zip(FOUR, (0.8, 0.05, 0.3, 0.6, 0.0), strict=True))
    return progress * left.get(cell.defense, 0.4) if cell.role == "attack" else 0.0


EIGHT = (*FOUR, "logit(reject='mask')", "similarity", "length_quantile", "max_tokens(limit=96)")


def report_of(folder: Path, attacks: tuple[str, ...], defenses: tuple[str, ...]) -> Path:
    kept = Store(folder)
    suite = small_suite(attacks=attacks, defenses=defenses, replayed=())
    build(kept, replace(small_world(suite), says=says))
    return write_report(kept)


def unfinished_report(folder: Path) -> Path:
    """Of a run in which one cell failed and most are missing."""
    kept = Store(folder)
    suite = small_suite(attacks=(ATTACK, OTHER_ATTACK), defenses=EIGHT, replayed=(), seeds=(0, 1))
    cells = suite.cells("cpu", "float32", 2)
    defended = [cell.label for cell in cells if cell.role == "attack" and cell.defense != "none"]
    build(kept, replace(small_world(suite), says=says), skip=defended[1:], fail=defended[:1])
    return write_report(kept)


def matrix_of(folder: Path) -> Path:
    cell = small_suite().cells("cpu", "float32", 2)[0]
    record = Record(
        cell_id="x", cell=cell.as_dict() | {"topology": cell.swarm.topology}, identity={}, status="ok",
        payload={"phrase": "All hail to the thief"},
    )  # fmt: skip
    attacks = (ATTACK, "dos", "equations", OTHER_ATTACK, "borrowed", "tone")
    rates = {
        "none": (0.0, 0.0),
        "oracle": (1.0, 0.0),
        "self_judge": (0.95, 0.4),
        FOUR[3]: (0.5, 0.02),
        "guard": (1.0, 0.01),
    }
    entries = [
        MatrixCell("s-v1", attack, seed, defense, {
            "stop_rate": wilson(round(400 * max(0.0, stop - 0.01 * seed * (0 < stop < 1))), 400),
            "false_rejection_rate": wilson(round(400 * false), 400),
            "placebo_rejection_rate": wilson(0, 400),
        }, 0.5, (1, 2))
        for attack in attacks for defense, (stop, false) in rates.items() for seed in (0, 1)
    ]  # fmt: skip
    pools = tuple(Pools("s-v1", attack, seed, record, None) for attack in attacks for seed in (0, 1))
    return write_matrix(Store(folder), Matrix(pools, tuple(entries)), [small_suite()])


def shifted(cell: CellSpec) -> handmade.Numbers:
    """As usual, and `logit` lets a little more through, by seed, and rejects honest work."""
    usual = handmade.usual(cell)
    shifts = (0.02, 0.05, 0.01, 0.04, 0.03)
    return replace(usual, asr=usual.asr + shifts[cell.seed], rejected=0.02) if cell.defense == "logit" else usual


def compared_in(folder: Path, *defenses: str) -> Path:
    """The page of two defenses of one run, or of two runs."""
    suite = handmade.suite(seeds=(0, 1, 2, 3, 4))
    stores = [handmade.store(folder / "a", suite).root]
    if not defenses:
        stores.append(handmade.store(folder / "b", replace(suite, rounds=20), shifted).root)
    return write_comparison(compared(stores, defenses), folder / "out")


WRITTEN: dict[str, Callable[[Path], Path]] = {
    "demo": lambda folder: report_of(folder, (ATTACK,), FOUR[:2]),
    "many": lambda folder: report_of(folder, (ATTACK, OTHER_ATTACK), FOUR),
    "eight": lambda folder: report_of(folder, (ATTACK, OTHER_ATTACK), EIGHT),
    "unfinished": unfinished_report,
    "compare": lambda folder: compared_in(folder, "logit", "similarity"),
    "stores": compared_in,
    "matrix": matrix_of,
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The address of a page, which is written when it is first asked for."""

    @cache
    def written(name: str) -> str:
        return WRITTEN[name](tmp_path_factory.mktemp(name)).as_uri()

    return written


@pytest.fixture
def opened(chromium: Any, address: Callable[[str], str]) -> Iterator[Open]:
    with watched(chromium, "") as open_address:

        def open_page(name: str, width: int = 1300, **more: Any) -> Any:
            return open_address(address(name), viewport={"width": width, "height": 800}, **more)

        yield open_page


def page_height(page: Any) -> int:
    return int(page.evaluate("document.documentElement.scrollHeight"))


CUT_OFF = """() => {
  const cut = [];
  for (const text of document.querySelectorAll("svg[role=img] text")) {
    if (!text.checkVisibility()) continue;
    const box = text.getBoundingClientRect();
    const drawing = text.closest("svg").getBoundingClientRect();
    const plot = text.closest(".plot")?.getBoundingClientRect();
    const beside = plot && box.left >= plot.right - 4;
    const right = Math.min(drawing.right, plot?.right ?? innerWidth, innerWidth);
    if (box.left < drawing.left - 1 || (box.right > right + 1 && !beside)) cut.push(text.textContent);
    if (box.height < 8) cut.push(`${text.textContent}: ${box.height} px high`);
  }
  return cut;
}"""
"""Text of plots that is cut off or too small to read; names beside a plot may be cut where a legend stands for them."""


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])
@pytest.mark.parametrize("width", [360, 400, 1300])
@pytest.mark.parametrize("name", WRITTEN)
def test_no_page_scrolls_sideways_and_every_plot_can_be_read(
    opened: Open, name: str, width: int, scripts: bool
) -> None:
    page = opened(name, width, java_script_enabled=scripts)
    assert page.evaluate("document.documentElement.scrollWidth") == width, "what is wide scrolls in its own box"
    assert page.evaluate(CUT_OFF) == []


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("width", [360, 1300])
@pytest.mark.parametrize("name", WRITTEN)
def test_contrast(opened: Open, name: str, width: int, scheme: str) -> None:
    """Text against what lies behind it, at least 4.5:1 (WCAG 2.2, AA), folded parts as well."""
    page = opened(name, width, color_scheme=scheme)
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert page.evaluate(CONTRAST) == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids)), "no id stands twice"


@pytest.mark.parametrize(
    ("name", "most"),
    [("demo", 4_600), ("many", 8_000), ("eight", 9_500), ("unfinished", 6_500), ("compare", 4_000), ("matrix", 3_000)],
)
def test_pages_stay_short(opened: Open, name: str, most: int) -> None:
    """Two attacks by four defenses took 9,100 pixels before defenses had panels and long tables were folded."""
    assert page_height(opened(name)) <= most


def test_a_phone_shows_what_a_reader_needs_first(opened: Open) -> None:
    """Two attacks by five defenses took 12,000 pixels at this width before details were folded."""
    page = opened("many", 360)
    assert page_height(page) <= 7_800
    folds = page.locator("details.fold")
    assert folds.count() == 7, "of each attack what was attacked, what is sent and answers; and how it was made"
    assert folds.evaluate_all("all => all.every((each) => !each.open)")
    assert page.locator(".claim").first.is_visible() and page.locator(".panels").first.is_visible()
    for text in ("What was attacked", "Why poison is learned", "to one held-out item", "Suite, versions and hardware"):
        assert page.locator("summary", has_text=text).first.is_visible()
        assert not page.locator("details.fold", has_text=text).first.evaluate(
            "e => e.lastElementChild.checkVisibility({contentVisibilityAuto: true})"
        )
    demo = opened("demo", 360).locator("details.fold")
    assert demo.evaluate_all("all => all.map((each) => each.open)") == [False, True, True, False], (
        "short with one attack"
    )


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])
def test_a_wide_screen_and_paper_fold_no_details(opened: Open, scripts: bool) -> None:
    page = opened("many", java_script_enabled=scripts)
    for width, media in ((1300, "screen"), (600, "print")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(media=media)
        assert (
            page.locator("details.fold > summary").evaluate_all("all => all.some((e) => e.checkVisibility())") is False
        )
        assert page.locator("details.fold dl, details.fold blockquote").evaluate_all(
            "all => all.length > 7 && all.every((e) => e.checkVisibility() && e.getBoundingClientRect().height > 0)"
        )
        assert page.locator(".fold .plot-title", has_text="What was attacked").locator("visible=true").count() == 2


def test_wide_tables_use_the_width_there_is(opened: Open) -> None:
    page = opened("many")
    cut = "all => all.map((each) => each.scrollWidth - each.clientWidth)"
    assert set(page.get_by_role("region", name="Results table").evaluate_all(cut)) == {0}, "no column is cut off"


@pytest.mark.parametrize("width", [1000, 1100])
def test_a_results_table_needs_no_scrolling_on_a_small_screen(opened: Open, width: int) -> None:
    page = opened("demo", width)
    box = page.locator('[aria-label="Results table"]').first
    wide, shown = box.evaluate("box => [box.scrollWidth, box.clientWidth]")
    assert wide <= shown


def test_an_unfinished_run_says_each_thing_once(opened: Open) -> None:
    page = opened("unfinished")
    notice = page.get_by_role("note").first
    assert notice.get_by_role("listitem").count() == 2, "what failed, and what is missing"
    assert notice.get_by_role("listitem").first.inner_text().startswith("failed: RuntimeError")
    notice.locator("summary").click()
    assert "max_tokens(limit=96)" in notice.inner_text()
    table = page.get_by_role("table").first
    assert [text for text in table.get_by_role("rowheader").all_inner_texts() if "guard" in text] == []
    assert "No numbers for" in table.inner_text()
    rows = page.locator("#attack-2").get_by_role("rowheader").all_inner_texts()
    assert not [text for text in rows if "similarity" in text]
    assert page.locator("#attack-2").get_by_text("Not run to the end yet").locator("code").count() == 8
    widths = page.locator(".small-plots figure").evaluate_all("all => all.map((e) => e.getBoundingClientRect().width)")
    assert max(widths) < 450, "a plot alone in its row is as large as one of three"


class TestContents:
    def test_by_keyboard(self, opened: Open) -> None:
        page = opened("many")
        contents = page.get_by_role("navigation", name="Contents")
        link = contents.get_by_role("link", name="results").nth(1)
        link.focus()
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        page.keyboard.press("Enter")
        top = page.locator("#results-2").evaluate("e => e.getBoundingClientRect().top")
        bar = page.locator("#attack-2 .section-bar")
        assert 0 < top < 200, "the page stands there"
        assert bar.evaluate("e => e.getBoundingClientRect().top") == 0, "and says in which attack"
        assert top >= bar.evaluate("e => e.getBoundingClientRect().bottom"), "nothing covers what was asked for"
        bar.get_by_role("link", name="Contents").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('nav')?.id") == "contents", "and back again"

    def test_every_link_leads_somewhere(self, opened: Open) -> None:
        for name in ("demo", "many", "stores"):
            page = opened(name, java_script_enabled=False)
            ids = set(page.locator("[id]").evaluate_all("all => all.map((each) => each.id)"))
            links = page.locator("a[href^='#']").evaluate_all("all => all.map((each) => each.hash.slice(1))")
            assert links and set(links) <= ids


class TestPlots:
    def test_a_legend_stands_for_the_names_on_a_phone(self, opened: Open) -> None:
        wide, narrow = opened("demo"), opened("demo", 360)
        names = ["no attack", "attacked, no defense", "logit(reject='drop')"]
        assert wide.locator(".stage .line-names").is_hidden(), "where names stand beside their lines"
        legend = narrow.locator(".stage .line-names")
        assert [text.strip() for text in legend.get_by_role("listitem").all_inner_texts()] == names
        assert legend.locator("svg").count() == 3, "each with its stroke"
        beside = "[...document.querySelectorAll('.stage .plot text')].filter((t) => /logit/.test(t.textContent))"
        shown = (
            f"{beside}.map((t) => t.getBoundingClientRect().left < t.closest('.plot').getBoundingClientRect().right)"
        )
        assert wide.evaluate(shown) == [True]
        assert narrow.evaluate(shown) == [False], "and no name is cut in half"

    def test_many_defenses_have_panels(self, opened: Open) -> None:
        for width, columns in ((1300, 4), (400, 2)):
            page = opened("many", width)
            panels = page.locator("#attack-1 .stage .panels > li")
            assert panels.count() == 4
            lefts = panels.evaluate_all("all => all.map((each) => Math.round(each.getBoundingClientRect().left))")
            assert len(set(lefts)) == columns
        names = page.locator("#attack-1 .stage .panels code").all_inner_texts()
        assert names[0] == "guard(beacon=False)" and names[-1] == FOUR[3], "least attacked first, and whole names"

    @pytest.mark.parametrize("width", [1300, 400])
    def test_names_of_panels_break_between_words(self, opened: Open, width: int) -> None:
        codes = opened("many", width).locator("#attack-1 .stage .panels code")
        words, broken = codes.evaluate_all(PARTS_AND_BROKEN)
        assert "repetition+" in words, "a long name has several parts"
        assert broken == []

    def test_paired_differences(self, opened: Open) -> None:
        page = opened("compare")
        drawn = page.get_by_role("img")
        assert any(
            "B \u2212 A by line: attacked" in text for text in drawn.evaluate_all("a => a.map(e => e.ariaLabel)")
        )


class TestCompare:
    def test_better_and_worse_in_word_sign_and_colour(self, opened: Open) -> None:
        page = opened("stores")
        for details in page.locator("details").all():
            details.evaluate("each => each.open = true")
        colours = {}
        for kind, sign in (("better", "\u2713"), ("worse", "\u2717")):
            fields = page.locator(f"td.verdict.{kind}")
            texts = fields.all_inner_texts()
            assert all(text == f"{sign} {kind}" for text in texts)
            colours[kind] = fields.first.evaluate("e => getComputedStyle(e).color") if texts else ""
        assert colours["worse"] and colours["better"] != colours["worse"]

    def test_on_a_phone_every_row_is_whole(self, opened: Open) -> None:
        page = opened("compare", 360)
        rights = page.locator("table.cards td").evaluate_all("all => all.map((e) => e.getBoundingClientRect().right)")
        assert max(rights) <= 360, "nothing of a row lies outside"
        labels = page.locator("table.cards tbody tr:nth-child(2) td").evaluate_all(
            "all => all.map((e) => getComputedStyle(e, '::before').content)"
        )
        assert labels[:2] == ['"A"', '"B"'], "each number says what it is, as the head is not beside it"
        assert page.get_by_role("columnheader").count() == 6 * page.get_by_role("table").count()


class TestMatrix:
    def test_what_a_user_would_choose_stands_first(self, opened: Open) -> None:
        page = opened("matrix")
        rows = page.locator("tbody tr th[scope=row] code").all_inner_texts()
        assert rows == ["guard", FOUR[3], "self_judge", "oracle", "none"]
        much = page.locator("td.much")
        assert [text.split()[-4:] for text in much.all_inner_texts()] == [["\u25b2", "above", "5", "%"]]
        plain = page.locator("td[data-label='False rejection']:not(.much)").first
        back = "e => getComputedStyle(e).backgroundColor"
        assert much.first.evaluate(back) != plain.evaluate(back)
        assert not page.get_by_text("100.0 to 100.0").count(), "a range is written where its ends differ"
        assert page.get_by_text(" to ").count()

    def test_on_a_phone_every_row_is_whole(self, opened: Open) -> None:
        page = opened("matrix", 360)
        rights = page.locator("table.cards td").evaluate_all("all => all.map((e) => e.getBoundingClientRect().right)")
        assert max(rights) <= 360
        assert page.get_by_role("rowheader", name="guard").count() == 1, "it is still a table for a screen reader"
        assert page.get_by_role("columnheader").count() == 11
        fields = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="guard")).locator("td")
        tops = fields.evaluate_all("all => all.map((e) => Math.round(e.getBoundingClientRect().top))")
        assert len(tops) == 10 and len(set(tops)) == 3, "four fields in a line, so that a page is not too long"


def test_wide_tables_scroll_by_keyboard(opened: Opener) -> None:
    page = opened("many", 400)
    region = page.get_by_role("region", name="Results table").first
    region.focus()
    assert region.evaluate("e => e.scrollWidth > e.clientWidth")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.wait_for_timeout(500)  # it scrolls smoothly, and the page's policy lets no function be waited for
    assert region.evaluate("e => e.scrollLeft") > 0


def test_folded_parts_open_by_keyboard_and_without_scripts(opened: Open) -> None:
    page = opened("many", java_script_enabled=False)
    summary = page.get_by_text("What the columns mean").first
    summary.focus()
    page.keyboard.press("Enter")
    assert page.get_by_text("Harm is the ASR over the last three").first.is_visible()
    page = opened("many", 360, java_script_enabled=False)
    summary = page.locator("summary", has_text="What was attacked").first
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator(".facts").first.is_visible()
    assert page.locator(".fold .plot-title", has_text="What was attacked").locator("visible=true").count() == 2, (
        "no title twice"
    )
