"""What a judge that rewards has said, taken over by cells whose pools are the same, and by no others."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.bench.suite.test_judged_cells import judged
from tests.bench.tiny import run, same
from thiefbench.attacks.reward_judges import JudgeForm
from thiefbench.engine.reward_judge import Scored
from thiefbench.judges import ModelJudge
from thiefbench.suite.execution.sharing.stored_rewards import REWARDS, StoredRewards
from thiefbench.suite.store.records import rounds_taken, write_sealed

CELL = "0123456789abcdef"
PAIRS = [("b", "two"), ("a", "one"), ("b", "two"), ("c", "\ud800 lone")]
SAID = {
    "one": Scored(1.0), "two": Scored(0.0, "the judge's reply has no decision"), "\ud800 lone": Scored(0.5),
    "\U0001f600": Scored(1.0), "\ud83d\ude00": Scored(0.0),
}  # fmt: skip


class Counting:
    """A judge that counts how often it is asked."""

    form = JudgeForm("before", "between", "after", "accepting")

    def __init__(self) -> None:
        self.asked: list[tuple[list[tuple[str, str]], int]] = []

    def score(self, answers: Sequence[tuple[str, str]], noise: int) -> list[Scored]:
        self.asked.append((list(answers), noise))
        return [SAID[text] for _, text in answers]


def stored(folder: Path) -> tuple[Counting, StoredRewards]:
    judge = Counting()
    made = StoredRewards(judge)
    made.store_in(folder, CELL)
    return judge, made


def test_equal_questions_are_asked_once(tmp_path: Path) -> None:
    judge, first = stored(tmp_path)
    expected = [SAID[text] for _, text in PAIRS]
    assert first.score(PAIRS, 7) == expected
    assert judge.asked == [(sorted(set(PAIRS)), 7)]
    again, second = stored(tmp_path)
    assert second.score(PAIRS[::-1], 7) == expected[::-1], "in another order, and twice the same"
    assert not again.asked
    assert second.form == judge.form


@pytest.mark.parametrize(("answers", "noise"), [(PAIRS, 8), (PAIRS[:1], 7), ([*PAIRS, ("d", "one")], 7)])
def test_other_questions_are_asked(tmp_path: Path, answers: list[tuple[str, str]], noise: int) -> None:
    stored(tmp_path)[1].score(PAIRS, 7)
    judge, other = stored(tmp_path)
    assert other.score(answers, noise) == [SAID[text] for _, text in answers]
    assert judge.asked == [(sorted(set(answers)), noise)]


def test_a_character_is_not_taken_for_its_two_surrogates(tmp_path: Path) -> None:
    stored(tmp_path)[1].score([("a", "\U0001f600")], 7)
    judge, other = stored(tmp_path)
    assert other.score([("a", "\ud83d\ude00")], 7) == [Scored(0.0)]
    assert judge.asked == [([("a", "\ud83d\ude00")], 7)]


def test_the_file_of_another_call_is_not_taken(tmp_path: Path) -> None:
    stored(tmp_path)[1].score([("a", "one")], 7)
    (other,) = (tmp_path / REWARDS).iterdir()
    stored(tmp_path)[1].score([("a", "two")], 7)
    (path,) = {*(tmp_path / REWARDS).iterdir()} - {other}
    path.write_bytes(other.read_bytes())
    judge, again = stored(tmp_path)
    assert again.score([("a", "two")], 7) == [SAID["two"]]
    assert len(judge.asked) == 1


def test_nothing_is_stored_before_it_is_told_where(tmp_path: Path) -> None:
    judge = Counting()
    StoredRewards(judge).score(PAIRS, 7)
    assert judge.asked == [(PAIRS, 7)]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        {"scores": []},
        {"scores": [[1.0, ""]] * 2},
        {"scores": [[1.0, ""], [0.0, ""], [1.5, ""]]},
        {"scores": [[1.0, ""], [0.0, ""], [True, ""]]},
        {"scores": [[1.0, ""], [0.0, ""], [float("nan"), ""]]},
        {"scores": [[1.0, ""], [0.0, ""], [1.0, "a fault with a reward"]]},
        {"scores": [[1.0, ""], [0.0, ""], [1.0, 3]]},
        {"scores": [[1.0, ""], [0.0, ""], "x"]},
        {"other": 1},
    ],
    ids=range(11),
)
def test_what_is_damaged_is_asked_again(tmp_path: Path, content: bytes | dict[str, object]) -> None:
    stored(tmp_path)[1].score(PAIRS, 7)
    (path,) = (tmp_path / REWARDS).iterdir()
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write_sealed(path, {"call": path.stem} | content)
    judge, again = stored(tmp_path)
    assert again.score(PAIRS, 7) == [SAID[text] for _, text in PAIRS]
    assert len(judge.asked) == 1
    judge, third = stored(tmp_path)
    assert third.score(PAIRS, 7) == [SAID[text] for _, text in PAIRS]
    assert not judge.asked, "it was written again"


def test_a_full_disk_costs_only_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    judge, made = stored(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert made.score(PAIRS, 7) == [SAID[text] for _, text in PAIRS]
    assert not list((tmp_path / REWARDS).glob("*.json"))
    made.score(PAIRS, 7)
    assert len(judge.asked) == 2


@pytest.mark.slow
def test_cells_that_share_all_rounds_ask_no_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = judged("none", attack="master_key"), judged("none+none", attack="master_key")
    run(first, tmp_path / "shared")
    run(second, tmp_path / "alone")
    asked: list[int] = []
    ask = ModelJudge.ask

    def counted(self: ModelJudge, prompts: Sequence[object], *rest: object, **named: object) -> list[list[str]]:
        asked.append(len(prompts))
        return ask(self, prompts, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelJudge, "ask", counted)
    (record,) = run(second, tmp_path / "shared")
    assert rounds_taken(record)
    assert not asked, "neither for rewards nor for the attacker, who tries the same texts"
    same(second, tmp_path / "shared", tmp_path / "alone")


@pytest.mark.slow
def test_what_an_attacker_tries_is_stored_for_cells_that_go_on_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its texts depend on the round's items; the pools of a swarm that rejects everything are others."""
    first, second = judged("none", attack="master_key"), judged("reject_all", attack="master_key")
    run(first, tmp_path / "shared")
    asked: list[int] = []
    ask = ModelJudge.ask

    def counted(self: ModelJudge, prompts: Sequence[object], *rest: object, **named: object) -> list[list[str]]:
        asked.append(len(prompts))
        return ask(self, prompts, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelJudge, "ask", counted)
    run(second, tmp_path / "alone")
    alone, asked[:] = sum(asked), []
    run(second, tmp_path / "shared")
    assert 0 < sum(asked) < alone
    same(second, tmp_path / "shared", tmp_path / "alone")


@pytest.mark.slow
def test_a_folder_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    first, second = judged("none"), judged("none+none")
    run(first, tmp_path / "shared")
    (start,) = (tmp_path / "shared" / "shared").iterdir()
    (start / REWARDS).rename(tmp_path / "elsewhere")
    (start / REWARDS).symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "elsewhere").iterdir():
        content = json.loads(path.read_text())["content"]
        write_sealed(path, {"scores": [[0.25, ""] for _ in content["scores"]]})
    run(second, tmp_path / "shared")
    run(second, tmp_path / "alone")
    same(second, tmp_path / "shared", tmp_path / "alone")
