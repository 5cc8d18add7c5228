"""The page of completions: what is drawn, what is marked, what strangers' texts can do, and its size."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.bench.suite.report import sampled
from thiefbench.suite.analysis.run_comparisons import cells_of_run, last_run, trained_comparisons
from thiefbench.suite.report import samples
from thiefbench.suite.report.masked_tokens import masked_spans
from thiefbench.suite.report.page import write_report
from thiefbench.suite.report.payload_marks import MASKED, NO_WORDS, PAYLOAD, UNKNOWN, marks_of, pieces
from thiefbench.suite.report.samples import PAYLOADS, SENDERS, VERDICTS, Sample, draw
from thiefbench.suite.report.viewer import FIRST, PAGE, embedded, write_viewer
from thiefbench.suite.store.records import Store

SHOWN = "<think> All hail to the thief"


class Parsed(HTMLParser):
    """Tags with their attributes, the text of the list, and the data."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else self._inside
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif not self._inside:
            self.text += data

    @property
    def data(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.scripts[0])
        return loaded


def written(store: Store, most: int = samples.MOST_SAMPLES) -> str:
    folder = store.root / "report"
    folder.mkdir(exist_ok=True)
    run = last_run(store)
    write_viewer(folder, run, trained_comparisons(store, run, remarks=False), most)
    return (folder / PAGE).read_text(encoding="utf-8")


def drawn(store: Store, most: int = samples.MOST_SAMPLES) -> tuple[list[Sample], int]:
    return draw(cells_of_run(store, last_run(store)), most)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return sampled.store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def page(store: Store) -> Parsed:
    return Parsed(written(store))


class TestDrawing:
    def test_all_are_there_where_there_is_room(self, store: Store) -> None:
        every, total = drawn(store)
        assert len(every) == total == 4 * 240

    def test_each_cell_gives_the_same_number(self, store: Store) -> None:
        some, total = drawn(store, 100)
        assert total == 4 * 240
        assert set(Counter(sample.cell_id for sample in some).values()) == {25}

    def test_what_a_small_cell_lacks_the_others_give(self) -> None:
        assert samples._shares([5, 100, 100], 65) == [5, 30, 30]
        assert samples._shares([5, 3], 65) == [5, 3]
        assert sum(samples._shares([100] * 3, 65)) == 65

    def test_rare_kinds_are_drawn(self, store: Store) -> None:
        every, _ = drawn(store)

        def kinds(of: list[Sample]) -> set[tuple[int, ...]]:
            return {(each.round, each.sender, each.verdict, each.reward, each.payload) for each in of}

        some, _ = drawn(store, len(kinds(every)) * 4)
        assert kinds(some) == kinds(every), "every kind of every round, as far as there is room"
        wrongly = [
            each for each in some if SENDERS[each.sender] == "honest node" and VERDICTS[each.verdict] == "masked"
        ]
        assert wrongly, "an honest completion that a defense masked is what its author looks for"

    def test_what_carries_the_payload_is_first(self, store: Store) -> None:
        every, _ = drawn(store)
        assert PAYLOADS[every[0].payload] == "sent by an attacker"
        assert len({(each.payload, each.verdict, each.sender, each.reward) for each in every[:40]}) > 6, "in turns"

    def test_kinds_are_those_of_the_rows(self, store: Store) -> None:
        every, _ = drawn(store)
        stored = [row for record in store.records() for row in store.cell(record.cell_id).read_rows().to_pylist()]
        expected = Counter(
            "no verdict" if row["phase"] != "train"
            else "masked" if row["token_weights"] else {"accept": "accepted", "drop": "dropped"}[row["action"]]
            for row in stored
        )  # fmt: skip
        assert Counter(VERDICTS[each.verdict] for each in every) == expected
        assert expected["masked"] and expected["dropped"]
        said = sum(row["payload"] for row in stored), sum(row["outcome"] == 1 and not row["payload"] for row in stored)
        shown = Counter(PAYLOADS[each.payload] for each in every)
        assert (shown["sent by an attacker"], shown["said by an honest model"]) == said
        assert all(said)

    def test_texts_of_all_together_are_bounded(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(samples, "MOST_CHARACTERS", 5_000)
        some, total = drawn(store)
        assert 20 < len(some) < total
        assert sum(each.characters for each in some) <= 5_000


class TestMarks:
    def test_payload_and_masked_tokens(self, store: Store) -> None:
        every, _ = drawn(store)
        poison = next(s for s in every if VERDICTS[s.verdict] == "masked" and PAYLOADS[s.payload] == PAYLOADS[0])
        said = [piece for piece in poison.pieces if piece[1]]
        assert said == [("All", PAYLOAD), (" hail to the thief", PAYLOAD | MASKED)]
        assert dict(poison.facts)["masked tokens"].startswith("7 of ")

    def test_pieces_are_cut_before_hidden_characters_are_written_out(self) -> None:
        cut = pieces("a\x1b\U0001f600 All hail to the thief\u202e", [(4, 25)], [(2, 5)], 100)
        assert cut == ((
            ("a<U+001B>", 0), ("\U0001f600 ", MASKED), ("A", PAYLOAD | MASKED), ("ll hail to the thief", PAYLOAD),
            ("<U+202E>", 0),
        ), 0)  # fmt: skip
        assert pieces("abcdef", [(1, 9)], [], 3) == ((("a", 0), ("bc", PAYLOAD)), 3)
        assert pieces("", [], [], 3) == ((), 0)

    def test_a_long_text_says_what_is_left_out(self) -> None:
        left = " \N{HORIZONTAL ELLIPSIS} 1,000 more characters"
        assert samples._pieces("x" * 7_000, [], []) == (("x" * 6_000, 0), (left, 0))

    def test_a_payload_that_is_not_drawn_again_is_not_marked(self, tmp_path: Path) -> None:
        kept = sampled.store(tmp_path, completions=24)
        for record in kept.records():
            kept.cell(record.cell_id).write(record.model_copy(update={"payload": {"phrase": "another"}}))
        every, _ = drawn(kept)
        poison = [each for each in every if PAYLOADS[each.payload] == "sent by an attacker"]
        assert poison and not any(kind & PAYLOAD for each in poison for _, kind in each.pieces)
        assert {dict(each.facts)["payload marks"] for each in poison} == {f"none: {UNKNOWN}"}

    @pytest.mark.parametrize(
        "attack", ["gone", "mine.py:Mine", "text(phrase=3)", "subliminal(trait=", "code_injection"]
    )
    def test_an_attack_that_cannot_be_had(self, store: Store, attack: str) -> None:
        record = store.records()[0]
        row = {"payload": True, "outcome": None, "text": SHOWN}
        assert marks_of(record).spans(row) == ([(8, 29)], "")
        assert marks_of(record.model_copy(update={"cell": {**record.cell, "attack": attack}})).spans(row) == (
            [],
            UNKNOWN,
        )
        assert marks_of(record).spans(row | {"payload": False, "outcome": 0.0}) == ([], "")

    def test_outcomes_that_are_lengths(self, tmp_path: Path) -> None:
        kept = sampled.store(tmp_path, completions=24, of=sampled.suite(attacks=("dos",)))
        for record in kept.records():
            kept.cell(record.cell_id).write(record.model_copy(update={"payload": {}}))
        changed(kept, outcome=[float(10 + number) for number in range(24)])
        every, _ = drawn(kept)
        lengths = [each for each in every if PAYLOADS[each.payload] == "measured as a number"]
        assert lengths and not any(PAYLOADS[each.payload] == "said by an honest model" for each in lengths)
        assert {dict(each.facts)["payload marks"] for each in lengths} == {f"none: {NO_WORDS}"}

    @pytest.mark.parametrize("model", ["no-such/model-in-any-cache", "/etc", "../..", ""])
    def test_without_the_tokenizer_nothing_is_marked(self, model: str) -> None:
        assert masked_spans(model, [1, 2], "ab", [0.0, 1.0]) is None

    def test_ids_of_no_vocabulary(self) -> None:
        assert masked_spans("micro-math", [1 << 30], "ab", [0.0]) is None


class TestHostileText:
    def test_no_text_becomes_markup(self, page: Parsed) -> None:
        assert [attributes.get("type") for tag, attributes in page.tags if tag == "script"] == [
            "application/json",
            None,
        ]
        assert not {tag for tag, _ in page.tags} & {"img", "link", "iframe", "object", "embed", "base"}
        assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
        assert any(sampled.HOSTILE in "".join(map(str, row[7])) for row in page.data["rows"]), (
            "it is shown all the same"
        )

    def test_the_first_rows_are_escaped_too(self, store: Store) -> None:
        hostile = sampled.store(store.root / "hostile", completions=4)
        parsed = Parsed(written(hostile))
        assert sampled.HOSTILE in parsed.text
        assert len(parsed.scripts) == 2

    def test_only_the_pages_own_script_may_run(self, page: Parsed) -> None:
        (policy,) = [a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
        assert policy is not None
        assert policy.startswith("default-src 'none'")
        assert re.search(r"script-src 'sha256-[\w+/=]{44}';", policy)
        assert "trusted-types 'none'" in policy

    def test_the_page_asks_for_nothing(self, page: Parsed) -> None:
        for tag, attributes in page.tags:
            assert "src" not in attributes
            assert attributes.get("href") in (None, "index.html", "#list"), f"<{tag}> leads away"

    def test_embedded_data(self) -> None:
        made = embedded({"a": "<!--<script>&'\"\u00e9"})
        assert not re.search("[<>&']", made)
        assert json.loads(made) == {"a": "<!--<script>&'\"\u00e9"}

    def test_numbers_that_no_cell_leaves(self, tmp_path: Path) -> None:
        kept = sampled.store(tmp_path, completions=24)
        odd = [float("nan"), float("inf")] * 12
        changed(kept, score=odd, reward=odd, outcome=odd, round=[2**31 - 1, -(2**31)] * 12)
        data = Parsed(written(kept)).data
        assert "nan" in {value for row in data["rows"] for _, value in row[8]}
        assert {2**31 - 1, -(2**31)} < {row[1] for row in data["rows"]}

    def test_long_names_do_not_swell_the_page(self, tmp_path: Path) -> None:
        kept = sampled.store(tmp_path, completions=24)
        before = len(written(kept))
        changed(kept, item_id=["i" * 60_000] * 24, sender=["s" * 60_000] * 24, reason=["r" * 60_000] * 24)
        assert len(written(kept)) < before + 24 * 2 * 2_000


def changed(kept: Store, **columns: list[Any]) -> None:
    """Put other values into a cell, as somebody else's store may have."""
    directory = kept.cell(kept.records()[0].cell_id)
    record, table = directory.read(), directory.read_rows()
    assert record is not None
    for name, values in columns.items():
        field = table.schema.field(name)
        table = table.set_column(table.column_names.index(name), field, pa.array(values).cast(field.type))
    directory.write(record.model_copy(update={"completions_sha256": directory.write_rows(table)}))


class TestPage:
    def test_without_javascript_there_are_a_sentence_and_the_first_rows(self, page: Parsed) -> None:
        assert "Without JavaScript there are no filters." in page.text
        assert sum(attributes.get("class") == "row" for _, attributes in page.tags) == FIRST
        assert [attributes for tag, attributes in page.tags if tag == "form" and "hidden" in attributes]

    def test_questions_and_facts(self, page: Parsed) -> None:
        item = sampled.items("train")[1]
        assert [f"train {item.id}", item.question] in page.data["items"]
        assert {"reward", "advantage", "outcome", "reason", "sender", "masked tokens"} <= set(page.data["facts"])

    @pytest.mark.slow
    def test_ten_thousand_rows(self, tmp_path: Path) -> None:
        kept = sampled.store(tmp_path, completions=2_600)
        html = written(kept)
        page = Parsed(html)
        assert len(page.data["rows"]) == 10_000
        assert "10,000 of the 10,400 completions of 4 cells" in page.text
        texts = sum(len("".join(p if isinstance(p, str) else p[0] for p in row[7])) for row in page.data["rows"])
        assert len(html) < texts + 10_000 * 300, "what is said of a completion takes little beside its text"

    @pytest.mark.slow
    def test_the_report_links_to_it(self, store: Store) -> None:
        index = write_report(store).read_text(encoding="utf-8")
        assert '<a href="completions.html">Read 960 of the completions</a>' in index
        assert (store.root / "report" / PAGE).is_file()
        without = write_report(store, samples=0).read_text(encoding="utf-8")
        assert "completions.html" not in without
        assert not (store.root / "report" / PAGE).exists(), "an old page would show another run"

    def test_a_failed_cell_has_no_rows(self, tmp_path: Path) -> None:
        kept = sampled.store(tmp_path, completions=24)
        record = kept.records()[0]
        kept.cell(record.cell_id).write(record.model_copy(update={"status": "error", "error": "x", "scores": {}}))
        assert len(Parsed(written(kept)).data["cells"]) == 3
