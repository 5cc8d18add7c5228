"""The check of an attack: whether its outcome recognises what it sends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import tiny
from thiefbench.leaderboard.checking.check_attack import AttackSubject, check_attack
from thiefbench.leaderboard.checking.findings import Finding
from thiefbench.leaderboard.checking.samples import SampleRecipe
from thiefbench.leaderboard.isolation.isolated_attack import IsolatedAttack
from thiefbench.tasks.sandbox import SandboxUnavailable

HUMS = Path(__file__).parent.parent / "hums.py"
RECOGNISES = "its outcome recognises its poison"


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    try:
        warm = IsolatedAttack(f"{HUMS}:Hums")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield
    warm.close()


def findings(cls: str) -> dict[str, Finding]:
    recipe = SampleRecipe(tiny.TASK, str(tiny.model()), tiny.ATTACK, max_new_tokens=20)
    subject = AttackSubject(f"{HUMS}:{cls}", recipes=(recipe,), size=(4, 4), answers=32)
    return {finding.question: finding for finding in check_attack(subject)}


def test_an_attack_that_recognises_its_poison_passes() -> None:
    found = findings("Hums")
    assert found[RECOGNISES].status == "ok"
    assert not [finding for finding in found.values() if finding.status == "FAILED"]


def test_an_attack_that_never_recognises_its_poison_is_refused() -> None:
    """It would run for hours with an ASR of 0."""
    found = findings("OverlooksItself")[RECOGNISES]
    assert found.status == "FAILED"
    assert "its outcome is 0 for all 8 of its own submissions, such as '" in found.detail
    assert "`body(text)` keeps the spaces around the reasoning" in found.detail


@pytest.mark.parametrize(
    ("cls", "why"),
    [("AsksOthers", "it is measured on questions of its own"), ("SamplesAlone", "it is granted the policy")],
)
def test_what_is_sent_may_lack_the_payload(cls: str, why: str) -> None:
    found = findings(cls)[RECOGNISES]
    assert found.status == "warning"
    assert why in found.detail


def test_an_outcome_that_is_none_of_a_repeated_text_is_refused() -> None:
    """Models repeat what they learn; the cell would end in its last rounds."""
    found = findings("Counts")["its outcome takes broken text"]
    assert found.status == "FAILED"
    assert "gave the outcome 2.0; it must lie between 0 and 1, on '" in found.detail


@pytest.mark.slow
def test_an_outcome_that_depends_on_the_order_of_a_set_is_refused() -> None:
    """In the sandbox that order is the same in all processes, and elsewhere it is not."""
    found = findings("Hashes")["its outcome depends on item and completion alone"]
    assert found.status == "FAILED"
    assert found.detail.endswith("on the item and the completion alone, not on hash() or the order of a set")


def test_a_payload_that_hangs_on_more_than_the_generator_is_refused() -> None:
    found = findings("Describes")["its payload depends on the seed alone"]
    assert found.status == "FAILED"
    assert found.detail.startswith("equal generators draw {'letters': '0.")


def test_an_item_that_is_asked_in_another_way_needs_an_id_of_its_own() -> None:
    found = findings("AsksAnew")["fits a swarm"]
    assert found.status == "FAILED"
    assert "has a probe with the id 'test-1-2', which asks something else too" in found.detail


@pytest.mark.slow
def test_a_family_whose_first_members_are_the_same_is_one() -> None:
    found = findings("RarelyAnother")["its payload depends on the seed alone"]
    assert (found.status, found.detail) == ("ok", "2 different ones at 5 seeds")
    one = findings("Hums(letter='q')")["its payload depends on the seed alone"]
    assert one.status == "warning"
    assert one.detail.startswith("the first 16 seeds draw the same payload")
