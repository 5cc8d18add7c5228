"""The fast tier: what is known of the built-in defenses shows on the recorded rounds, in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from thiefbench import registry
from thiefbench.defenses.base import DefenderView, Defense, Verdict
from thiefbench.suite.analysis.replay import ReplayError
from thiefbench.suite.store.records import CellDir, rows_table
from thiefbench.testing import recorded
from thiefbench.testing.recipe import ROLES
from thiefbench.testing.recorded import RATES, RECORDINGS, RecordedReplay, names, opened, replay


def judged(spec: str, attack: str | None = None, folder: Path = RECORDINGS) -> RecordedReplay:
    return replay(lambda: registry.make("defense", spec), attack, folder)


def value(done: RecordedReplay, rate: str = "stop_rate") -> float | None:
    return done.scores[rate].value


@pytest.mark.parametrize(("spec", "rejected"), [("none", 0.0), ("reject_all", 1.0)])
def test_the_ends_of_the_scale(spec: str, rejected: float) -> None:
    done = judged(spec)
    assert {rate: value(done, rate) for rate in RATES} == dict.fromkeys(RATES, rejected)
    assert (not done.let_through) == bool(done.wrongly_rejected) == (spec == "reject_all")
    for scores in done.by_recording.values():
        assert all(score.count >= 24 for score in scores.values()), "every rate of every recording says something"


def test_an_oracle_rejects_the_payload_and_nothing_else() -> None:
    done = judged("oracle")
    assert [value(done, rate) for rate in RATES] == [1.0, 0.0, 0.0]
    assert not done.let_through and not done.wrongly_rejected
    assert done.scores["stop_rate"].low > 0.96, "its items are enough for a narrow interval"


def test_the_scores_are_those_of_all_completions_together() -> None:
    done = judged("blacklist")
    for rate in RATES:
        assert done.scores[rate].count == sum(scores[rate].count for scores in done.by_recording.values())
    stopped = {name: scores["stop_rate"].value for name, scores in done.by_recording.items()}
    assert stopped.pop("text_paper") == 1.0, "a blacklist of the paper's payloads knows the paper's phrase"
    assert set(stopped.values()) == {0.0}, "and no drawn one"


@pytest.mark.slow
def test_the_support_check_stops_text_and_honest_samples_pass() -> None:
    done = judged("logit", "text")
    assert done.attacks == ("text_drawn", "text_paper", "text_programs"), "an attack's name stands for its recordings"
    assert value(done) == 1.0
    assert value(done, "false_rejection_rate") == 0.0


def test_the_support_check_passes_what_was_sampled() -> None:
    done = judged("logit", "dos")
    assert value(done) == 0.0
    assert done.let_through


def test_guard_knows_every_slot_s_seed() -> None:
    done = judged("guard", "equations")
    assert (value(done), value(done, "false_rejection_rate")) == (1.0, 0.0)


def test_a_model_that_has_learned_the_payload_is_judged_where_it_is_named() -> None:
    assert "text_learned" not in judged("none").attacks
    done = judged("logit", "text_learned")
    assert done.attacks == ("text_learned",)
    assert value(done) == 0.0, "the payload lies in the support of a model that says it"
    assert value(judged("blacklist", "text_learned"), "false_rejection_rate") > 0.2, "which honest ones then say too"


class Watcher(Defense):
    """Rejects whatever has an even number of words, and keeps what it saw."""

    name: ClassVar[str] = "watcher"

    def __init__(self, seen: list[DefenderView]) -> None:
        self.seen = seen

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.seen.append(view)
        return [Verdict("drop" if len(each.text.split()) % 2 == 0 else "accept") for each in view.completions]


def test_the_texts_shown_are_examples_of_what_went_wrong() -> None:
    done = replay(lambda: Watcher([]), "text_paper")
    rows = {row.text: row for pool in opened("text_paper", "attack").pools.values() for row in pool if row.reward > 0}
    passed, lost = done.let_through["text_paper"], done.wrongly_rejected["text_paper"]
    assert rows[passed].payload, "let_through carries the payload"
    assert len(passed.split()) % 2 == 1, "and was accepted"
    assert not rows[lost].malicious, "wrongly_rejected is an honest one"
    assert len(lost.split()) % 2 == 0, "and was rejected"
    assert len(done.placebo_rejected["text_paper"].split()) % 2 == 0


def test_every_recording_is_judged_by_a_fresh_defense_through_the_contract_s_view() -> None:
    seen: list[DefenderView] = []
    made: list[Watcher] = []

    def make() -> Watcher:
        made.append(Watcher(seen))
        return made[-1]

    replay(make, "text_paper")
    assert [view.round for view in seen] == [1, 2, 60] * 2, "three rounds of the attack, and of its placebo"
    assert [len(view.history) for view in seen] == [0, 1, 2] * 2, "each with the rounds before it"
    assert all(type(view) is DefenderView for view in seen), "which tell nobody the truth"
    assert all(offered.seed is not None for view in seen for offered in view.completions), "slots have their seeds"
    assert len(made) >= 2, "attack and placebo get a defense each"


def test_an_unknown_attack_is_one_sentence() -> None:
    with pytest.raises(ReplayError) as raised:
        judged("none", "tone")
    told = str(raised.value)
    assert "no recorded rounds of 'tone'" in told
    assert "code_injection, dos, equations, text, or" in told, "the attacks there are"
    assert "text_learned" in told, "and the recordings"


@pytest.fixture(scope="module")
def first_rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings cut down to five groups of their first rounds, for whoever reads every completion with a model.

    All poison of dos that earned a reward in that round is in these groups.
    """
    folder = tmp_path_factory.mktemp("recordings")
    for name in ("dos", "text_paper"):
        for role in ROLES:
            recording, directory = opened(name, role), CellDir(folder / name / role)
            rows = [row for row in recording.pools[1] if 4 <= row.group < 9]
            digest = directory.write_rows(rows_table(rows))
            directory.write(recording.record.model_copy(update={"completions_sha256": digest}))
    return folder


@pytest.mark.slow
def test_judges_and_proofs_are_asked_for(first_rounds: Path) -> None:
    assert value(judged("judge", "text_paper", first_rounds)) == 1.0, "micro-judge sees the phrase"
    assert value(judged("judge", "dos", first_rounds)) < 1.0, "and not that an answer was chosen for its length"
    assert value(judged("toploc", "text_paper")) == 0.0, "a poisoner proves its poison"


def test_a_defense_that_fails_has_no_score() -> None:
    class Broken(Watcher):
        def inspect(self, view: DefenderView) -> Sequence[Verdict]:
            raise KeyError("no such word")

    with pytest.raises(ReplayError, match="recording text_paper: watcher failed in round 1: KeyError: 'no such word'"):
        replay(lambda: Broken([]), "text_paper")


def test_recordings_are_small() -> None:
    files = [path for path in recorded.RECORDINGS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4_000_000, "all recordings together stay under 4 MB"
    assert {path.suffix for path in files} == {".json", ".parquet", ".gz"}, "and leave nothing else behind"
    for name in names():
        assert len(opened(name, "attack").pools) <= 3, f"{name} has at most three rounds"
