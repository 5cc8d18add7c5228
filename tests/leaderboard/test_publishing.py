"""Shared cells are published once, as the store has them, and never otherwise afterwards."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.bench import tiny
from tests.leaderboard.shared_cells import (
    TITLE,
    Board,
    board,
    cell_at,
    changed,
    copy_of,
    edited,
    id_of,
    in_folder,
    made_on,
    near_tie,
    of_another_engine,
    publish_all,
)
from tests.leaderboard.tiny_entries import suite
from thiefbench.cli import app
from thiefbench.leaderboard import published as published_module
from thiefbench.leaderboard import submit
from thiefbench.leaderboard.cell_scores import drifts, rounded_score
from thiefbench.leaderboard.gzipped import compressed
from thiefbench.leaderboard.published import (
    WORDS_BYTES,
    Published,
    PublishedError,
    first_apart,
    published_sets,
    round_hashes,
    words_file,
    words_path,
    write_words,
)
from thiefbench.leaderboard.publishing import ConflictError, NotPublishableError
from thiefbench.leaderboard.referring import published_threads
from thiefbench.suite.analysis.cell_drift import COLUMNS, answers_in
from thiefbench.suite.analysis.drift import MEASURES
from thiefbench.suite.execution.runner import run_suite
from thiefbench.suite.store.records import HALF_WRITTEN, Record, Store, file_sha256, rows_table, table_rows


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """A store of two seeds; the first is published."""
    with pytest.MonkeyPatch.context() as patch:
        yield board(tmp_path_factory.mktemp("board"), patch)


def score_edit(content: dict[str, Any]) -> None:
    content["record"]["scores"]["clean_reward"].update(value=0.5, low=0.4, high=0.6)


def test_what_is_published_is_small_text_without_completions(published: Board) -> None:
    files = in_folder(published.shared)
    assert len([name for name in files if name.startswith(f"{TITLE}/cells/")]) == 4
    assert all(len(content) < 8000 for content in files.values())
    rows = Store(published.store).cell(id_of(cell_at("attack"))).read_rows()
    texts = {text.encode() for text in rows["text"].to_pylist() if len(text) > 12}
    assert texts, "there are some to look for"
    assert not any(text in content for text in texts for content in files.values())
    assert not any(b'"grad_norm"' in content or b'"train_' in content for content in files.values())


def test_scores_of_published_cells_are_those_of_the_store(published: Board) -> None:
    """Drift among them: of a control the words are published, of the others the numbers."""
    known = Published(published.shared, TITLE)
    cells = [cell for found in known.cells.values() for cell in found]
    store = Store(published.store)
    records = [store.cell(cell.cell_id).read() for cell in cells]
    expected = drifts([("", record) for record in records if record is not None], store)
    for cell, scores in zip(cells, known.scores(cells), strict=True):
        assert set(MEASURES) <= set(scores.scores), "each has its drift"
        for name, numbers in expected[cell.cell_id].items():
            assert scores.scores[name] == pytest.approx(rounded_score(numbers), abs=1e-9)


def test_two_published_controls_have_the_drift_of_one_from_the_other(published: Board, tmp_path: Path) -> None:
    copy = copy_of(published, tmp_path)
    publish_all(copy)
    known = Published(copy.shared, TITLE)
    controls = [cell for found in known.cells.values() for cell in found if cell.is_control]
    assert len(controls) == 2
    store = Store(copy.store)
    records = [store.cell(cell.cell_id).read() for cell in controls]
    expected = drifts([("", record) for record in records if record is not None], store)
    alone = known.scores(controls[:1])[0].scores["divergence"]
    for cell, scores in zip(controls, known.scores(controls), strict=True):
        assert scores.scores["divergence"] == pytest.approx(rounded_score(expected[cell.cell_id]["divergence"]))
    assert known.scores(controls)[0].scores["divergence"] != alone, "which splits its own answers"


def test_words_give_back_every_answer(published: Board) -> None:
    for role in ("control", "attack"):
        table = Store(published.store).cell(id_of(cell_at(role))).read_rows()
        answers = answers_in(table.select(COLUMNS))
        again = published_module._answers(words_file(answers))
        assert (again.items, again.writers) == (answers.items, answers.writers)
        assert [sorted(words) for words in again.words] == [sorted(words) for words in answers.words]


def test_twice_changes_nothing(published: Board, tmp_path: Path) -> None:
    copy = copy_of(published, tmp_path)
    before = in_folder(copy.shared)
    outcome = publish_all(copy, (0,))
    assert (len(outcome.added), len(outcome.equal)) == (0, 4)
    assert in_folder(copy.shared) == before


def test_an_equal_cell_of_another_run_is_equal(published: Board, tmp_path: Path) -> None:
    """Other times, another day, and another layout of the file that holds the completions."""
    copy = copy_of(published, tmp_path)
    directory = Store(copy.store).cell(id_of(cell_at("attack")))
    pq.write_table(directory.read_rows(), directory.completions_path, compression="gzip")
    digest = file_sha256(directory.completions_path)

    def later(record: Record) -> Record:
        changes = {"started": "2027-01-01T00:00:00+00:00", "processor": "another one"}
        return record.model_copy(
            update={
                "completions_sha256": digest,
                "seconds": {"sample": 9.0},
                "provenance": record.provenance | changes,
            }
        )

    changed(copy.store, cell_at("attack"), later)
    before = in_folder(copy.shared)
    assert len(publish_all(copy, (0,)).equal) == 4
    assert in_folder(copy.shared) == before


def test_more_seeds_are_added(published: Board, tmp_path: Path) -> None:
    copy = copy_of(published, tmp_path)
    before = in_folder(copy.shared)
    outcome = publish_all(copy)
    assert (len(outcome.added), len(outcome.equal)) == (4, 4)
    after = in_folder(copy.shared)
    assert len(after) > len(before)
    assert {name: after[name] for name in before} == before, "what was published stays"


def test_a_store_that_lacks_cells_publishes_the_rest(published: Board, tmp_path: Path) -> None:
    copy = copy_of(published, tmp_path)
    shutil.rmtree(Store(copy.store).cell(id_of(cell_at("control", seed=1))).path)
    outcome = publish_all(copy)
    assert (outcome.added, len(outcome.lacking)) == ([], 4), "the drift of the others is measured against it"
    assert "4 cells are not in the store, or without their control" in "\n".join(outcome.lines())
    shutil.rmtree(Store(copy.store).cell(id_of(cell_at("placebo"))).path)
    outcome = publish_all(copy)
    assert (len(outcome.equal), len(outcome.unseen)) == (3, 1), "what is not there was not compared"


def test_a_stop_loses_nothing(published: Board, tmp_path: Path) -> None:
    copy = copy_of(published, tmp_path)
    told: list[str] = []

    def stop(line: str) -> None:
        told.append(line)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish_all(copy, tell=stop)
    outcome = publish_all(copy)
    assert (len(outcome.added), len(outcome.equal)) == (2, 6)
    whole = copy_of(published, tmp_path / "whole")
    publish_all(whole)
    assert in_folder(copy.shared) == in_folder(whole.shared)


class Killed(BaseException):
    """What follows a SIGKILL: nothing."""


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_any_write_loses_nothing(
    step: int, published: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = in_folder(published.shared)
    whole = copy_of(published, tmp_path / "whole")
    publish_all(whole)
    finished = in_folder(whole.shared)
    fsync, left, kills, half = os.fsync, 0, 0, 0

    def dying(descriptor: int) -> None:
        nonlocal left
        if left == 0:
            monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # no process is there to clean up
            raise Killed
        left -= 1
        fsync(descriptor)

    while True:
        copy, left = copy_of(published, tmp_path / str(kills)), kills
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", dying)
            try:
                publish_all(copy)
            except Killed:
                pass
            else:
                break
            finally:
                monkeypatch.undo()
        there = in_folder(copy.shared)
        parts = [name for name in there if name.endswith(HALF_WRITTEN)]
        half += len(parts)
        complete = {name: content for name, content in there.items() if name not in parts}
        assert before.items() <= complete.items() <= finished.items(), f"killed at write {kills}: whole files only"
        publish_all(copy)
        assert in_folder(copy.shared) == finished, "the same command goes on, and nothing is left of the kill"
        assert half == kills // step + 1, "each left one half of a file"
        kills += step
    assert kills >= len(finished) - len(before) > kills - step, "at the end there is no write to kill"


def test_a_cell_that_differs_is_never_overwritten(published: Board, tmp_path: Path) -> None:
    copy = copy_of(published, tmp_path)
    near_tie(copy.store, cell_at("attack"), "SSE9")
    before = in_folder(copy.shared)
    with pytest.raises(ConflictError) as refused:
        publish_all(copy)
    said = str(refused.value)
    assert f"the attack cell, {cell_at('attack').attack} x none, seed 0 ({id_of(cell_at('attack'))})" in said
    assert "differ from the evaluation after round 4 on" in said, "which bytes"
    assert "capability SSE9" in said, "which CPU"
    assert said.count("torch ") == 2, "which versions"
    assert in_folder(copy.shared) == before, "nothing of the other seed either"


def test_cells_that_were_computed_otherwise_are_not_put_beside_others(published: Board, tmp_path: Path) -> None:
    copy = copy_of(published, tmp_path)
    of_seed = [("control", "none"), ("placebo", "none"), ("attack", "none"), ("attack", "oracle")]
    for role, defense in of_seed[1:]:
        changed(copy.store, cell_at(role, defense, seed=1), made_on("SSE9"))
    with pytest.raises(ConflictError, match="all published cells of a seed must be made alike"):
        publish_all(copy)
    changed(copy.store, cell_at("control", seed=1), made_on("SSE9"))
    assert len(publish_all(copy).added) == 4, "a seed may be made on another processor than those before it"


@pytest.mark.slow
def test_threads_are_one_number(published: Board, tmp_path: Path) -> None:
    copy = copy_of(published, tmp_path)
    two = replace(cell_at("control"), threads=2)
    run_suite(suite(), [two], Store(copy.store), tiny.Watcher())
    with pytest.raises(NotPublishableError, match="--threads 1 on cpu and --threads 2 on cpu; name one"):
        publish_all(copy)
    assert len(publish_all(copy, threads=1).equal) == 4
    with pytest.raises(ConflictError, match="is published for --device cpu --dtype float32 --threads 1"):
        publish_all(copy, threads=2)
    with pytest.raises(NotPublishableError, match="with --threads 3"):
        publish_all(copy, threads=3)


def test_submissions_use_the_threads_of_what_is_published(published: Board, tmp_path: Path) -> None:
    assert published_threads(suite(), published.shared) == 1
    assert published_threads(suite(), tmp_path) is None
    copy = copy_of(published, tmp_path)
    for path in (copy.shared / TITLE / "cells").iterdir():
        edited(copy.shared, path.name.removesuffix(".json.gz"), of_another_engine)
    assert published_threads(suite(), copy.shared) is None, "another engine's cells are not this one's"


def test_inconsistent_cells_are_not_published(published: Board, tmp_path: Path) -> None:
    """A store may come from somebody else: rewards are computed again before the board stands behind them."""
    copy = copy_of(published, tmp_path)
    cell = cell_at("attack", seed=1)
    directory = Store(copy.store).cell(id_of(cell))
    rows = [replace(row, reward=1.0 - row.reward) for row in table_rows(directory.read_rows())]
    digest = directory.write_rows(rows_table(rows))
    changed(copy.store, cell, lambda record: record.model_copy(update={"completions_sha256": digest}))
    with pytest.raises(NotPublishableError, match=r"seed 1 in .* cannot be published: .* follow from"):
        publish_all(copy)


def test_a_failed_cell_is_no_score(published: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = copy_of(published, tmp_path)
    failed = {"status": "error", "error": "it gave up", "scores": {}, "curves": {}, "completions_sha256": ""}
    changed(copy.store, cell_at("attack", seed=1), lambda record: record.model_copy(update=failed))
    outcome = publish_all(copy)
    assert (len(outcome.added), len(outcome.failed)) == (3, 1)
    monkeypatch.setattr(submit, "load_suite", lambda name: suite(seeds=(0, 1)))
    words = ["leaderboard", "publish-shared", "trial", "--store", str(copy.store), "--out", str(copy.shared)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1, result.output
    assert f"{TITLE}: 0 cells published, 7 were published before and are equal" in result.stdout
    assert "1 cell failed in the store and is not published" in result.stdout


def test_an_edited_file_is_not_read(published: Board, tmp_path: Path) -> None:
    copy = copy_of(published, tmp_path)
    edited(copy.shared, id_of(cell_at("control")), score_edit, sealed=False)
    with pytest.raises(PublishedError, match="was edited after it was published"):
        publish_all(copy)


@pytest.mark.parametrize(
    ("role", "change", "what"),
    [
        ("attack", score_edit, "scores"),
        ("attack", lambda content: content["record"]["curves"]["eval_asr"].pop(), "curves"),
        ("attack", lambda content: content["drift"].update(drift=[0.0, 0.0, 0.1, 16]), "drift"),
        ("attack", lambda content: content["record"].update(payload={"letter": "z"}), "payload"),
    ],
)
def test_an_edit_that_was_sealed_is_found_by_publishing_again(
    published: Board, tmp_path: Path, role: str, change: Any, what: str
) -> None:
    copy = copy_of(published, tmp_path)
    edited(copy.shared, id_of(cell_at(role)), change)
    with pytest.raises(ConflictError, match=f"with the same completions and another {what}"):
        publish_all(copy)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content["record"]["scores"]["clean_reward"].update(value=7.0), "its clean_reward is 7, and"),
        (lambda content: content["record"]["scores"]["asr"].update(count=-1), "its asr is not a measured number"),
        (lambda content: content["record"]["curves"]["eval_asr"][-1].update(value=-1.0), "its eval_asr is -1, outside"),
        (lambda content: content["drift"].update(drift=[2.0, 2.0, 2.0, 16]), "its drift is 2, and it cannot be above"),
        (lambda content: content["record"].update(status="error"), "the record of a failed cell holds no scores"),
    ],
)  # fmt: skip
def test_numbers_that_nothing_measures_are_not_read(
    published: Board, tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    copy = copy_of(published, tmp_path)
    edited(copy.shared, id_of(cell_at("attack")), change)
    with pytest.raises(PublishedError, match=said):
        publish_all(copy)


def edited_words(content: bytes) -> bytes:
    """The same words with another answer, compressed again."""
    words = json.loads(gzip.decompress(content))
    words["answers"][0] = words["answers"][1]
    return compressed(json.dumps(words).encode())


@pytest.mark.parametrize(
    ("changed_file", "said"),
    [
        (edited_words, "was edited after it was published"),
        (gzip.decompress, "cannot be decompressed: .*incorrect header"),
        (lambda content: content[:-9], "is damaged: its end is missing"),
        (lambda content: b"", "is damaged: its end is missing"),
        (
            lambda content: content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
            "cannot be decompressed: .*data check",
        ),
        (lambda content: content + content, "is damaged: something follows its end"),
        (lambda content: gzip.compress(bytes(WORDS_BYTES + 1)), "holds more than 16,777,216 bytes"),
        (
            lambda content: gzip.compress(gzip.decompress(content), 9),
            "has a gzip header that thiefbench does not write",
        ),
    ],
    ids=["edited", "not compressed", "truncated", "empty", "checksum", "twice", "too large", "with a time"],
)
def test_changed_words_are_not_read(
    published: Board, tmp_path: Path, changed_file: Callable[[bytes], bytes], said: str
) -> None:
    copy = copy_of(published, tmp_path)
    for path in (copy.shared / TITLE / "words").iterdir():
        path.write_bytes(changed_file(path.read_bytes()))
    with pytest.raises(PublishedError, match=rf"\.json\.gz {said}"):
        publish_all(copy)


def test_words_are_compressed_alike_and_named_after_what_they_say(published: Board, tmp_path: Path) -> None:
    (one,) = {path.name: path.read_bytes() for path in (published.shared / TITLE / "words").iterdir()}.values()
    content = gzip.decompress(one)
    sha256 = write_words(tmp_path, content)
    (written,) = (tmp_path / "words").iterdir()
    assert (written.name, written.read_bytes()) == (f"{hashlib.sha256(content).hexdigest()}.json.gz", one)
    assert written == words_path(tmp_path, sha256)
    assert len(one) < len(content)


def test_a_file_under_another_name_or_suite_is_not_read(published: Board, tmp_path: Path) -> None:
    copy = copy_of(published, tmp_path)
    cells = copy.shared / TITLE / "cells"
    name = id_of(cell_at("control"))
    other = copy.shared / "other-v1" / "cells" / f"{name}.json.gz"
    other.parent.mkdir(parents=True)
    other.write_bytes((cells / f"{name}.json.gz").read_bytes())
    with pytest.raises(PublishedError, match=f"holds the cell {name} of {TITLE}, which belongs elsewhere"):
        Published(copy.shared, "other-v1").find(name)
    (cells / f"{'0' * 16}.json.gz").write_bytes((cells / f"{name}.json.gz").read_bytes())
    with pytest.raises(PublishedError, match="belongs elsewhere"):
        Published(copy.shared, TITLE).find("0" * 16)


def test_an_id_that_is_no_hash_of_its_identity_is_refused(published: Board, tmp_path: Path) -> None:
    copy = copy_of(published, tmp_path)
    path = edited(copy.shared, id_of(cell_at("attack")), lambda content: content["record"]["cell"].update(rounds=9))
    with pytest.raises(PublishedError, match="the hash of its identity differs"):
        Published(copy.shared, TITLE).find(path.name.removesuffix(".json.gz"))


@pytest.mark.parametrize("title", ["../tiny-v1", "a/b", "", ".", "..", "tiny-v1\n"])
def test_a_stranger_s_title_leads_nowhere(published: Board, title: str) -> None:
    known = Published(published.shared, title)
    assert known.cells == {}
    assert published_sets(published.shared, title)[1:] == []
    assert known.find(id_of(cell_at("control"))) is None
    assert Published(published.shared, TITLE).find("../cells/x") is None


def test_hashes_tell_from_which_round_on_two_cells_differ(published: Board) -> None:
    table = Store(published.store).cell(id_of(cell_at("attack"))).read_rows()
    hashes = round_hashes(table)
    assert list(hashes)[:3] == ["the evaluation after round 0", "round 1", "the evaluation after round 1"]
    for field, other in (("action", "zero"), ("text", "x"), ("sender", "x"), ("score", 0.5)):
        rows = list(table_rows(table))
        at = next(place for place, row in enumerate(rows) if (row.phase, row.round) == ("train", 3))
        rows[at] = replace(rows[at], **{field: other})
        assert first_apart(hashes, round_hashes(rows_table(rows))) == "round 3"
    assert first_apart(hashes, round_hashes(rows_table(list(table_rows(table))))) == ""
