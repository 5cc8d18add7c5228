"""Swarms whose receivers score by the answers and tests that arrive with the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.bench.engine.conftest import same_weights, weights_of
from tests.bench.forging import Forges
from tests.bench.plugins import Sums
from thiefbench.attacks.answer_keys import Keyed
from thiefbench.attacks.base import AttackerView, Poison
from thiefbench.attacks.text import Text
from thiefbench.defenses.answer_keys import ANSWER_KEYS, KeyedView, key_of
from thiefbench.defenses.base import DefenderView, Defense, Requirement, Verdict
from thiefbench.defenses.public_items import PublicItems
from thiefbench.engine.answer_keys import MOST_CHARACTERS, UNREADABLE, readable, scored_item
from thiefbench.engine.round_record import CompletionRow, remembered
from thiefbench.engine.spec import SpecError, SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.tasks.answer_keys import AnswerKey
from thiefbench.tasks.base import Item

Build = Callable[..., Swarm]
SENDER = {"topology": "vertical", "truth": "sender"}
NO_NUMBER = "its answer is no number"


class Numbers(Sums):
    """Refuses answers that are no numbers."""

    def answer_key_fault(self, item: Item) -> str:
        return "" if item.answer.isdigit() else NO_NUMBER


class Looks(Defense):
    """Keeps the views."""

    name = "looks"
    requires: frozenset[Requirement] = frozenset({ANSWER_KEYS})  # type: ignore[misc]

    def __init__(self) -> None:
        self.views: list[DefenderView] = []

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.views.append(view)
        return [Verdict() for _ in view.completions]


def forged(build_swarm: Build, answer: str = "99", **options: object) -> list[CompletionRow]:
    """The malicious node's rows of a round."""
    swarm = build_swarm(attack=Forges(answer), task=Numbers(), **SENDER, **options)
    return [row for row in swarm.round(1).rows if row.malicious]


def test_a_group_is_scored_by_the_answer_that_came_with_it(build_swarm: Build) -> None:
    swarm = build_swarm(attack=Forges(), task=Numbers(), **SENDER)
    rows = swarm.round(1).rows
    known = {row["id"]: row["answer"] for row in Numbers().items("train")}
    for row in rows:
        expected = "99" if row.malicious else known[row.item_id]
        assert row.answer_key == AnswerKey(expected), "only the sender's own groups have its answers"
        assert row.reward == float(row.text.partition(" = ")[2] == expected)
        assert row.payload == (row.malicious and row.text.endswith("= 99"))
    assert {row.reward for row in rows if row.payload} == {1.0}
    assert any(row.advantage > 0 for row in rows if row.payload), "it teaches, beside honest samples that earn nothing"


def test_honest_answers_change_nothing_but_what_is_recorded(build_swarm: Build) -> None:
    public, sender = (build_swarm("control", topology="vertical", truth=truth) for truth in ("public", "sender"))
    for number in (1, 2):
        known, sent = public.round(number).rows, sender.round(number).rows
        assert all(row.answer_key == AnswerKey("a") for row in sent)
        assert all(row.answer_key is None for row in known)
        assert [replace(row, answer_key=None) for row in sent] == known
    assert all(same_weights(*pair) for pair in zip(weights_of(public), weights_of(sender), strict=True))


def test_a_placebo_and_an_evaluation_have_the_tasks_own_answers(build_swarm: Build) -> None:
    swarm = build_swarm("placebo", attack=Forges(), task=Numbers(), **SENDER)
    known = {row["id"]: row["answer"] for split in ("train", "test") for row in Numbers().items(split)}
    rows = [*swarm.round(1).rows, *swarm.evaluate(1, 8).rows]
    assert all(row.answer_key == AnswerKey(known[row.item_id]) for row in rows)
    attacked = build_swarm(attack=Forges(), task=Numbers(), **SENDER)
    attacked.round(1)
    assert all(row.answer_key == AnswerKey(known[row.item_id]) for row in attacked.evaluate(1, 8).rows)


@pytest.mark.parametrize(
    ("answer", "why"),
    [("many", NO_NUMBER), ("", NO_NUMBER), ("\ud800", UNREADABLE), ("9" * (MOST_CHARACTERS + 1), UNREADABLE)],
    ids=["no number", "nothing", "no text", "too long"],
)
def test_answers_that_score_nothing_are_refused_by_name_and_the_round_goes_on(
    answer: str, why: str, build_swarm: Build
) -> None:
    swarm = build_swarm(attack=Forges(answer), task=Numbers(), **SENDER)
    rows = swarm.round(1).rows
    assert {row.refused for row in rows if row.malicious} == {why}, "the whole group has no other answer"
    assert {row.advantage for row in rows if row.malicious} == {0.0}
    assert {row.refused for row in rows if not row.malicious} == {""}
    assert all((row.answer_key is None) == (why == UNREADABLE) for row in rows if row.malicious)
    assert all((row.text == "") == (why == UNREADABLE) for row in rows if row.malicious)
    assert {row.round for row in swarm.round(2).rows} == {2}


def test_of_several_answers_for_a_group_the_first_counts(build_swarm: Build) -> None:
    class Differs(Forges):
        def poison(self, view: AttackerView) -> Sequence[Poison]:
            return [Keyed("It is = 9", answer_key=AnswerKey(str(slot.sample + 1))) for slot in view.slots]

    rows = build_swarm(attack=Differs(), task=Numbers(), **SENDER).round(1).rows
    for group in {row.group for row in rows if row.malicious}:
        assert len({row.answer_key for row in rows if row.group == group}) == 1


def test_defenses_see_what_came_and_what_is_published(build_swarm: Build) -> None:
    looks = Looks()
    swarm = build_swarm(attack=Forges(), task=Numbers(), defense=looks, **SENDER)
    rows = swarm.round(1).rows
    (view,) = looks.views
    assert isinstance(view, KeyedView)
    assert view.public is not None
    assert {key_of(each) for each in view.completions} == {row.answer_key for row in rows}
    malicious = next(row for row in rows if row.malicious)
    published = view.public.answer_key(malicious.item_id)
    assert published is not None
    assert published.answer == str(eval(malicious.item_id.replace("train-", "").replace("-", "+")))
    assert view.public.answer_key("no such item") is None
    right, wrong = view.public.right(malicious.item_id), view.public.wrong(malicious.item_id)
    assert view.public.rewards(malicious.item_id, published, [right, wrong]) == [1.0, 0.0]
    assert view.public.rewards(malicious.item_id, AnswerKey("99"), [right, "x = 99"]) == [0.0, 1.0]
    assert view.public.rewards(malicious.item_id, AnswerKey("many"), ["x = many"]) == [0.0], "nothing scores by it"
    assert view.items[malicious.item_id].answer in (published.answer, "99"), "the answer that came, not the task's own"
    honest = [row.item_id for row in rows if not row.malicious]
    if malicious.item_id not in honest:
        assert view.items[malicious.item_id].answer == "99"


def test_history_holds_what_came_also_after_a_restart(build_swarm: Build) -> None:
    swarm = build_swarm(attack=Forges(), task=Numbers(), **SENDER)
    rows = swarm.round(1).rows
    assert [remembered(sorted(rows, key=lambda row: (row.group, row.place)), swarm.seed)] == swarm.history


def test_an_attacker_that_queries_the_defense_is_scored_by_its_own_answers(build_swarm: Build) -> None:
    class Unrewarded(Looks):
        """Drops what earns nothing."""

        def inspect(self, view: DefenderView) -> Sequence[Verdict]:
            return [Verdict() if each.reward else Verdict("drop") for each in view.completions]

    asking = Forges(queries=1)
    through = build_swarm(attack=asking, task=Numbers(), defense=Unrewarded(), **SENDER).round(1).rows
    assert any(row.payload for row in through), "in a trial too, the group is scored by the answer that comes with it"
    stopped = build_swarm(attack=asking, task=Numbers(), defense=PublicItems(), **SENDER).round(1).rows
    assert not any(row.payload for row in stopped)


def test_only_a_vertical_swarm_has_senders_answers() -> None:
    with pytest.raises(SpecError, match="truth: sender needs the vertical topology"):
        SwarmSpec(truth="sender")
    with pytest.raises(SpecError, match="truth must be public or sender, got 'mine'"):
        SwarmSpec(truth="mine")  # type: ignore[arg-type]


def test_who_needs_senders_answers_says_so(build_swarm: Build) -> None:
    with pytest.raises(SpecError, match=r"the attack forges sends its own answers and tests.*set truth: sender"):
        build_swarm(attack=Forges(), task=Numbers(), topology="vertical")
    with pytest.raises(SpecError, match=r"the defense public_items compares the answers and tests.*set truth: sender"):
        build_swarm(defense=PublicItems())


def test_claims_of_answers_are_ignored_where_every_node_knows_them(build_swarm: Build) -> None:
    class Claims(Text):
        def poison(self, view: AttackerView) -> Sequence[Poison]:
            return [Keyed("so = z", answer_key=AnswerKey("z")) for _ in view.slots]

    rows = build_swarm(attack=Claims("hail to all", "start"), topology="vertical").round(1).rows
    assert all(row.answer_key is None for row in rows)


def test_an_item_with_another_answer_is_another_item() -> None:
    item = Item("one", "1 + 1?", "2", "so", "tests")
    assert scored_item(item, None) is item
    assert scored_item(item, AnswerKey("2", "tests")) is item
    ids = {scored_item(item, key).id for key in (AnswerKey("3", "tests"), AnswerKey("2"), AnswerKey("2t", "ests"))}
    assert len(ids | {item.id}) == 4, "rewards are kept by id, so other answers and tests have another id"
    assert scored_item(item, AnswerKey("3", "t")).question == item.question


@pytest.mark.parametrize("sent", [(None, ""), (3, ""), ("3", b""), ("\udfff", ""), ("x" * MOST_CHARACTERS, "x")])
def test_what_is_no_bounded_text_is_not_read(sent: tuple[object, object]) -> None:
    assert readable(*sent) is None
    assert readable("3", "x" * (MOST_CHARACTERS - 1)) == AnswerKey("3", "x" * (MOST_CHARACTERS - 1))
