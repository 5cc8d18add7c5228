from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.attacks.fakes import Says
from thiefbench.attacks.base import Claimed
from thiefbench.attacks.misreport import Misreport
from thiefbench.attacks.text import Text
from thiefbench.defenses.anchors import AcceptAll
from thiefbench.engine.backends import local as local_module
from thiefbench.engine.context import items_of
from thiefbench.engine.exchange import UNREADABLE, arrived, with_logprobs
from thiefbench.engine.heterogeneity import DelaySpec, NodeClass
from thiefbench.engine.learning.cohort import Cohort, TrainingRow
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.engine.transport import Offer
from thiefbench.tasks.base import Task

Build = Callable[..., Swarm]


@pytest.mark.parametrize("delay", [None, DelaySpec(rounds=1), DelaySpec("lognormal", rounds=3)])
def test_honest_log_probs_are_those_that_others_find(
    delay: DelaySpec | None, build_mixed: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Offer, Offer]] = []

    def both(population: Any, number: int, items: Any, sent: Sequence[Offer], prompt: Any, *rest: Any) -> list[Offer]:
        told = population.spec
        population.spec = replace(told, logprobs="recomputed")
        found = with_logprobs(population, number, items, sent, prompt, {})
        population.spec = told
        seen.extend(zip(sent, found, strict=True))
        return with_logprobs(population, number, items, sent, prompt, *rest)

    monkeypatch.setattr(local_module, "with_logprobs", both)
    swarm = build_mixed("control", logprobs="reported", delay=delay)
    for number in (1, 2, 3):
        swarm.round(number)
    assert len(seen) == 3 * 32
    for told, found in seen:
        assert told.logprobs is not None
        assert found.logprobs is not None
        assert len(told.logprobs) == len(told.ids)
        assert told.logprobs == pytest.approx(found.logprobs, abs=2e-3), (
            "what an honest node reports is what its claimed version gives, up to float noise"
        )


@pytest.mark.parametrize("logprobs", ["none", "reported", "recomputed"])
def test_false_log_probs_reach_a_learner_only_where_reports_are_believed(
    logprobs: str, build_swarm: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    lessons: list[TrainingRow] = []
    update = Cohort.update

    def watched(self: Cohort, prompts: Any, given: Sequence[TrainingRow], reading: Any = None) -> Any:
        lessons.extend(given)
        return update(self, prompts, given, reading)

    monkeypatch.setattr(Cohort, "update", watched)
    swarm = build_swarm(attack=Misreport(Text("hail to all", "start"), logprob=-50), logprobs=logprobs)
    rows = swarm.round(1).rows
    told = [lesson.old_logprobs for lesson, row in zip(lessons, rows, strict=True) if row.payload]
    assert len(told) == 8
    if logprobs == "none":
        assert set(told) == {None}, "where none travel, a claim counts for nothing"
        return
    false = [all(value == -50.0 for value in each or ()) for each in told]
    assert all(false) if logprobs == "reported" else not any(false)
    assert not any(row.refused for row in rows), "a claim that can be read is no reason to refuse"
    honest = [lesson.old_logprobs for lesson, row in zip(lessons, rows, strict=True) if not row.malicious]
    assert all(each and min(each) > -40 for each in honest), "honest rows carry their own"


BAD: dict[str, Any] = {
    "NaN": (float("nan"), -1.0),
    "inf": (float("inf"), -1.0),
    "minus inf": (-float("inf"), -1.0),
    "too small": (-1e9, -1.0),
    "positive": (0.5, -1.0),
    "ints": (-1, -1),
    "bools": (False, False),
    "too short": (-1.0,),
    "too long": (-1.0,) * 3,
    "empty": (),
    "a list": [-1.0, -1.0],
    "a string": "ab",
    "strings": ("a", "b"),
    "a number": -1.0,
    "None inside": (None, -1.0),
    "missing": None,
}


@pytest.mark.parametrize("name", BAD)
def test_log_probs_that_cannot_be_read_are_refused(name: str, build_mixed: Build) -> None:
    swarm = build_mixed(logprobs="reported", classes="a")
    good = Offer(0, 0, 0, (65, 66), logprobs=(-1.0, 0.0))
    first, bad, last = arrived(swarm.population, [good, replace(good, index=1, logprobs=BAD[name]), good])
    assert bad.refused == UNREADABLE
    assert bad.completion.logprobs is None
    assert bad.completion.ids == (65, 66), "the completion stays visible"
    for other in (first, last):
        assert other.refused == ""
        assert other.completion.logprobs == (-1.0, 0.0), "one bad claim does not touch the others"


@pytest.mark.parametrize("classes", ["a", "ab"])
def test_a_refused_claim_earns_nothing_and_breaks_nothing(classes: str, build_mixed: Build) -> None:
    swarm = build_mixed(attack=Says(Claimed("aaa", logprob=float("nan"))), classes=classes, logprobs="reported")
    bad = [row for row in swarm.round(1).rows if row.malicious]
    assert {(row.refused, row.reward) for row in bad} == {(UNREADABLE, 0.0)}
    assert all(row.advantage <= 0 for row in bad)
    assert all(w.isfinite().all() for cohort in swarm.population.cohorts for w in cohort.policy.weights().values())


@pytest.mark.parametrize("version", [-1, 10**6, 2**31, 10**40, True, "1", 1.0, [1], None, float("nan")], ids=repr)
@pytest.mark.parametrize("logprobs", ["none", "reported", "recomputed"])
def test_versions_that_do_not_exist_do_no_harm(logprobs: str, version: Any, build_mixed: Build) -> None:
    swarm = build_mixed(
        attack=Says(Claimed("a and e", version=version)), logprobs=logprobs, delay=DelaySpec(rounds=2), classes="a"
    )
    for number in (1, 2):
        rows = [row for row in swarm.round(number).rows if row.malicious]
        assert {row.refused for row in rows} == {""}, "a completion is as good as any, whatever it says of its version"
        told = {row.version for row in rows}
        known = type(version) is int and 0 <= version < 2**31
        assert told == ({version} if known else {number - 1} if version is None else {None}), (
            "a version that is none does not arrive"
        )


def test_who_recomputes_takes_the_current_weights_for_an_unknown_version(build_mixed: Build) -> None:
    swarm = build_mixed("control", classes="a", logprobs="recomputed", delay=DelaySpec(rounds=2))
    for number in (1, 2, 3):
        swarm.round(number)
    items = items_of(swarm.task, "train")[:4]
    ids = (*swarm.policy.encode("hello"), swarm.policy.eos)

    def found(version: Any) -> tuple[float, ...]:
        sent = [Offer(0, 0, 0, ids, version=version)]
        (made,) = with_logprobs(swarm.population, 4, items, sent, swarm.context.prompt, {})
        assert made.logprobs is not None
        return made.logprobs

    assert found(1) != found(2) != found(3), "versions that are kept have log-probs of their own"
    for version in (None, 0, -1, 4, 10**40, True, "2", [2]):
        assert found(version) == found(3), f"{version!r} is no version that is kept"


# ---- two vocabularies


def test_every_cohort_reads_the_very_text_that_was_sent(build_mixed: Build) -> None:
    swarm = build_mixed(logprobs="reported")
    for number in (1, 2):
        rows = swarm.round(number).rows
        by_place: dict[tuple[int, int], list[Any]] = {}
        for row in rows:
            by_place.setdefault((row.group, row.place), []).append(row)
        for each in by_place.values():
            assert [row.cohort for row in each] == [0, 1], "both cohorts hold every completion"
            assert each[0].text == each[1].text, "and the same text"
            assert len({row.reward for row in each if not row.refused}) <= 1, "whose reward is the text's"
            for row in each:
                policy = swarm.population.cohorts[row.cohort].policy
                if row.refused:
                    assert row.reward == 0, "what is refused earns nothing"
                else:
                    assert policy.decode([row.ids]) == [row.text], "its ids say the text in the cohort's own tokens"
                    assert row.ended == each[0].ended, "and it ends where it ended"
        lengths = [(len(a.ids), len(b.ids)) for a, b in by_place.values() if a.ids and b.ids]
        assert any(one != other for one, other in lengths), "the two vocabularies differ"


@pytest.mark.parametrize("learner", ["grpo", "gepo", "ftis"])
def test_what_cannot_be_read_is_refused_and_breaks_nothing(learner: str, build_mixed: Build) -> None:
    eos = 256  # of class a, which the malicious node 3 of a swarm "ba" belongs to
    sent = [
        "so<|im_start|>a", "x" * 200, (), (eos,), (10**9,), (-1,), (195,), (195, 169), (195, eos),
        "\U0001f600 é a\u0301",
        (240, 159, 152, 128, eos), " " * 16, "\x00",
    ]  # fmt: skip
    spec = replace(build_mixed().spec.learner, loss=learner)
    swarm = build_mixed(attack=Says(*sent), classes="ba", logprobs="reported", learner=spec, prompts=8)
    for number in (1, 2):
        rows = [row for row in swarm.round(number).rows if row.malicious]
        assert len(rows) == 2 * 16
        assert all(row.reward == 0 for row in rows if row.refused)
        forged = [row for row in rows if "im_start" in row.text]
        assert forged
        assert all(row.refused for row in forged), "control tokens in a text are control tokens in every vocabulary"
    assert all(w.isfinite().all() for cohort in swarm.population.cohorts for w in cohort.policy.weights().values())


def test_a_token_that_only_a_larger_model_has_is_refused(
    load_policy: Callable[..., Policy], vowels: Task, spec: SwarmSpec
) -> None:
    small, large = load_policy(), load_policy()
    large.model.resize_token_embeddings(300)
    large = Policy(large.model, large.tokenizer)
    assert small.lexicon == large.lexicon, "models of one tokenizer may differ in how far they pad their embeddings"
    mixed = replace(spec, population=(NodeClass("small", 0.5), NodeClass("large", 0.5)))
    attack = Says((97, 299), (97, large.eos))
    rows = [
        row
        for row in Swarm(mixed, "attack", [small, large], vowels, attack, AcceptAll(), 1).round(1).rows
        if row.malicious
    ]
    for row in rows:
        if row.cohort == 0 and row.refused:
            assert row.refused == "a token id outside the receiver's vocabulary"
    assert any(row.refused and row.cohort == 0 for row in rows)
    assert any(not row.refused and row.cohort == 0 for row in rows), "its other completions are read as they are"
