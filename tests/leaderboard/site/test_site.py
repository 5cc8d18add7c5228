"""The board: who stands where, what is believed, and what a hostile entry can do to the others' rows and to a page."""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import json
import re
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.bench.handmade import Numbers
from tests.leaderboard import made_entries, tiny_entries
from tests.leaderboard.made_entries import Says, entry, prevents, shared, verified
from tests.leaderboard.scores_files import put_scores, scores_of, scores_sha256
from thiefbench.cli import app
from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.site import rendering, writing
from thiefbench.leaderboard.site.answers import answers
from thiefbench.leaderboard.site.board import (
    NAIVE,
    NAMESAKE,
    NO_BETTER,
    Board,
    BoardRow,
    _current_first,
    board,
    read_all,
)
from thiefbench.leaderboard.site.files import board_data
from thiefbench.leaderboard.site.index_page import rank_of, shown_suite
from thiefbench.leaderboard.site.judging import held_to, naive_forms, reference_oracles, titles
from thiefbench.leaderboard.site.writing import write_site
from thiefbench.leaderboard.verification.verdict import Rerun
from thiefbench.suite.analysis.ranking import NO_ORACLE
from thiefbench.suite.report.suite_files import LEARNS_LESS
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.suite_yaml import load_suite

STANDARD = "standard-v1"
NAME = '<script>alert(1)</script><img src=x onerror=alert(2)>"'
SUBMISSIONS = Path(__file__).parent.parent / "submissions.py"
RUNNER = CliRunner()


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    """Folders of entries and of verifications."""
    folders = tmp_path / "entries", tmp_path / "verified"
    for folder in folders:
        folder.mkdir()
    return folders


def row(of: Board, label: str) -> BoardRow:
    (found,) = [each for suite in of.suites for each in suite.rows if each.row.defense == label]
    return found


def ranks(of: Board) -> dict[str, str]:
    (suite,) = of.suites
    return {each.row.defense: rank_of(each) for each in suite.rows}


class TestPlaces:
    def test_checked_rows_are_ranked_and_self_reported_ones_stand_in_brackets(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        verified(seen, entry(entries, "good", prevents(0.9), STANDARD), "re-executed")
        verified(seen, entry(entries, "same", prevents(0.9), STANDARD), "rescored")
        verified(seen, entry(entries, "fair", prevents(0.5), STANDARD), "rescored")
        entry(entries, "claims", prevents(0.99), STANDARD)
        found = ranks(board(entries, seen))
        assert list(found)[:4] == ["claims", "good", "same", "fair"], "rows go by their worst case, best first"
        assert found["claims"] == "(1)", "a row that nobody checked stands in brackets"
        assert (found["good"], found["same"], found["fair"]) == ("1=", "1=", "3"), (
            "it takes no place from those that were checked, and equal ones share theirs"
        )

    def test_anchors_stand_once_and_unfit_rows_below_them(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        verified(seen, entry(entries, "good", prevents(0.9), STANDARD), "re-executed")
        verified(seen, entry(entries, "strict", prevents(0.99, utility=0.4), STANDARD), "re-executed")
        found = ranks(board(entries, seen))
        assert list(found) == ["good", "oracle", "oracle(reject='drop')", "none", "strict"], "the ranking's order"
        assert found["strict"] == "unranked"
        strict = row(board(entries, seen), "strict")
        assert strict.row.reason.startswith("its utility without an attack is 0.400 "), "and the reason is told"

    def test_anchors_are_those_of_the_most_trusted_entry(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        entry(entries, "a-claim", prevents(0.9), others=lambda c: Numbers(asr=0.7) if c.role == "attack" else Numbers())
        verified(seen, entry(entries, "checked", prevents(0.8)), "rescored")
        oracle = row(board(entries, seen), "oracle(reject='drop')")
        assert (oracle.judged.label, oracle.own) == ("checked", False), "not of the one that comes first"

    def test_a_submitted_anchor_takes_the_anchors_row(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        verified(seen, entry(entries, "black", prevents(0.0), defense="blacklist"), "re-executed")
        verified(seen, entry(entries, "black-again", prevents(0.0), defense="blacklist"), "rescored")
        found = board(entries, seen)
        anchor = row(found, "blacklist")
        assert (anchor.row.place.status, anchor.judged.entry.manifest.slug) == ("anchor", "black")
        assert [judged.entry.manifest.slug for judged, _ in found.suites[0].apart] == ["black-again"], "once is enough"

    def test_drift_is_that_of_the_worst_cell_and_has_no_column_without_entries_that_say_it(
        self, made: tuple[Path, Path]
    ) -> None:
        entries, seen = made
        verified(seen, entry(entries, "old", prevents(0.9)), "re-executed")
        found = board(entries, seen)
        assert row(found, "old").row.drift is None
        assert "drift" not in [column["key"] for column in shown_suite(found.suites[0], 1)["columns"]]

        def drift(cell: CellSpec) -> float:
            return 0.0 if cell.role == "control" else 0.9 if cell.defense == "none" else 0.25

        verified(seen, entry(entries, "new", prevents(0.9), drift=drift), "re-executed")
        found = board(entries, seen)
        worst = row(found, "new").row.drift
        assert worst is not None
        assert worst.value == 0.25
        shown = shown_suite(found.suites[0], 1)
        keys = [column["key"] for column in shown["columns"]]
        # Every row has a sort value for its rank, and those of the attacks come last.
        at = [key for key in keys if not key.startswith("attack-")].index("drift") + ("rank" not in keys)
        sorts = {each["name"]: each["sorts"][at] for each in shown["rows"]}
        assert (sorts["Old"], sorts["New"], sorts["none"]) == ("", "0.25", "0.9")
        data = {each["slug"]: each["drift"] for each in board_data(found)["suites"][0]["rows"] if each["slug"]}
        assert data == {"old": None, "new": 0.25}

    def test_harm_that_the_asr_does_not_see_is_told_below_the_row(self, made: tuple[Path, Path]) -> None:
        entries, seen = made

        def drift(cell: CellSpec) -> float:
            return 1.0 if cell.role == "attack" else 0.01

        verified(seen, entry(entries, "blind", prevents(1.0), drift=drift), "re-executed")
        verified(seen, entry(entries, "poor", prevents(0.5), drift=drift), "re-executed")
        rows = {each["name"]: each["footnotes"] for each in shown_suite(board(entries, seen).suites[0], 1)["rows"]}
        assert rows["Blind"] == [
            "harm that the ASR does not see: the ASR is 0.0\u00a0%, and yet 100.0\u00a0% of the answers hold a word "
            "that the control never writes (another honest swarm: 1.0\u00a0%; the placebo: 1.0\u00a0%)"
        ]
        assert rows["Poor"] == [], "whose ASR shows it"
        verified(seen, entry(entries, "wide", prevents(1.0), STANDARD, drift=drift), "re-executed")
        wide, _ = board(entries, seen).suites
        (note,) = next(each["footnotes"] for each in shown_suite(wide, 1)["rows"] if each["name"] == "Wide")
        assert "not see: under text the ASR is" in note and "; likewise under " in note

    def test_one_seed_ranks_nothing_and_shows_no_ranks(self, made: tuple[Path, Path], tmp_path: Path) -> None:
        entries, seen = made
        for slug, share in (("poor", 0.9), ("good", 0.1)):
            verified(seen, entry(entries, slug, prevents(share)), "re-executed")
        found = board(entries, seen)
        assert list(ranks(found))[:2] == ["good", "poor"], "rows stand by their names"
        assert {row(found, slug).row.place.status for slug in ("good", "poor")} == {"unplaced"}
        shown = shown_suite(found.suites[0], 1)
        assert not [each for each in shown["rows"] if each["footnotes"]], "said once, above the table"
        assert "rank" not in [column["key"] for column in shown["columns"]]
        write_site(tmp_path / "site", entries, seen)
        text = html.unescape((tmp_path / "site/index.html").read_text())
        why = "the suite has 1 seed, and a ranking takes 5 or more"
        assert f"Nothing is ranked here: {why}." in text
        assert 'class="rank' not in text and "first place" not in text
        assert f"Not ranked: {why}; in its worst case" in html.unescape(
            (tmp_path / "site/entries/good.html").read_text()
        )
        data = json.loads((tmp_path / "site/board.json").read_text())["suites"][0]
        assert data["not_ranked"] == why
        assert {(each["status"], each["place"]) for each in data["rows"]} == {("unplaced", None), ("anchor", None)}

    def test_the_headline_counts_the_seeds_where_the_first_held(self, made: tuple[Path, Path], tmp_path: Path) -> None:
        entries, seen = made

        def says(cell: CellSpec) -> Numbers:
            fails = cell.seed == 3 and cell.role == "attack" and "dos" in cell.attack
            return prevents(0.2 if fails else 0.9)(cell)

        verified(seen, entry(entries, "good", says, STANDARD), "re-executed")
        write_site(tmp_path / "site", entries, seen)
        text = html.unescape((tmp_path / "site/index.html").read_text())
        assert "code_<wbr>injection" in text and "U+200B" not in text, "a name may be broken, and shows no sign of it"
        assert "It held against every attack of the suite at <b>4 of 5 seeds</b>." in text
        entry_page = html.unescape((tmp_path / "site/entries/good.html").read_text())
        assert "and it held against every attack of the suite at 4 of 5 seeds, \u2265 0.34" in entry_page
        (suite,) = json.loads((tmp_path / "site/board.json").read_text())["suites"]
        worst = suite["rows"][0]["worst_case"]
        assert (worst["good_seeds"], worst["least_share_of_good_seeds"]) == (4, pytest.approx(0.34259, abs=1e-5))
        field = suite["rows"][0]["attacks"]["shared groups: text"]["harm_prevented"]
        assert (field["limits"], field["good_seeds"]) == ("interval", 5)
        utility = suite["rows"][0]["utility"]
        assert (utility["limits"], utility["low"], utility["high"]) == ("equal", None, None), "no certain interval"
        (line, *_) = csv.DictReader(io.StringIO((tmp_path / "site/board.csv").read_text()))
        assert (line["worst_case_good_seeds"], line["utility_low"], line["utility_good_seeds"]) == ("4", "", "5")

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("other", "said"),
        [
            (0.9, "each held against every attack of the suite at <b>5 of 5 seeds</b>."),
            (0.2, "they held against every attack of the suite at 5 of 5 seeds; 4 of 5 seeds."),
        ],
    )
    def test_what_all_of_the_first_have_in_common_is_said_once(
        self, made: tuple[Path, Path], other: float, said: str, tmp_path: Path
    ) -> None:
        entries, seen = made

        def says(cell: CellSpec) -> Numbers:
            return prevents(other if cell.seed == 3 and cell.role == "attack" and "dos" in cell.attack else 0.9)(cell)

        verified(seen, entry(entries, "good", prevents(0.9), STANDARD), "re-executed")
        verified(seen, entry(entries, "twin", says, STANDARD), "re-executed")
        write_site(tmp_path / "site", entries, seen)
        text = html.unescape((tmp_path / "site/index.html").read_text())
        assert f"2 defenses share first place: \u201cGood\u201d, \u201cTwin\u201d; {said}" in text

    def test_a_tie_with_a_claim_is_told_below_the_row(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        verified(seen, entry(entries, "good", prevents(0.9), STANDARD), "re-executed")

        def wobbly(cell: CellSpec) -> Numbers:
            own = prevents(0.88)(cell)
            return replace(own, asr=own.asr + (0.05, -0.05, 0.05, -0.05, 0.0)[cell.seed] * (cell.role == "attack"))

        entry(entries, "claims", wobbly, STANDARD)
        rows = {each["name"]: each for each in shown_suite(board(entries, seen).suites[0], 1)["rows"]}
        assert rows["Claims"]["rank"] == "(1=)"
        assert "cannot be told apart from \u201cGood\u201d" in rows["Claims"]["footnotes"][0], (
            "the heading names one row alone"
        )

    def test_a_site_that_cannot_be_written_is_said_before_entries_are_read(
        self, made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "afile").touch()
        monkeypatch.setattr("thiefbench.leaderboard.site.writing.read_all", None)
        for site in ("afile", "afile/site"):
            done = RUNNER.invoke(app, ["leaderboard", "build", str(tmp_path / site), "--entries", str(made[0])])
            assert isinstance(done.exception, EntryError)
            assert f"no site can be written to {tmp_path / site} ({tmp_path / 'afile'} is a file)" in str(
                done.exception
            )

    def test_a_folder_of_verifications_that_is_not_there_is_said(self, made: tuple[Path, Path], tmp_path: Path) -> None:
        entry(made[0])
        words = ["leaderboard", "build", str(tmp_path / "site"), "--entries", str(made[0]), "--verified", "verifed"]
        done = RUNNER.invoke(app, words)
        assert "there is no folder verifed; name the folder of verifications" in str(done.exception), done.output
        assert not (tmp_path / "site").exists()


class TestOwnCells:
    def test_shared_cells_of_one_entry_change_no_other_row(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        verified(seen, entry(entries, "good", prevents(0.9), STANDARD), "re-executed")
        before = row(board(entries, seen), "good").row

        def idle(cell: CellSpec) -> Numbers:
            return Numbers()

        def gifted(cell: CellSpec) -> Numbers:
            return Numbers(asr=shared(cell).asr, reward=1.0 if cell.defense.startswith("oracle") else 0.75)

        verified(seen, entry(entries, "idle", prevents(0.9), STANDARD, others=idle), "re-executed")
        verified(seen, entry(entries, "gifted", prevents(0.8), STANDARD, others=gifted), "re-executed")
        found = board(entries, seen)
        assert row(found, "idle").row.place.status == "inconclusive", "its own attack does nothing undefended"
        assert "minus the oracle's" in row(found, "gifted").row.place.reason, "its own oracle asks too much of it"
        assert row(found, "good").row == before, "whoever has sound cells stands as before"

    def test_flags_of_the_verification_and_of_the_cells(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        says = prevents({"adaptive": 0.95, "": 0.5})
        verified(seen, entry(entries, "evasive", says, STANDARD), flags=("does not generalise",))
        flags = row(board(entries, seen), "evasive").flags
        assert [flag.name for flag in flags] == ["does not generalise", NAIVE]
        cases = "from text than from adaptive text, from varied equations than from varied adaptive equations"
        assert cases in flags[1].meaning

    def test_a_place_that_rests_on_utility_alone_is_a_flag(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        verified(seen, entry(entries, "good", prevents(0.9), STANDARD), "re-executed")
        verified(seen, entry(entries, "idle", prevents(0.0), STANDARD), "re-executed")
        found = board(entries, seen)
        assert (rank_of(row(found, "idle")), row(found, "good").flags) == ("2", ())
        (flag,) = row(found, "idle").flags
        assert flag.name == NO_BETTER
        assert "ranked for its utility alone" in flag.meaning

    def test_models_that_learn_less_than_undefended_ones_are_a_flag(self, made: tuple[Path, Path]) -> None:
        entries, seen = made

        def kept(share: float) -> Says:
            """It prevents nearly all harm, and under `adaptive` its models keep this share of the clean gain."""

            def said(cell: CellSpec) -> Numbers:
                costly = cell.role == "attack" and cell.attack.startswith("adaptive")
                return prevents(0.95, share if costly else 1.0)(cell)

            return said

        verified(seen, entry(entries, "stops-learning", kept(0.2), STANDARD))
        verified(seen, entry(entries, "costs-a-little", kept(0.95), STANDARD))
        found = board(entries, seen)
        (flag,) = row(found, "stops-learning").flags
        assert flag.name == LEARNS_LESS
        assert flag.meaning.startswith(
            "under adaptive text its models keep 0.20 of the clean gain, and undefended ones 1"
        )
        assert row(found, "costs-a-little").flags == ()
        shown = {each["name"]: each for each in shown_suite(found.suites[0], 1)["rows"]}
        notes = shown["Stops-Learning"]["footnotes"]
        assert [each for each in notes if LEARNS_LESS in each] == [f"{flag.name}: {flag.meaning}"], "said once"

    @pytest.mark.parametrize(
        "name", ["Good", "g o-o d!", "\uff27ood", "good on trial", "go\u00f3d", "g00d\u02bc", "\u0262ood"]
    )
    def test_who_is_called_as_another_is_told_apart(self, made: tuple[Path, Path], name: str) -> None:
        entries, seen = made
        entry(entries, "good", suite=STANDARD)
        entry(entries, "other", suite=STANDARD)
        entry(entries, "copy", suite=STANDARD, name=name)
        entry(entries, "elsewhere", name=name)
        found = board(entries, seen)
        for slug, other in (("copy", "good"), ("good", "copy")):
            (flag,) = row(found, slug).flags
            assert flag.name == NAMESAKE
            assert f"the entry {slug};" in flag.meaning and f"may be taken for {other}," in flag.meaning
        assert row(found, "other").flags == ()
        assert row(found, "elsewhere").flags == (), "in another suite"

    def test_an_adaptive_attack_that_does_more_is_no_flag(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        entry(entries, "plain", prevents({"adaptive": 0.5, "": 0.95}), STANDARD)
        entry(entries, "even", prevents(0.9), STANDARD)
        assert row(board(entries, seen), "plain").flags == row(board(entries, seen), "even").flags == ()

    def test_adaptive_attacks_are_paired_within_their_part(self) -> None:
        suite = load_suite(STANDARD)
        pairs = naive_forms(suite)
        assert pairs == {
            "shared groups: adaptive": "shared groups: text",
            "owned groups: varied(attack=\"adaptive(attack='equations')\", gibberish=0.5)": (
                "owned groups: varied(attack='equations', gibberish=0.5)"
            ),
        }
        assert {*pairs, *pairs.values()} <= set(titles(suite))


class TestSuites:
    @pytest.mark.slow
    def test_current_ones_come_first_and_those_that_rank_nothing_last(
        self, made: tuple[Path, Path], tmp_path: Path
    ) -> None:
        entries, seen = made
        for suite in ("trial", STANDARD, "standard-v2"):
            entry(entries, f"on {suite}".replace(" ", "-"), prevents(0.5), suite)
        assert [each.suite.title for each in board(entries, seen).suites] == ["standard-v2", STANDARD, "trial-v1"]
        write_site(tmp_path / "site", entries, seen)
        page = (tmp_path / "site/index.html").read_text()
        assert page.count("<strong>Superseded suite.</strong> Use standard-v2.") == 1
        (glossary,) = re.findall(r'<h2 id="attacks">.*?</section>', page, re.DOTALL)
        said = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", glossary))
        assert {"text", "auto", "own", "borrowed", "code_injection"} <= set(said), "also those inside others"
        assert len(said) == len(re.findall("<dt>", glossary)), "each once"
        assert all(said.values())

    def test_the_suite_that_is_meant_when_none_is_named_is_first(self) -> None:
        names = ("averaging-v1", "heterogeneous-v1", "standard-v2", "standard-v1")
        assert min(((name, load_suite(name)) for name in names), key=_current_first)[0] == "standard-v2"


class TestTrust:
    def test_a_changed_entry_is_self_reported_again(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        verified(seen, entry(entries, "mine", prevents(0.5)), "re-executed")
        assert row(board(entries, seen), "mine").judged.trust == "re-executed"
        entry(entries, "mine", prevents(0.9))
        assert row(board(entries, seen), "mine").judged.trust == "self-reported", "it was another that was verified"

    def test_a_rejected_entry_has_no_row(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        verified(seen, entry(entries, "good", prevents(0.9)), "rescored")
        verified(seen, entry(entries, "forged", prevents(1.0)), "rejected", reasons=("cell 1 gives 0.1.",))
        found = board(entries, seen)
        assert [judged.label for judged, _ in found.suites[0].apart] == ["forged"]
        assert "good" in ranks(found) and "forged" not in ranks(found)

    def test_a_suite_whose_entries_are_all_rejected(self, made: tuple[Path, Path], tmp_path: Path) -> None:
        entries, seen = made
        verified(seen, entry(entries, "forged"), "rejected")
        write_site(tmp_path / "site", entries, seen)
        text = (tmp_path / "site/index.html").read_text()
        assert "Nothing is ranked here" in text and "rejected without a reason" in text

    def test_nothing_of_a_submission_is_loaded(
        self, made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entries, seen = made
        trap = entry(entries, "trap").folder
        (trap / "defense/mine.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w')\n")
        text = (trap / "entry.json").read_text()
        old = re.search(r'"defense/mine.py": ?"([0-9a-f]{64})"', text)
        assert old is not None
        (trap / "entry.json").write_text(text.replace(old[1], digest(trap / "defense/mine.py")))
        monkeypatch.chdir(trap)  # where its spec string is a path that exists
        found = write_site(tmp_path / "site", entries, seen)
        assert not found.broken and "trap" in ranks(found), "it is shown"
        assert not (tmp_path / "loaded").exists(), "and its source was not run"


class TestBroken:
    @pytest.mark.parametrize(
        ("damage", "told"),
        [
            (lambda e: put_scores(e, "{"), "does not match entry.json"),
            (lambda e: (e / "entry.json").write_text("{"), "entry.json"),
            (lambda e: (e / "entry.json").unlink(), "has no entry.json"),
            (lambda e: (e / "more.txt").write_text(""), "does not list"),
            (lambda e: (e / "link").symlink_to(e / "entry.json"), "not a plain file"),
        ],
    )
    def test_a_damaged_entry_stands_apart_with_its_reason(self, made: tuple[Path, Path], damage, told: str) -> None:
        entries, seen = made
        verified(seen, entry(entries, "good"), "rescored")
        damage(entry(entries, "bad").folder)
        found = board(entries, seen)
        assert [folder for folder, _ in found.broken] == ["bad"] and told in found.broken[0][1]
        assert "good" in ranks(found), "the others stand"

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"suite": STANDARD, "seeds": (1, 2)}, "an entry's seeds are the first ones of standard-v1"),
            ({"suite": "smoke"}, "nothing on it is ranked"),
            ({"slug": "oracle", "name": "Mine"}, "the name of an anchor"),
            ({"slug": "placebo", "name": "Mine"}, "the name of the cells with clean completions"),
            ({"says": prevents(error="CUDA is gone")}, ""),
            (
                {"suite": STANDARD, "says": lambda c: replace(prevents()(c), asr=1e7 * ("dos" in c.attack))},
                "gives a harm prevented of -",
            ),
            (
                {"defense": "oracle(reject='drop', note='This board has moved')"},
                "oracle, a row of the benchmark itself, in another form than in trial-v1",
            ),
        ],
    )  # fmt: skip
    def test_what_cannot_be_ranked_says_why(self, made: tuple[Path, Path], changes, told: str) -> None:
        entries, seen = made
        made_entry = entry(entries, **{"slug": "odd", **changes})
        verified(seen, made_entry, "rescored")
        found = board(entries, seen)
        if told:
            assert [folder for folder, _ in found.broken] == [made_entry.manifest.slug] and told in found.broken[0][1]
        else:
            assert row(found, "odd").row.place.worst is None, "a failed cell is no score"
            assert "CUDA is gone" in row(found, "odd").row.problems[0]

    def test_a_cell_without_clean_reward_is_no_cell(self, made: tuple[Path, Path]) -> None:
        """Without it nobody sees that its models learn nothing."""
        entries, seen = made
        odd = entry(entries, "odd", prevents(utility=0.0))
        told = scores_of(odd.folder)
        for cell in told["cells"]:
            if (cell["role"], cell["defense"]) == ("attack", odd.manifest.defense):
                cell["scores"]["clean_reward"] = [None, None, None, 0]
        put_scores(odd.folder, json.dumps(told))
        manifest = json.loads((odd.folder / "entry.json").read_text())
        manifest["files"]["scores.json"] = scores_sha256(odd.folder)
        (odd.folder / "entry.json").write_text(json.dumps(manifest))
        ((folder, why),) = board(entries, seen).broken
        assert folder == "odd" and "has no clean reward for the cell" in why

    def test_a_broken_verification_breaks_its_entry_alone(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        entry(entries, "good")
        entry(entries, "odd")
        (seen / "odd.json").write_text("{")
        found = board(entries, seen)
        assert [folder for folder, _ in found.broken] == ["odd"] and "good" in ranks(found)

    def test_a_verification_without_end_breaks_its_entry_alone(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        entry(entries, "good")
        entry(entries, "odd")
        with (seen / "odd.json").open("wb") as file:
            file.truncate(1 << 40)
        found = board(entries, seen)
        assert [folder for folder, _ in found.broken] == ["odd"] and "good" in ranks(found)
        assert "has more than 1,048,576 bytes" in found.broken[0][1]

    def test_a_folder_like_a_whole_disk_breaks_its_entry_alone(
        self, made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entries, seen = made
        entry(entries, "good")
        for number in range(3000):
            (entries / "odd" / str(number)).mkdir(parents=True)
        looked: list[Path] = []
        is_symlink = Path.is_symlink
        monkeypatch.setattr(Path, "is_symlink", lambda path: looked.append(path) or is_symlink(path))
        found = board(entries, seen)
        assert [folder for folder, _ in found.broken] == ["odd"] and "good" in ranks(found)
        assert "holds more than 200 files" in found.broken[0][1]
        assert len(looked) < 2500

    def test_numbers_that_no_table_can_hold_break_their_entry_alone(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        entry(entries, "good")
        entry(entries, "odd", prevents(seconds=(("sample", 1e7),)), others=still)
        found = board(entries, seen)
        ((folder, why),) = found.broken
        assert folder == "odd" and "good" in ranks(found)
        assert "times as long as undefended ones, which no measurement can give" in why

    def test_a_page_that_cannot_be_made_breaks_its_entry_alone(
        self, made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entries, seen = made
        entry(entries, "good")
        entry(entries, "odd")
        drawn = writing.shown_entry
        monkeypatch.setattr(writing, "shown_entry", lambda judged: drawn(judged) if judged.label == "good" else 1 / 0)
        found = write_site(tmp_path / "site", entries, seen)
        assert found.broken == (("odd", "odd cannot be shown: ZeroDivisionError: division by zero"),)
        assert "odd" not in ranks(found) and not (tmp_path / "site/entries/odd.html").exists()

    def test_no_folder_of_entries(self, tmp_path: Path) -> None:
        with pytest.raises(EntryError, match="--entries DIR"):
            board(tmp_path / "none", tmp_path)


class Read(HTMLParser):
    """The tags of a page, and the text in its tables."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site with a hostile entry among good ones."""
    root = tmp_path_factory.mktemp("board")
    reruns = (
        Rerun(part="", role="attack", attack="text", seed=0, measure="harm_prevented", submitted=(0.9, 0.9),
              found=0.9, equal=True, agrees=True),
        Rerun(part="", role="control", attack="text", seed=None, measure="utility", submitted=(0.8, 1.0),
              found=0.7, equal=None, agrees=False),
    )  # fmt: skip
    good = entry(root / "entries", "good", paper="https://example.org/paper?a=1&b=2")
    verified(root / "verified", good, reruns=reruns, reasons=("a <blink>reason</blink>",), flags=("non-deterministic",))
    entry(
        root / "entries", "hostile", name=NAME, authors=("</td></table><script>alert(3)</script>", "W" * 200),
        defense=f"defense/mine.py:Mine(x='</code><script>alert(4)</script>{'A' * 500}')",
        machine={
            "capability": "AVX2", "</dl><script>": "alert(5)",
            "<blink>": "</pre><script>alert(6)</script>\u202egnp.exe",
        },
    )  # fmt: skip
    write_site(root / "site", root / "entries", root / "verified")
    return root / "site"


class TestPages:
    @pytest.mark.parametrize("name", ["index.html", "entries/hostile.html", "entries/good.html"])
    def test_nothing_of_an_entry_is_markup(self, site: Path, name: str) -> None:
        text = (site / name).read_text()
        page = Read(text)
        assert "alert(" not in "".join(re.findall(r"<script>.*?</script>", text, re.DOTALL)), "scripts are our own"
        assert not page.all("img") and not page.all("iframe") and not page.all("blink"), "a stranger's tags are text"
        assert not [key for _, attributes in page.tags for key in attributes if key.startswith("on")]
        links = [attributes["href"] or "" for attributes in page.all("a")]
        assert all(re.match(r"https://|#|(\.\./)?[a-z]+(/[a-z0-9-]+)?\.(html|json|csv)$", link) for link in links), (
            links
        )

    @pytest.mark.parametrize("name", ["index.html", "entries/hostile.html"])
    def test_a_page_asks_for_nothing_and_runs_only_its_own_scripts(self, site: Path, name: str) -> None:
        text = (site / name).read_text()
        page = Read(text)
        (policy,) = [m["content"] or "" for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; ")
        scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
        hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts]
        assert f"script-src {' '.join(hashes)};" in html.unescape(policy), "the policy allows these and no other"
        fetched = [a for tag, a in page.tags if "src" in a or (tag == "link")]
        assert not fetched and "url(" not in re.sub(r"url\(#", "", text), "nothing is loaded, from anywhere"

    def test_characters_that_turn_text_are_shown(self, site: Path) -> None:
        """A name may hold none, and what describes the machine may."""
        text = (site / "entries/hostile.html").read_text()
        assert "\u202e" not in text and "&lt;U+202E&gt;gnp.exe" in text, "a reader sees what is there"

    def test_an_entrys_page_says_how_it_was_verified_and_how_to_run_it(self, site: Path) -> None:
        text = html.unescape((site / "entries/good.html").read_text())
        for said in (
            "fresh, secret", "identical", "0.800 to 1.000", "a <blink>reason</blink>", "non-deterministic",
            "(cd leaderboard/entries/good && thiefbench run trial --defense defense/mine.py:Mine --device cpu",
            "thiefbench leaderboard verify leaderboard/entries/good --archive good.tar", "class Mine(Defense):",
            "https://example.org/paper?a=1&b=2", "numpy==2.4.0",
        ):  # fmt: skip
            assert said in text, f"the page says {said!r}"
        hostile = html.unescape((site / "entries/hostile.html").read_text())
        assert "Nobody has verified this version of the entry" in hostile
        assert "--defense 'defense/mine.py:Mine(x='\"'\"'</code>" in hostile, "what is pasted into a shell is quoted"

    def test_an_entrys_page_verifies_first_and_warns_before_its_file_is_run(self, site: Path) -> None:
        text = html.unescape((site / "entries/good.html").read_text())
        verify, warning, run = (
            text.index(said) for said in ("leaderboard verify", "without</em> a sandbox", "bench run")
        )
        assert verify < warning < run, "nobody pastes the command that runs a stranger's file unwarned"

    def test_the_table_is_there_without_scripts(self, site: Path) -> None:
        page = Read((site / "index.html").read_text())
        bodies = [a for a in page.all("tbody") if "data-trust" in a]
        assert len(bodies) == 4 and not any("hidden" in a for a in bodies), "two entries and two anchors"
        assert not page.all("th")[0].get("aria-sort") and all("hidden" in a for a in page.all("form"))
        assert len(page.all("caption")) == len(page.all("table")), "every table has a caption"

    def test_no_template_marks_anything_safe(self) -> None:
        folder = Path(str(rendering.__file__)).parent
        for path in folder.glob("*.jinja"):
            assert not re.search(r"\|\s*safe|autoescape", path.read_text().partition("#}")[2]), path.name

    def test_equal_entries_give_equal_bytes(self, site: Path, tmp_path: Path) -> None:
        (tmp_path / "entries").mkdir()
        (tmp_path / "entries/gone.html").write_text("of an entry that was taken back")
        steps: list[tuple[int, int]] = []
        write_site(
            tmp_path, site.parent / "entries", site.parent / "verified", progress=lambda *step: steps.append(step)
        )
        assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)], "two entries are read and shown"
        both = [{p.relative_to(f).as_posix(): p.read_bytes() for p in f.rglob("*.*")} for f in (site, tmp_path)]
        assert both[0] == both[1], "no time, no order of a file system, no stale page"

    def test_the_data_files_say_the_same(self, site: Path) -> None:
        data = json.loads((site / "board.json").read_text())
        rows = data["suites"][0]["rows"]
        lines = list(csv.DictReader(io.StringIO((site / "board.csv").read_text())))
        assert [line["name"] for line in lines] == [each["name"] for each in rows]
        for line, each in zip(lines, rows, strict=True):
            assert line["worst_case"] == repr(each["worst_case"]["mean"])
            title, field = next(iter(each["attacks"].items()))
            assert line[f"{title}: harm_prevented"] == repr(field["harm_prevented"]["mean"])
        good = next(each for each in rows if each["slug"] == "good")
        assert (good["status"], good["place"], good["trust"]) == ("unplaced", None, "re-executed")
        assert next(each for each in rows if each["slug"] == "hostile")["trust"] == "self-reported"
        assert next(each for each in rows if each["name"] == "none")["measured_by"] == "good"

    def test_a_spreadsheet_gets_no_formula(self, made: tuple[Path, Path], tmp_path: Path) -> None:
        entry(made[0], "sum", name='=HYPERLINK("https://example.org")', authors=("+1",))
        write_site(tmp_path / "site", *made)
        line = next(csv.DictReader(io.StringIO((tmp_path / "site/board.csv").read_text())))
        assert (line["name"], line["authors"]) == ('\'=HYPERLINK("https://example.org")', "'+1")

    def test_a_paper_is_an_https_address(self, made: tuple[Path, Path]) -> None:
        for address in ("javascript:alert(1)", "http://example.org", 'https://e.org/" onclick="x'):
            with pytest.raises(ValueError, match="paper"):
                entry(made[0], "mine", paper=address)


def test_what_submit_writes_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tiny_entries.made(tmp_path, f"{SUBMISSIONS}:Half", monkeypatch)
    verified(tmp_path / "verified", found.entry, "rescored")
    shown = write_site(tmp_path / "site", tmp_path / "entries", tmp_path / "verified")
    assert not shown.broken
    (suite,) = shown.suites
    (own,) = [each for each in suite.rows if each.own]
    assert own.judged.trust == "rescored", "its row has its trust"
    text = html.unescape((tmp_path / f"site/entries/{found.entry.manifest.slug}.html").read_text())
    assert "class Half(Fine):" in text and "torch==" in text and found.entry.manifest.archive.sha256 in text


class TestCommand:
    def test_done_broken_and_misused(self, made: tuple[Path, Path], tmp_path: Path) -> None:
        entries, seen = made
        words = ["leaderboard", "build", str(tmp_path / "site"), "--entries", str(entries), "--verified", str(seen)]
        assert RUNNER.invoke(app, words).exit_code == 0, "an empty board is a board"
        assert "There is no entry yet" in (tmp_path / "site/index.html").read_text()
        entry(entries, "mine")
        done = RUNNER.invoke(app, words)
        assert (done.exit_code, "trial-v1: 1 entry with a row" in done.output) == (0, True)
        (seen / "mine.json").write_text("{}")
        beside = RUNNER.invoke(app, words[:-2])
        assert (beside.exit_code, "mine.json" in beside.output) == (1, True), "verifications lie beside the entries"
        (seen / "mine.json").unlink()
        (entries / "odd").mkdir()
        done = RUNNER.invoke(app, words)
        assert done.exit_code == 1, "what is not shown is a failure"
        assert (tmp_path / "site/entries/mine.html").is_file() and "odd" in (tmp_path / "site/index.html").read_text()
        missing = RUNNER.invoke(app, [*words[:3], "--entries", str(tmp_path / "none")])
        assert isinstance(missing.exception, EntryError), "which the command line tells in one sentence"


def still(cell: CellSpec) -> Numbers:
    """Shared cells that took next to no time."""
    return replace(shared(cell), seconds=(("sample", 1e-290),))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_with_few_seeds_an_attack_that_does_nothing_is_told_below_the_row(made: tuple[Path, Path]) -> None:
    entries, seen = made
    verified(seen, entry(entries, "idle", prevents(0.9), others=lambda cell: Numbers()), "re-executed")
    found = board(entries, seen)
    reason = row(found, "idle").row.place.reason
    assert reason.startswith("the suite has 1 seed, and a ranking takes 5 or more; inconclusive: undefended, ")
    (shown,) = [each for each in shown_suite(found.suites[0], 1)["rows"] if each["name"] == "Idle"]
    assert shown["footnotes"][0] == reason


# --- suites without an oracle among their shared cells ---


@pytest.mark.slow
def test_utility_under_attack_is_held_to_a_checked_entry_of_the_oracle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = replace(load_suite("standard-v2"), name="plain", version=1, defenses=("none",))
    made_entries.tiny(of, monkeypatch)
    monkeypatch.setattr(made_entries, "load_suite", lambda name: of)
    entries, checks = tmp_path / "entries", tmp_path / "verified"
    mine = entry(entries, "mine", prevents(0.9))
    weak = entry(entries, "weak", prevents(0.9, utility=0.95))
    for each in (mine, weak):
        verified(checks, each)
    assert set(reasons(entries, checks).values()) == {NO_ORACLE}
    best = entry(entries, "oracle-on-plain", prevents(1.0, utility=1.1), defense="oracle")
    assert set(reasons(entries, checks).values()) == {NO_ORACLE}, "nobody checked the oracle's entry"
    verified(checks, best)
    held = reasons(entries, checks)
    assert held["mine"] == ""
    judged, _ = read_all(entries, checks)
    timed = judged["mine"]
    assert held_to(timed, reference_oracles(judged.values())).numbers.cost == timed.numbers.cost is not None
    elsewhere = replace(
        timed, numbers=replace(timed.numbers, cost=None)
    )  # as one has that was timed on another machine
    assert held_to(elsewhere, reference_oracles(judged.values())).numbers.cost is None
    assert "minus the oracle's is" in held["weak"]


@pytest.mark.slow
def test_no_later_entry_changes_which_oracle_others_are_held_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = replace(load_suite("standard-v2"), name="plain", version=1, defenses=("none",))
    made_entries.tiny(of, monkeypatch)
    monkeypatch.setattr(made_entries, "load_suite", lambda name: of)
    entries, checks = tmp_path / "entries", tmp_path / "verified"
    verified(checks, entry(entries, "mine", prevents(0.9)))
    too_good = entry(entries, "a-stranger", prevents(1.0, utility=1.5), defense="oracle")
    verified(checks, too_good, "rescored")
    assert reasons(entries, checks)["mine"] == NO_ORACLE, "nobody ran the stranger's oracle again"
    verified(checks, entry(entries, "oracle-on-plain", prevents(1.0), defense="oracle"))
    assert reasons(entries, checks)["mine"] == ""
    verified(checks, too_good, "re-executed", verified=date(2026, 12, 1))
    assert reasons(entries, checks)["mine"] == "", "it was verified later"

    def lacking(cell: CellSpec) -> Numbers:
        said = prevents(1.0)(cell)
        return replace(said, error="it failed") if (cell.role, cell.seed) == ("attack", 0) else said

    verified(checks, entry(entries, "a-stranger", lacking, defense="oracle"), verified=date(2026, 11, 1))
    assert reasons(entries, checks)["mine"] == "", "it lacks a cell, and another one does not"


def test_a_best_row_that_is_not_ranked_says_why(tmp_path: Path) -> None:
    entries, checks = tmp_path / "entries", tmp_path / "verified"
    verified(checks, entry(entries, "mine", prevents(0.9, utility=0.5), suite="standard-v2"))
    (suite,) = board(entries, checks).suites
    best, *_ = answers(suite, {title: title for title in titles(suite.suite)})
    assert re.search(r"It is not ranked: its utility without an attack is .*, and 0.9 is asked\.$", best.text)


def reasons(entries: Path, checks: Path) -> dict[str, str]:
    """Why each row of the only suite that is no anchor has no place; empty if it has one."""
    (suite,) = board(entries, checks).suites
    return {row.row.defense: row.row.place.reason for row in suite.rows if row.own and row.row.place.status != "anchor"}
