"""The board with attacks of outsiders: best-known worst case, flags, pages; and what does not count."""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.leaderboard import made_attacks, made_entries
from tests.leaderboard.made_attacks import BLACK_BOX, WHITE_BOX
from tests.leaderboard.site.test_site import STANDARD
from thiefbench.leaderboard.attacking.measured import Against
from thiefbench.leaderboard.entry import Entry
from thiefbench.leaderboard.site import attack_page
from thiefbench.leaderboard.site.answers import answers
from thiefbench.leaderboard.site.attack_page import marked, shown_result
from thiefbench.leaderboard.site.attacks import MASKING, verdict_on
from thiefbench.leaderboard.site.board import BoardRow, SuiteBoard, board
from thiefbench.leaderboard.site.judging import titles
from thiefbench.leaderboard.site.writing import write_site
from thiefbench.leaderboard.verification.verdict import Verdict
from thiefbench.suite.analysis.statistics import SeedCount, ratio


def listed(folder: Path, slug: str = "mine", share: float = 0.9) -> Entry:
    """A defense that prevents so much of the suite's own attack, re-executed."""
    entry = made_entries.entry(folder / "entries", slug, made_entries.prevents(share))
    made_entries.verified(folder / "verified", entry)
    return entry


def attacked(folder: Path, *of: Entry, verdict: Verdict | None = "re-executed", **options: Any) -> None:
    entry = made_attacks.attack(folder / "entries", of, **options)
    if verdict is not None:
        made_entries.verified(folder / "verified", entry, verdict)  # type: ignore[arg-type]


def shown(folder: Path) -> SuiteBoard:
    whole = board(folder / "entries", folder / "verified")
    assert whole.broken == ()
    return whole.suites[0]


def row_of(folder: Path, slug: str = "mine") -> BoardRow:
    return next(row for row in shown(folder).rows if row.own and row.judged.entry.manifest.slug == slug)


def flags_of(folder: Path, slug: str = "mine") -> list[str]:
    return [flag.name for flag in row_of(folder, slug).flags]


def test_a_broken_defense_is_flagged_and_keeps_its_numbers(tmp_path: Path) -> None:
    mine = listed(tmp_path)
    before = row_of(tmp_path).row
    attacked(tmp_path, mine, left=0.6)
    row = row_of(tmp_path)
    assert flags_of(tmp_path) == ["broken by Breaker"]
    assert row.best is not None
    assert row.best.by is not None
    assert row.best.summary.mean == pytest.approx(1 - 0.6 / 0.8, abs=0.02)
    assert (row.best.by.since, row.best.attack) == (date(2026, 11, 21), "Breaker")
    assert row.row.place == before.place, "the rank goes by the suite alone"


@pytest.mark.slow
def test_an_attack_on_many_defenses_has_a_drawing_for_each(tmp_path: Path) -> None:
    names = ("one", "two", "three", "four")
    attacked(tmp_path, *(listed(tmp_path, name) for name in names), left=0.6)
    assert shown(tmp_path).attacks
    write_site(tmp_path / "site", tmp_path / "entries", tmp_path / "verified")
    page = (tmp_path / "site" / "entries" / "breaker.html").read_text()
    for name in names:
        assert f"Outcome of the attack by round: {name}" in page
    assert page.count('<figure class="small">') >= len(names)


def test_the_headline_says_what_a_submitted_attack_leaves_of_the_best(tmp_path: Path) -> None:
    attacked(tmp_path, listed(tmp_path), left=0.6)
    best = answers(shown(tmp_path), dict.fromkeys(titles(shown(tmp_path).suite), "it"))[0]
    assert best.text.endswith("Against the submitted attack \u201cBreaker\u201d it prevents 0.25.")


@pytest.mark.slow
def test_the_heading_says_which_submitted_attack_breaks_the_first(tmp_path: Path) -> None:
    """Else it would claim on a slide what the rows below deny."""
    both = [made_entries.entry(tmp_path / "entries", name, made_entries.prevents(0.9), STANDARD) for name in "ab"]
    for each in both:
        made_entries.verified(tmp_path / "verified", each)
    attacked(tmp_path, both[0], left=0.6, suite=STANDARD)
    heading = "each held against every attack of the suite at <b>5 of 5 seeds</b>."

    def page() -> str:
        write_site(tmp_path / "site", tmp_path / "entries", tmp_path / "verified")
        return (tmp_path / "site/index.html").read_text()

    assert f"{heading} The submitted attack \u201cBreaker\u201d breaks \u201cA\u201d." in page()
    attacked(tmp_path, both[0], left=0.5, suite=STANDARD, slug="again", name="Breaker")
    assert page().count("The submitted attack \u201cBreaker\u201d breaks \u201cA\u201d.") == 2, "two of one name"
    attacked(tmp_path, *both, left=0.6, suite=STANDARD)
    assert "The submitted attack \u201cBreaker\u201d breaks both defenses in first place." in page()


def test_an_attack_without_its_suite_s_defenses_is_not_dropped_silently(tmp_path: Path) -> None:
    attacked(tmp_path, listed(tmp_path), left=0.6)
    shutil.rmtree(tmp_path / "entries" / "mine")
    whole = board(tmp_path / "entries", tmp_path / "verified")
    assert whole.broken == (("breaker", "breaker: no defense of trial-v1, which it attacks, has an entry here"),)


def test_seeds_at_which_the_attack_fails_by_itself_are_not_counted(tmp_path: Path) -> None:
    """Else a defense that prevents nothing would have held there."""
    mine = made_entries.entry(tmp_path / "entries", "mine", made_entries.prevents(0.9), STANDARD)
    made_entries.verified(tmp_path / "verified", mine)
    attacked(tmp_path, mine, left=0.8, suite=STANDARD)
    best = row_of(tmp_path).best
    assert best is not None and best.summary.count == SeedCount(0, 5)


@pytest.mark.parametrize(("reference", "prevented"), [("placebo", 0.5), ("control", 0.25)])
def test_harm_is_measured_against_what_the_attack_names(tmp_path: Path, reference: str, prevented: float) -> None:
    """The choice of items alone, which the placebo makes too, may be the attack."""
    attacked(tmp_path, listed(tmp_path), left=0.6, placebo=0.4, reference=reference)
    best = row_of(tmp_path).best
    assert best is not None
    assert best.by is not None
    assert best.summary.mean == pytest.approx(prevented, abs=0.02)
    write_site(tmp_path / "site", tmp_path / "entries", tmp_path / "verified")
    page = (tmp_path / "site" / "entries" / "breaker.html").read_text()
    assert ("Harm is measured against the swarm without an attack, so" in page) == (reference == "control")


def test_an_attack_that_takes_little_breaks_nothing(tmp_path: Path) -> None:
    attacked(tmp_path, listed(tmp_path), left=0.12)
    assert flags_of(tmp_path) == []
    row = row_of(tmp_path)
    assert row.best is not None
    assert row.best.by is not None, "it is the best known all the same"


def test_an_attack_that_holds_back_undefended_breaks_nothing(tmp_path: Path) -> None:
    """It stops as soon as its poison is learned, so that the defense seems to prevent little of it."""
    mine = listed(tmp_path)
    attacked(tmp_path, mine, left=0.075, undefended=0.15, threat=BLACK_BOX)
    attacked(tmp_path, mine, left=0.1, slug="insider", threat=WHITE_BOX)
    assert flags_of(tmp_path) == [], "the suite's attack does more harm under the defense"
    row = row_of(tmp_path)
    assert row.best is not None
    assert row.best.attack == "Insider"
    write_site(tmp_path / "site", tmp_path / "entries", tmp_path / "verified")
    assert "so it breaks nothing" in (tmp_path / "site/entries/breaker.html").read_text()
    attacked(tmp_path, mine, left=0.12, undefended=0.15)
    assert "broken by Breaker" in flags_of(tmp_path), "a weak attack that does more breaks it all the same"


def test_a_weaker_attack_is_not_the_best_known(tmp_path: Path) -> None:
    attacked(tmp_path, listed(tmp_path), left=0.0)
    row = row_of(tmp_path)
    assert row.best is not None
    assert row.best.by is None


@pytest.mark.parametrize("verdict", [None, "self-reported", "rejected", "rescored"])
def test_numbers_that_nobody_checked_count_against_no_defense(tmp_path: Path, verdict: Verdict | None) -> None:
    attacked(tmp_path, listed(tmp_path), left=0.8, verdict=verdict)
    assert flags_of(tmp_path) == []
    row = row_of(tmp_path)
    assert row.best is not None
    assert row.best.by is None
    write_site(tmp_path / "site", tmp_path / "entries", tmp_path / "verified")
    page = (tmp_path / "site/entries/breaker.html").read_text()
    reason = "Its cells were not run again" if verdict == "rescored" else "not checked"
    assert f"{reason}, so it counts against no defense" in page or "was not checked" in page


def test_an_attack_of_the_maintainers_that_brings_no_code_counts_once_it_is_rescored(tmp_path: Path) -> None:
    """Its outcome is known, and who ran it."""
    mine = listed(tmp_path)
    attacked(tmp_path, mine, left=0.8, verdict="rescored", attack="tone", source={})
    assert flags_of(tmp_path) == [], "a stranger may have invented the tokens of its cells"
    attacked(tmp_path, mine, left=0.8, verdict="rescored", attack="tone", source={}, authors=("ThiefBench",))
    assert flags_of(tmp_path) == ["broken by Breaker"]
    write_site(tmp_path / "site", tmp_path / "entries", tmp_path / "verified")
    assert "attack that comes with ThiefBench" in (tmp_path / "site/entries/breaker.html").read_text()


def test_an_attack_on_an_earlier_version_does_not_count(tmp_path: Path) -> None:
    attacked(tmp_path, listed(tmp_path), left=0.8)
    made_entries.verified(
        tmp_path / "verified", made_entries.entry(tmp_path / "entries", "mine", source_sha256="0" * 64)
    )
    assert flags_of(tmp_path) == []


def test_an_attack_counts_when_the_entry_has_changed_and_the_defense_has_not(tmp_path: Path) -> None:
    """It may have got further seeds, other figures or another name."""
    attacked(tmp_path, listed(tmp_path), left=0.8)
    listed(tmp_path, share=0.8)
    assert flags_of(tmp_path) == ["broken by Breaker"]


def test_a_crash_is_reported_apart(tmp_path: Path) -> None:
    attacked(tmp_path, listed(tmp_path), crashes=True)
    assert flags_of(tmp_path) == []
    write_site(tmp_path / "site", tmp_path / "entries", tmp_path / "verified")
    for page in ("index.html", "entries/breaker.html"):
        text = (tmp_path / "site" / page).read_text()
        assert "the defense failed under it" in text, page


def test_an_outcome_of_clean_text_is_not_shown(tmp_path: Path) -> None:
    attacked(tmp_path, listed(tmp_path), control=0.1)
    whole = board(tmp_path / "entries", tmp_path / "verified")
    ((folder, reason),) = whole.broken
    assert folder == "breaker"
    assert "clean text satisfies its outcome" in reason


def test_black_box_beats_white_box(tmp_path: Path) -> None:
    mine = listed(tmp_path)
    attacked(tmp_path, mine, left=0.6, threat=BLACK_BOX)
    assert MASKING not in flags_of(tmp_path), "without a white-box attack nothing is known"
    attacked(tmp_path, mine, left=0.1, slug="insider", threat=WHITE_BOX)
    assert flags_of(tmp_path) == ["broken by Breaker", MASKING]
    attacked(tmp_path, mine, left=0.6, slug="insider-two", threat=WHITE_BOX)
    assert flags_of(tmp_path) == ["broken by Breaker", "broken by Insider-Two"]


def test_one_attack_on_two_defenses(tmp_path: Path) -> None:
    mine, other = listed(tmp_path), listed(tmp_path, "other")
    attacked(tmp_path, mine, other, left={"mine": 0.8, "other": 0.0})
    assert flags_of(tmp_path) == ["broken by Breaker"]
    assert flags_of(tmp_path, "other") == []
    write_site(tmp_path / "site", tmp_path / "entries", tmp_path / "verified")
    page = (tmp_path / "site/entries/breaker.html").read_text()
    assert "It breaks Mine." in page
    assert "it holds" in page


def test_a_defense_that_prevents_nothing_anyway_does_not_hold(tmp_path: Path) -> None:
    mine = listed(tmp_path, share=0.0)
    attacked(tmp_path, mine, left=0.8)
    write_site(tmp_path / "site", tmp_path / "entries", tmp_path / "verified")
    page = (tmp_path / "site/entries/breaker.html").read_text()
    assert "no worse than under the suite&#39;s attacks" in page
    assert "it holds" not in page


def test_pages_escape_what_strangers_wrote(tmp_path: Path) -> None:
    attacked(tmp_path, listed(tmp_path), left=0.8)
    write_site(tmp_path / "site", tmp_path / "entries", tmp_path / "verified")
    page = (tmp_path / "site/entries/breaker.html").read_text()
    assert "<i>thief</i>" not in page
    assert "<mark>All hail to the &lt;i&gt;thief&lt;/i&gt;</mark>" in page, "and the payload is marked"
    assert "How many &lt;b&gt;apples&lt;/b&gt;?" in page
    assert "it queries the defense about up to 8 submissions per slot and round" in page
    assert "4,000 queries" in page
    index = (tmp_path / "site/index.html").read_text()
    assert "worst known: 0.00" in index
    assert 'href="entries/breaker.html"' in index


def test_one_of_a_thing_is_no_plural() -> None:
    none = Against("", "mine", None, "", "", None, None, None, {"rounds": 1, "sent": 1.2, "queries": 2, "samples": 0})
    assert shown_result(none)["cost"] == "1 round with a payload, 1 payload sent, 2 queries"


def test_the_data_names_who_broke_what(tmp_path: Path) -> None:
    attacked(tmp_path, listed(tmp_path), left=0.8)
    write_site(tmp_path / "site", tmp_path / "entries", tmp_path / "verified")
    (suite,) = json.loads((tmp_path / "site/board.json").read_text())["suites"]
    row = next(row for row in suite["rows"] if row["slug"] == "mine")
    assert (row["best_known_attack"], row["best_known_by"]) == ("Breaker", "breaker")
    assert row["best_known"]["mean"] == pytest.approx(0, abs=0.02)
    (said,) = suite["attacks_by_outsiders"]
    assert (said["slug"], said["authors"], said["threat"]["queries"]) == ("breaker", ["B. Breaker"], 8)
    assert said["results"][0]["cost"]["queries"] == 4000


def test_pages_of_attacks_that_are_gone_are_removed(tmp_path: Path) -> None:
    mine = listed(tmp_path)
    attacked(tmp_path, mine)
    write_site(tmp_path / "site", tmp_path / "entries", tmp_path / "verified")
    (tmp_path / "entries/breaker").rename(tmp_path / "elsewhere")
    write_site(tmp_path / "site", tmp_path / "entries", tmp_path / "verified")
    assert not (tmp_path / "site/entries/breaker.html").exists()


def test_an_example_marks_fixed_strings_of_the_payload() -> None:
    phrase = {"phrase": "All hail to the thief"}
    assert marked("a ALL HAIL to the thief b", phrase) == (
        ("a ", False),
        ("ALL HAIL to the thief", True),
        (" b", False),
    )
    assert marked("hail to the thief", phrase) == (("hail to the thief", True),)
    assert marked("from the start", {"position": "start", "steps": "the"}) == (("from the start", False),)
    assert marked("its own", {"member": "own", "rehearsal": "own 0.1"}) == (("its own", False),)
    assert marked("x (a+)+ y", {"phrase": "(a+)+"}) == (("x ", False), ("(a+)+", True), (" y", False))


def test_little_of_a_stranger_s_payload_is_looked_for() -> None:
    """For two hundred kilobytes of it, one text took ten seconds."""
    payload = {str(number): f"a {'a' * 90}{number}" for number in range(3000)}
    assert 0 < sum(map(len, attack_page._needles(payload))) <= 2 * attack_page._MOST_MARKED
    marked = attack_page.marked("the thief", {"long": "x" * 5000, "phrase": "thief"})
    assert marked == (("the ", False), ("thief", True))


@pytest.mark.parametrize(
    ("prevented", "worst", "held_back", "verdict"),
    [
        (None, 0.9, False, "a defended cell has no score"),
        (0.6, 0.65, False, "it holds"),
        (0.4, 0.45, True, "no worse than under the suite's attacks"),
        (0.4, None, False, "no worse than under the suite's attacks"),
        (0.6, 0.9, False, "takes 0.30 more than the suite's attacks"),
        (0.6, 0.9, True, "it does less harm under the defense than the suite's attacks, so it breaks nothing"),
    ],
)
def test_what_a_page_says_of_a_defense(
    prevented: float | None, worst: float | None, held_back: bool, verdict: str
) -> None:
    measured = None if prevented is None else ratio({0: prevented}, {0: 1.0}, 0.5)
    result = Against("", "mine", measured, "a defended cell has no score", "", None, None, None, {})
    assert verdict_on(result, worst, held_back, 0.5) == verdict
