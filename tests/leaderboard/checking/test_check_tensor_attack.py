"""The check of attacks on exchanged weights and on pipelines: what it finds, and where it stops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.leaderboard.isolation.test_isolated_tensor_attacks import STAGES, TEXT, WEIGHTS
from tests.variants import at_length
from thiefbench import trust
from thiefbench.leaderboard.checking.check_tensor_attack import QUESTIONS, TensorAttackSubject, check_tensor_attack
from thiefbench.leaderboard.isolation.isolated_tensor_attacks import isolated_attack
from thiefbench.leaderboard.isolation.sandbox_paths import attack_kind
from thiefbench.tasks.sandbox import SandboxUnavailable


@pytest.fixture(scope="module", autouse=True)
def _jail() -> Iterator[None]:
    try:
        warm = isolated_attack(f"{WEIGHTS}:Pushes")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with trust.plugins():
        yield
    warm.close()


def found(spec: str) -> dict[str, tuple[str, str]]:
    kind = attack_kind(spec)
    assert kind != "attack"
    subject = TensorAttackSubject(spec, kind)
    subject.answers = 32
    return {each.question: (each.status, each.detail) for each in check_tensor_attack(subject)}


def test_what_fails_where_it_sends_is_said_and_ends_the_check() -> None:
    answers = found(f"{WEIGHTS}:Faulty(how='text')")
    *earlier, (question, (status, detail)) = answers.items()
    assert (question, status) == ("sends what its swarm exchanges", "FAILED")
    assert "a vector is a float32 tensor, not str" in detail
    assert all(status == "ok" for _, (status, _) in earlier)


@pytest.mark.parametrize(
    ("how", "question", "status", "said"),
    at_length(
        ("hashes", "equal views, equal weights", "FAILED", "end with other weights if it runs in another process"),
        ("missing", "sends what its swarm exchanges", "warning", "in 2 rounds a malicious node sends nothing"),
        ("short", "sends what its swarm exchanges", "warning", "honest nodes refuse it 6 times: wrong shape"),
    ),
)
def test_what_is_wrong_is_found(how: str, question: str, status: str, said: str) -> None:
    kind, detail = found(f"{WEIGHTS}:Faulty(how={how!r})")[question]
    assert kind == status
    assert said in detail


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", ["boosted(attack='text', steps=2)", f"{STAGES}:Adds", f"stage_backdoor(attack={TEXT!r}, steps=2)"]
)
def test_sound_attacks_pass_all_questions(spec: str) -> None:
    answers = found(spec)
    assert list(answers) == [question for question, _ in QUESTIONS]
    fixed = TEXT in spec
    assert answers.pop("its payload depends on the seed alone")[0] == ("warning" if fixed else "ok")
    assert {status for status, _ in answers.values()} == {"ok"}, answers


@pytest.mark.slow
def test_an_outcome_of_clean_text_is_found() -> None:
    status, detail = found("sign_flip()")["clean text does not satisfy its outcome"]
    assert status == "FAILED"
    assert "honest answers is" in detail
