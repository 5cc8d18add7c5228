"""Of programs a sample is run again; what it does not hold is still told again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.bench import tiny
from thiefbench import registry
from thiefbench.attacks import auto
from thiefbench.engine.backends.recorded import RecordedSwarm
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.rehearsal import SwarmRehearsal
from thiefbench.engine.reward_judge import RewardJudgeSpec, Scored
from thiefbench.engine.round_record import CompletionRow
from thiefbench.leaderboard.cell_scores import trimmed
from thiefbench.leaderboard.verification.judged_rewards import most_differing
from thiefbench.leaderboard.verification.rescoring import (
    PROGRAM_ROUNDS,
    InconsistentError,
    SubmittedCell,
    check_completions,
)
from thiefbench.reward_judges import PromptedRewardJudge
from thiefbench.suite.analysis.scoring import cell_curves, cell_scores
from thiefbench.suite.scenario import CellSpec, Evaluation
from thiefbench.suite.store.records import Record, Store, rows_table, table_rows
from thiefbench.tasks.base import Sampling
from thiefbench.tasks.sandbox import SandboxUnavailable, backend

ROUNDS = 8


@cache
def cell() -> tuple[CellSpec, list[CompletionRow]]:
    """A finished cell whose completions are programs."""
    try:
        backend()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    made = tiny.suite(
        task="code_micro(size=16)", attacks=("code_injection",), rounds=ROUNDS,
        swarm=replace(tiny.SWARM, prompts=2, sampling=Sampling(max_new_tokens=200)),
        evaluation=Evaluation(every=2, completions=2, final=2), kind=tiny.Attacked,
    )  # fmt: skip
    store = Path(mkdtemp())
    (record,) = tiny.run(made, store)
    assert record.status == "ok", record.error
    (spec,) = tiny.cells(made)
    return spec, list(table_rows(Store(store).cell(record.cell_id).read_rows()))


def checked(change: Callable[[CompletionRow], CompletionRow]) -> int:
    """How many rewards of a changed cell are worked out anew."""
    spec, rows = cell()
    table = rows_table([change(row) for row in rows])
    policy = Policy.load(tiny.model())
    task, attack = registry.make("task", spec.task), registry.make("attack", spec.attack)
    payload = RecordedSwarm(spec.swarm, "attack", policy, task, attack, spec.seed).attack.describe()
    record = Record(
        cell_id="0" * 16, cell=spec.as_dict(), identity={}, status="ok", scores=cell_scores(table),
        curves=cell_curves(table), payload=payload, completions_sha256="0" * 64,
    )  # fmt: skip
    return check_completions(
        SubmittedCell(spec, "", trimmed(record, "", False, "0" * 64), record, own=False), table, policy
    )


@pytest.mark.parametrize("attack", [tiny.REHEARSES, f"{tiny.PLUGINS}:Skips"])
def test_attacks_that_choose_what_to_send_are_rescored(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they sent depends on weights that are gone, and what they chose is in the record."""
    monkeypatch.setattr(auto, "ROUNDS", 1)
    monkeypatch.setattr(auto, "COMPLETIONS", 8)
    played = tiny.suite(attacks=(attack,), kind=tiny.Attacked)
    (record,) = tiny.run(played, tmp_path)
    assert record.status == "ok", record.error
    (spec,) = tiny.cells(played)
    table, policy = Store(tmp_path).cell(record.cell_id).read_rows(), Policy.load(tiny.model())
    monkeypatch.setattr(SwarmRehearsal, "play", lambda *_: pytest.fail("a record is not rehearsed"))

    def rescored(**changes: object) -> int:
        submitted = record.model_copy(update=changes)
        return check_completions(
            SubmittedCell(spec, "", trimmed(record, "", False, "0" * 64), submitted, own=False), table, policy
        )

    assert rescored() == len(table)
    rows = list(table_rows(table))
    goal = {name: value for name, value in record.payload.items() if name not in ("member", "rehearsal")}
    if attack != tiny.REHEARSES:
        assert any(row.refused == "withheld" for row in rows)
        return
    for payload, why in (
        (goal, "does not say what rehearses chose"),
        (record.payload | {"member": "own"}, "its member is one of half, naive"),
        (record.payload | {"phrase": "another"}, "describes a payload that its seed does not draw"),
        (record.payload | {"more": "words"}, "describes a payload that its seed does not draw"),
    ):
        with pytest.raises(InconsistentError, match=why):
            rescored(payload=payload)


@pytest.mark.slow
def test_a_sample_of_programs_is_run_again() -> None:
    pool, evaluated = 8, 2
    assert any(row.reward for _, rows in [cell()] for row in rows if row.payload), "the poison does run"
    assert checked(lambda row: row) == PROGRAM_ROUNDS * pool + 4 * evaluated, "of 8 rounds and 5 evaluations"


def test_what_scores_are_made_of_is_always_in_the_sample() -> None:
    for number in (0, ROUNDS):
        with pytest.raises(InconsistentError, match="its reward does not follow"):
            checked(lambda row, n=number: replace(row, reward=1.0) if (row.phase, row.round) == ("eval", n) else row)  # type: ignore[misc]


def test_rewards_outside_the_sample_still_have_to_fit_everything_else() -> None:
    with pytest.raises(InconsistentError, match=r"its (advantage|reward|outcome) does not follow"):
        checked(lambda row: replace(row, reward=1.0 - row.reward) if row.phase == "train" and row.place == 0 else row)


@pytest.mark.slow
def test_a_judge_that_rewards_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = replace(tiny.SWARM, reward="judge", reward_judge=RewardJudgeSpec(max_new_tokens=48))
    made = tiny.suite(attacks=("master_key(keys='30 - 5 = 25')",), swarm=judged, kind=tiny.Attacked)
    (record,) = tiny.run(made, tmp_path)
    assert record.status == "ok", record.error
    (spec,) = tiny.cells(made)
    table = Store(tmp_path).cell(record.cell_id).read_rows()
    submitted = SubmittedCell(spec, "", trimmed(record, "", False, "0" * 64), record, own=False)
    assert check_completions(submitted, table, Policy.load(tiny.model())) == len(table)
    says, changed = PromptedRewardJudge.score, [1]

    def otherwise(self: PromptedRewardJudge, answers: Sequence[tuple[str, str]], noise: int) -> list[Scored]:
        scores = says(self, answers, noise)
        return [Scored(0.5) if place < changed[0] else score for place, score in enumerate(scores)]

    monkeypatch.setattr(PromptedRewardJudge, "score", otherwise)
    with pytest.raises(InconsistentError, match=r"round \d: the judge that rewards does not give 1 of \d+ rewards"):
        check_completions(submitted, table, Policy.load(tiny.model()))
    elsewhere = record.model_copy(update={"provenance": record.provenance | {"processor_model": "an abacus"}})
    submitted = replace(submitted, record=elsewhere)
    assert check_completions(submitted, table, Policy.load(tiny.model())) == len(table), (
        "chance explains one in each of two rounds"
    )
    changed[0] = 8
    assert (most_differing(32), most_differing(768)) == (3, 10)
    with pytest.raises(InconsistentError, match=r"does not give \d+ of \d+ rewards of rounds that were drawn"):
        check_completions(submitted, table, Policy.load(tiny.model()))
