"""Rows of entries that have some of their suite's seeds, and what the board's first screen answers."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.bench.handmade import Numbers
from tests.leaderboard.made_entries import entry, prevents, shared, verified
from tests.leaderboard.site.test_site import STANDARD, made, ranks, row
from thiefbench.leaderboard.deliveries import delivery_sha256s
from thiefbench.leaderboard.manifest import Delivery, Packed
from thiefbench.leaderboard.site.answers import worst_first
from thiefbench.leaderboard.site.board import NEVER_RUN, board
from thiefbench.leaderboard.site.index_page import shown_suite
from thiefbench.leaderboard.site.writing import write_site
from thiefbench.leaderboard.verification.verdict import DeliveryVerdict, Rerun
from thiefbench.suite.scenario import CellSpec

__all__ = ["made"]  # a fixture


class TestPartialEntries:
    def test_they_stand_below_ranked_rows_whatever_their_numbers_are(
        self, made: tuple[Path, Path], tmp_path: Path
    ) -> None:
        entries, seen = made
        verified(seen, entry(entries, "fair", prevents(0.5), STANDARD), "rescored")
        verified(seen, entry(entries, "begun", prevents(0.99), STANDARD, seeds=(0, 1, 2)), "re-executed")
        found = board(entries, seen)
        assert list(ranks(found).items())[:2] == [("fair", "1"), ("begun", "\u2013")]
        begun = row(found, "begun")
        assert (begun.seeds, begun.row.place.status, begun.row.place.number) == ("3 of 5 seeds", "unplaced", None)
        assert begun.row.place.reason == "it has 3 of 5 seeds, and a partial suite is never ranked"
        worst = begun.row.place.worst
        assert worst is not None
        assert (worst.summary.kind, [seed for seed, _ in worst.summary.points]) == ("range", [0, 1, 2])
        assert begun.row.utility is not None and len(begun.row.utility.points) == 3
        assert row(found, "oracle").judged.label == "begun", "anchors are those of an entry whose cells were run again"
        write_site(tmp_path / "site", entries, seen)
        text = html.unescape((tmp_path / "site/index.html").read_text())
        assert "\u201cFair\u201d is in first place" in text and '<span class="note">3 of 5 seeds</span>' in text
        assert "Not ranked: it has 3 of 5 seeds" in html.unescape((tmp_path / "site/entries/begun.html").read_text())
        (suite,) = json.loads((tmp_path / "site/board.json").read_text())["suites"]
        rows = {each["slug"]: each for each in suite["rows"]}
        assert (rows["begun"]["seeds"], rows["begun"]["all_seeds"], rows["begun"]["place"]) == ([0, 1, 2], False, None)
        assert (rows["fair"]["all_seeds"], rows["fair"]["place"]) == (True, 1)
        lines = {each["slug"]: each for each in csv.DictReader(io.StringIO((tmp_path / "site/board.csv").read_text()))}
        assert (lines["begun"]["seeds"], lines["begun"]["all_seeds"]) == ("0; 1; 2", "0")

    def test_a_cell_of_its_own_that_failed_is_named(self, made: tuple[Path, Path]) -> None:
        entries, seen = made

        def failing(cell: CellSpec) -> Numbers:
            failed = cell.role == "attack" and "code_injection" in cell.attack
            return Numbers(error="RuntimeError: out of memory") if failed else prevents(0.9)(cell)

        verified(seen, entry(entries, "begun", failing, STANDARD, seeds=(0,)), "rescored")
        place = row(board(entries, seen), "begun").row.place
        assert place.worst is None
        assert place.reason.startswith("it has 1 of 5 seeds, and a partial suite is never ranked; ")
        assert "code_injection" in place.reason and "RuntimeError: out of memory" in place.reason

    @pytest.mark.slow
    def test_plots_call_a_row_by_its_name(self, made: tuple[Path, Path], tmp_path: Path) -> None:
        entries, seen = made
        verified(seen, entry(entries, "begun", prevents(0.9), STANDARD, seeds=(0,)), "rescored")
        write_site(tmp_path / "site", entries, seen)
        for page in ("index.html", "entries/begun.html"):
            drawn = re.findall(r"<text[^>]*>\s*([Bb]egun)\s*</text>", (tmp_path / "site" / page).read_text())
            assert set(drawn) == {"Begun"}, page

    def test_those_that_wait_for_seeds_are_in_the_order_of_what_they_tell(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        for name, share, seeds, verdict in (
            ("a-little", {"text": 0.0, "": 0.4}, (0,), "rescored"),
            ("b-nothing", 0.0, (0,), "rescored"),
            ("c-half", 0.5, (0,), "rescored"),
            ("d-nothing-at-three", 0.0, (0, 1, 2), "rescored"),
            ("e-said", 0.9, (0, 1, 2), ""),
            ("f-ranked", 0.2, (0, 1, 2, 3, 4), "rescored"),
        ):
            of = entry(entries, name, prevents(share), STANDARD, seeds=seeds)
            if verdict:
                verified(seen, of, verdict)
        own = [each.judged.label for each in board(entries, seen).suites[0].rows if each.own]
        assert own == ["f-ranked", "c-half", "d-nothing-at-three", "a-little", "b-nothing", "e-said"]

    @pytest.mark.slow
    def test_what_auto_chose_against_a_row_is_shown(self, made: tuple[Path, Path], tmp_path: Path) -> None:
        entries, seen = made

        def says(cell: CellSpec) -> Numbers:
            chooses = cell.role == "attack" and cell.attack.startswith("auto")
            return replace(prevents(0.9)(cell), chosen="own names" if chooses else "")

        verified(seen, entry(entries, "begun", says, "standard-v2", seeds=(0,)), "rescored")
        write_site(tmp_path / "site", entries, seen)
        page = (tmp_path / "site/index.html").read_text()
        assert page.count('<span class="detail chosen">own names</span>') == 3, "one for each goal of auto"
        assert (tmp_path / "site/entries/begun.html").read_text().count("chose own names") == 3
        (suite,) = json.loads((tmp_path / "site/board.json").read_text())["suites"]
        attacks = next(each for each in suite["rows"] if each["slug"] == "begun")["attacks"]
        assert {title: each["chosen"] for title, each in attacks.items() if each["chosen"]} == {
            title: ["own names"] for title in attacks if "auto" in title
        }
        (line,) = [
            each
            for each in csv.DictReader(io.StringIO((tmp_path / "site/board.csv").read_text()))
            if each["slug"] == "begun"
        ]
        assert {line[f"{title}: chosen"] for title in attacks} == {"own names", ""}

    def test_a_link_to_an_entry_is_no_second_row(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        entry(entries, "begun", prevents(0.9), STANDARD, seeds=(0,))
        (entries / "alias").symlink_to("begun")
        found = board(entries, seen)
        assert found.broken == (("alias", "alias is a link, and an entry is a folder of its own"),)
        assert row(found, "begun").seeds == "1 of 5 seeds"

    def test_an_anchor_s_entry_is_not_preferred_to_one_that_measured_it_better(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        verified(seen, entry(entries, "fair", prevents(0.5), STANDARD), "rescored")
        drop = "oracle(reject='drop')"
        weak = entry(entries, "weak", prevents(0.0), STANDARD, seeds=(0,), defense=drop)
        found = board(entries, seen)
        assert row(found, drop).judged.label == "fair", "nobody checked the other one, which has one seed"
        assert [(each.label, why) for each, why in found.suites[0].apart] == [
            (drop, f"the row {drop} shows the numbers of the entry fair")
        ]
        whole = entry(entries, "whole", prevents(0.9), STANDARD, defense=drop)
        verified(seen, whole, "re-executed")
        found = board(entries, seen)
        assert row(found, drop).judged.entry.manifest.slug == "whole"
        assert weak.manifest.slug in {each.entry.manifest.slug for each, _ in found.suites[0].apart}

    def test_of_two_entries_of_an_anchor_the_one_verified_first_is_shown(self, made: tuple[Path, Path]) -> None:
        """Whatever date a submitter wrote."""
        entries, seen = made
        fields: dict[str, Any] = {"defense": "blacklist", "suite": STANDARD}
        verified(seen, entry(entries, "ours", prevents(0.1), **fields), "rescored", verified=date(2026, 11, 21))
        backdated = entry(entries, "quick", prevents(0.9), submitted=date(2019, 1, 1), **fields)
        verified(seen, backdated, "rescored", verified=date(2026, 11, 22))
        assert row(board(entries, seen), "blacklist").judged.entry.manifest.slug == "ours"

    def test_a_stranger_s_anchors_replace_none_of_the_maintainers(self, made: tuple[Path, Path]) -> None:
        """However many seeds they have: completions that were only scored again may be invented."""
        entries, seen = made
        fields: dict[str, Any] = {"defense": "static_code", "authors": ("ThiefBench",), "seeds": (0,)}
        verified(seen, entry(entries, "ours", prevents(0.9), STANDARD, **fields), "rescored")
        verified(seen, entry(entries, "theirs", prevents(0.9), STANDARD), "rescored")
        assert row(board(entries, seen), "none").judged.label == "ours"
        verified(seen, entry(entries, "theirs", prevents(0.9), STANDARD), "re-executed")
        assert row(board(entries, seen), "none").judged.label == "theirs"

    def test_what_does_not_learn_is_not_the_best_so_far(self, made: tuple[Path, Path]) -> None:
        """It learns no payload either."""
        entries, seen = made
        verified(seen, entry(entries, "asleep", prevents(1.0, 0.1), STANDARD, seeds=(0, 1)), "rescored")
        verified(seen, entry(entries, "awake", prevents(0.8), STANDARD, seeds=(0, 1)), "rescored")
        found = board(entries, seen)
        assert [name for name in ranks(found) if name in ("asleep", "awake")] == ["awake", "asleep"]
        shown = shown_suite(found.suites[0], 1)
        assert "\u201cAwake\u201d" in shown["answers"][0].text
        assert shown["unclaimed"] == (
            "No defense is ranked yet, as none has all 5 seeds. Best so far: \u201cAwake\u201d, which prevents 0.79 in "
            "its worst case."
        )

    @pytest.mark.slow
    def test_code_that_nobody_ran_is_flagged(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        verified(seen, entry(entries, "mine", prevents(0.9), STANDARD), "rescored")
        verified(seen, entry(entries, "run", prevents(0.9), STANDARD), "re-executed")

        def of(slug: str, *code_seen: bool | None, **fields: Any) -> None:
            deliveries = [
                DeliveryVerdict(
                    seeds=(seed,), sha256="0" * 64, verdict="rescored", verified=date(2026, 11, 21), code_seen=code
                )
                for seed, code in enumerate(code_seen)
            ]
            verified(seen, entry(entries, slug, prevents(0.9), STANDARD), "rescored", deliveries=deliveries, **fields)

        of("judged", True)
        of("before", None, judged=384)  # as verifications of an earlier version
        of("partly", True, False, judged=384)
        ours = entry(entries, "ours", prevents(0.9), STANDARD, defense="length_budget", authors=("ThiefBench",))
        verified(seen, ours, "rescored")
        verified(seen, entry(entries, "theirs", prevents(0.9), STANDARD, defense="likelihood"), "rescored")
        again = Rerun(
            part="", role="attack", attack="text", seed=0, measure="harm_prevented", submitted=(0.9, 0.9),
            found=0.9, equal=True, agrees=True, kind="own",
        )  # fmt: skip
        verified(seen, entry(entries, "some", prevents(0.9), STANDARD), "rescored", reruns=[again])
        elsewhere = again.model_copy(update={"seed": None, "equal": None})
        verified(seen, entry(entries, "fresh", prevents(0.9), STANDARD), "rescored", reruns=[elsewhere])
        found = board(entries, seen)
        flagged = {each.row.defense: [flag.name for flag in each.flags] for each in found.suites[0].rows if each.own}
        unseen = {"mine", "partly", "theirs", "fresh"}
        assert flagged == {name: [NEVER_RUN] if name in unseen else [] for name in flagged}
        assert flagged.keys() == unseen | {"run", "judged", "before", "ours", "some"}

    def test_alone_they_are_listed_and_told_to_be_unranked(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        verified(seen, entry(entries, "two", prevents(0.6), STANDARD, seeds=(0, 1)), "rescored")
        entry(entries, "one", prevents(0.9), STANDARD, seeds=(0,))
        found = board(entries, seen)
        shown = shown_suite(found.suites[0], 1)
        assert not shown["ranks"] and not shown["firsts"]
        best = shown["answers"][0]
        assert "is prevented by \u201cTwo\u201d" in best.text and best.text.endswith("it rests on 2 of 5 seeds.")

    def test_more_seeds_that_prevent_nothing_are_not_called_the_best(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        verified(seen, entry(entries, "nothing", prevents(0.0), STANDARD, seeds=(0, 1, 2)), "rescored")
        verified(seen, entry(entries, "much", prevents(0.8), STANDARD, seeds=(0, 1)), "rescored")
        best = shown_suite(board(entries, seen).suites[0], 1)["answers"][0]
        assert "is prevented by \u201cMuch\u201d" in best.text and best.text.endswith("it rests on 2 of 5 seeds.")

    def test_of_equally_good_rows_without_a_place_none_is_called_the_best_alone(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        for name in ("two", "twin"):
            verified(seen, entry(entries, name, prevents(0.6), STANDARD, seeds=(0, 1)), "rescored")
        entry(entries, "unverified", prevents(0.6), STANDARD, seeds=(0, 1))
        best = shown_suite(board(entries, seen).suites[0], 1)["answers"][0]
        assert "is prevented by \u201cTwin\u201d and 1 other" in best.text, "the third was not checked"
        assert best.text.endswith("None of them is ranked: they rest on 2 of 5 seeds.")

    def test_all_seeds_are_ranked_however_they_were_brought(self, made: tuple[Path, Path], tmp_path: Path) -> None:
        entries, seen = made
        whole = entry(entries, "whole", prevents(0.9), STANDARD)
        later = tuple(
            Delivery(
                seeds=(seed,), submitted=whole.manifest.submitted, versions=whole.manifest.versions,
                machine=whole.manifest.machine,
                archive=Packed(name=f"grown.seed-{seed}.tar", sha256=f"{seed}" * 64, bytes=5),
            )
            for seed in (1, 2, 3, 4)
        )  # fmt: skip
        grown = entry(entries, "grown", prevents(0.9), STANDARD, later=later, schema_version=3)
        first, *others = (
            DeliveryVerdict(
                seeds=each.seeds, sha256=delivery_sha256s(grown, each)[0], verdict=verdict, verified=date(2026, 11, day)
            )
            for each, verdict, day in zip(
                grown.manifest.deliveries, ("re-executed", *["rescored"] * 4), range(20, 25), strict=True
            )
        )
        verified(seen, whole, "rescored")
        verified(seen, grown, "rescored", deliveries=(first, *others))
        found = board(entries, seen)
        assert ranks(found)["grown"] == "1=" == ranks(found)["whole"]
        write_site(tmp_path / "site", entries, seen)
        page = html.unescape((tmp_path / "site/entries/grown.html").read_text())
        assert "Its seeds were brought in 5 deliveries" in page
        assert re.search(r"seed 0, brought on 2026-11-20: <span[^>]*>re-executed</span> on 2026-11-20", page)
        assert "--archive grown.tar --archive grown.seed-1.tar" in page
        (suite,) = json.loads((tmp_path / "site/board.json").read_text())["suites"]
        data = next(each for each in suite["rows"] if each["slug"] == "grown")
        assert [each["trust"] for each in data["deliveries"]] == ["re-executed", *["rescored"] * 4]

    @pytest.mark.parametrize("seeds", [(1, 2), (0, 2), (0, 7), (4, 3, 2, 1)])
    def test_seeds_that_are_not_the_first_ones_have_no_row(
        self, made: tuple[Path, Path], seeds: tuple[int, ...]
    ) -> None:
        entries, seen = made
        entry(entries, "chosen", prevents(0.9), STANDARD, seeds=seeds)
        ((name, why),) = board(entries, seen).broken
        assert name == "chosen" and "the first ones of standard-v1" in why


class TestFirstScreen:
    def test_a_defense_that_prevents_nothing_never_holds_first_place(
        self, made: tuple[Path, Path], tmp_path: Path
    ) -> None:
        entries, seen = made

        def wild(cell: CellSpec) -> Numbers:
            own = prevents(0.3)(cell)
            return replace(own, asr=own.asr + (0.43, -0.5, 0.4, -0.4, 0.0)[cell.seed] * (cell.role == "attack"))

        verified(seen, entry(entries, "wild", wild, STANDARD), "rescored")
        verified(seen, entry(entries, "nothing", prevents(0.0), STANDARD), "rescored")
        assert (ranks(board(entries, seen))["wild"], ranks(board(entries, seen))["nothing"]) == ("2=", "2=")
        write_site(tmp_path / "site", entries, seen)
        assert "First place is empty" in (tmp_path / "site/index.html").read_text()
        verified(seen, entry(entries, "some", prevents(0.2), STANDARD), "rescored")
        found = ranks(board(entries, seen))
        assert [found[name] for name in ("some", "wild", "nothing")] == ["1", "2=", "2="]

    @pytest.mark.slow
    def test_what_nobody_checked_decides_no_answer_of_a_checked_table(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        shares = {"text": 0.2, "": 0.9}
        verified(seen, entry(entries, "good", prevents(shares), STANDARD), "rescored")
        before = shown_suite(board(entries, seen).suites[0], 1)
        wild = lambda cell: replace(prevents(0.9)(cell), asr=9e4 if "dos" in cell.attack else 0.0)  # noqa: E731
        entry(entries, "wild", wild, STANDARD)
        after = shown_suite(board(entries, seen).suites[0], 2)
        assert after["answers"][1].text == before["answers"][1].text and "text" in after["answers"][1].text
        verified(seen, entry(entries, "wild", wild, STANDARD), "rescored")
        found = board(entries, seen).suites[0]
        assert "text" in found.table.comparisons[worst_first(found)[0]].title, "no row counts with less than -1"

    def test_a_ranked_row_that_nobody_checked_is_no_answer_without_a_word_of_it(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        mine = entry(entries, "mine", prevents(0.9), STANDARD)
        said = "it held against every attack of the suite at 5 of 5 seeds, so at 55% or more of all seeds (95 %)"
        best = shown_suite(board(entries, seen).suites[0], 1)["answers"][0]
        assert f"{said}, and nobody checked it" in best.text
        verified(seen, mine, "rescored")
        best = shown_suite(board(entries, seen).suites[0], 1)["answers"][0]
        assert said in best.text and "nobody" not in best.text

    def test_three_answers_stand_before_the_table(self, made: tuple[Path, Path], tmp_path: Path) -> None:
        entries, seen = made
        shares = {"text": 0.95, "dos": 0.2, "": 0.9}
        verified(seen, entry(entries, "good", prevents(shares), STANDARD), "re-executed")
        verified(seen, entry(entries, "poor", prevents({"dos": 0.1, "": 0.97}), STANDARD), "rescored")
        write_site(tmp_path / "site", entries, seen)
        text = html.unescape((tmp_path / "site/index.html").read_text())
        assert text.index("Which attack breaks the most defenses") < text.index('id="filters"') < text.index("<table")
        shown = shown_suite(board(entries, seen).suites[0], 1)
        best, breaking, cost = shown["answers"]
        assert (best.value, breaking.value) == ("0.20", "2 of 2")
        assert breaking.text == "defenses let varied dos do more than 0.5 of its harm."
        assert "it rejects at most 1.0\xa0% of honest work" in cost.text
        columns = [column for column in shown["columns"] if column["attack"]]
        assert "dos" in columns[0]["attack"], "the attack that breaks most comes first"
        for each in shown["rows"][:2]:
            prevented = [float(value) for value in each["sorts"][shown["fixed"] :]]
            assert prevented[0] == min(prevented), "and what the rows are sorted by goes along"

    @pytest.mark.parametrize(
        ("utility", "value", "text"),
        [
            (0.8, "0.80", "of the clean gain is kept with \u201cGood\u201d"),
            (1.4, "all", "of the clean gain is kept with \u201cGood\u201d;"),
        ],
    )
    def test_a_gain_above_that_without_an_attack_is_no_number_of_gains(
        self, made: tuple[Path, Path], utility: float, value: str, text: str
    ) -> None:
        entries, seen = made
        verified(seen, entry(entries, "good", prevents(0.95, utility), STANDARD), "re-executed")
        _, _, cost = shown_suite(board(entries, seen).suites[0], 1)["answers"]
        assert (cost.value, cost.text[: len(text)]) == (value, text)

    def test_where_the_control_hardly_gains_there_is_no_share_of_it(self, made: tuple[Path, Path]) -> None:
        entries, seen = made

        def others(cell: CellSpec) -> Numbers:
            return replace(shared(cell), reward=0.3) if cell.role == "control" else shared(cell)

        verified(seen, entry(entries, "good", prevents(0.95), STANDARD, others=others), "rescored")
        _, _, cost = shown_suite(board(entries, seen).suites[0], 1)["answers"]
        why = "seeds 0-4: the control gains less than 0.1 in clean reward"
        assert (cost.value, cost.text.split(";")[0]) == ("", f"\u201cGood\u201d has no utility: {why}")

    def test_where_no_attack_breaks_anything_the_answer_is_no_rows_name(self, made: tuple[Path, Path]) -> None:
        entries, seen = made
        verified(seen, entry(entries, "good", prevents(0.95), STANDARD), "re-executed")
        _, breaking, _ = shown_suite(board(entries, seen).suites[0], 1)["answers"]
        assert breaking.value == "none of them"
        assert "none" in {row.row.defense for row in board(entries, seen).suites[0].rows}
        assert "Every defense here, anchors aside, prevents at least 0.5" in breaking.text

    @pytest.mark.slow
    def test_round_times_of_another_load_are_no_cost(self, made: tuple[Path, Path]) -> None:
        entries, seen = made

        def timed(update: float) -> Callable[[CellSpec], Numbers]:
            def says(cell: CellSpec) -> Numbers:
                under_dos = "dos" in cell.attack and cell.role == "attack"
                seconds = (("update", update), ("inspect", 5.0)) if under_dos else (("update", 20.0), ("inspect", 10.0))
                return replace(prevents(0.9)(cell), seconds=seconds)

            return says

        def base(cell: CellSpec) -> Numbers:
            return replace(shared(cell), seconds=(("update", 20.0),))

        for slug, update, ratio in (("idle", 20.0, 1.5), ("quicker", 10.0, None), ("busier", 60.0, None)):
            alone = entries / slug
            verified(seen, entry(alone, slug, timed(update), STANDARD, others=base), "rescored")
            found = board(alone, seen)
            cost = row(found, slug).row.cost
            _, _, said = shown_suite(found.suites[0], 1)["answers"]
            if ratio:
                assert cost is not None and cost.slowdown is not None
                assert cost.slowdown.mean == pytest.approx(ratio)
                assert "a round took \u00d7\xa01.50 as long" in said.text
            else:
                assert cost is None, "under one attack, rounds differ by more than inspecting took"
                assert "as long" not in said.text
                assert "ms for each completion, by its submitter's clock" in said.text
