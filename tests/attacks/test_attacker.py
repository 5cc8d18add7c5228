"""What the engine grants an attacker: a copy of the policy that measures what honest nodes do and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch

from thiefbench.attacks.base import DefenseAnswer, QueryBudgetError, Slot, Submission
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Verdict
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.views.attacker import AttackerPolicy, DefenseQueries, SlotKey, answered
from thiefbench.tasks.base import Completion, Item, Sampling, Task

SAMPLING = Sampling(top_k=12, max_new_tokens=16)


@pytest.fixture
def items(vowels: Task) -> list[Item]:
    return [Item.from_row(row) for row in vowels.items("train")][:3]


@pytest.fixture
def own(policy: Policy, vowels: Task) -> AttackerPolicy:
    return AttackerPolicy(policy, vowels, SAMPLING, (1, 2))


def test_samples_are_inside_the_support_and_have_the_probability_they_are_said_to_have(
    own: AttackerPolicy, policy: Policy, items: list[Item], vowels: Task
) -> None:
    drawn = own.sample(items, 4)
    assert [len(row) for row in drawn] == [4, 4, 4]
    rows = [(item, (*made.ids, own.eos)) for item, row in zip(items, drawn, strict=True) for made in row if made.ended]
    assert rows
    inside = own.in_support([item for item, _ in rows], [ids for _, ids in rows])
    assert all(all(row) for row in inside)
    measured = own.token_logprobs([item for item, _ in rows], [ids for _, ids in rows])
    item, ids = rows[-1]
    prompt = policy.prompt_ids(vowels.messages(item))
    with torch.no_grad():
        logits = policy.model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]
    torch.testing.assert_close(torch.tensor(measured[-1]), expected, atol=1e-4, rtol=1e-4)


def test_a_token_outside_the_support_is_seen(
    own: AttackerPolicy, policy: Policy, items: list[Item], vowels: Task
) -> None:
    prompt = policy.prompt_ids(vowels.messages(items[0]))
    with torch.no_grad():
        order = policy.model(torch.tensor([prompt])).logits[0, -1].argsort(descending=True).tolist()
    assert own.in_support([items[0]] * 2, [[order[0]], [order[12 + 5]]]) == [[True], [False]]


def test_continuations_begin_with_their_prefix_and_keep_the_limit(own: AttackerPolicy, items: list[Item]) -> None:
    prefixes = [own.encode("a" * 14), own.encode("b"), ()]
    draws = own.sample_after(items, prefixes, 8)
    for prefix, row in zip(prefixes, draws, strict=True):
        assert len(row) == 8
        for done in row:
            assert done.ids[: len(prefix)] == tuple(prefix)
            assert len(done.ids) + done.ended <= SAMPLING.max_new_tokens
            assert done.ended or len(done.ids) == SAMPLING.max_new_tokens
            assert own.decode(done.ids) == done.text
    assert any(done.ended for row in draws for done in row)
    assert own.sample_after([], [], 3) == []
    for bad in ((own.eos,), (5,) * 16):
        with pytest.raises(ValueError, match="a prefix has fewer than 16 tokens and no EOS"):
            own.sample_after(items[:1], [bad], 1)


def test_draws_differ_from_call_to_call_and_repeat_with_the_key(
    own: AttackerPolicy, policy: Policy, vowels: Task, items: list[Item]
) -> None:
    first, second = own.sample(items, 4), own.sample(items, 4)
    assert first != second
    again = AttackerPolicy(policy, vowels, SAMPLING, (1, 2))
    assert again.sample(items, 4) == first


def test_a_taught_copy_says_what_it_learned_and_the_shared_weights_stay(
    own: AttackerPolicy, policy: Policy, items: list[Item]
) -> None:
    before = {name: weight.clone() for name, weight in policy.weights().items()}
    lessons = [(item, "owl") for item in items]
    ids = [(*own.encode("owl"), own.eos)] * 3
    copy = own.taught(lessons, steps=20, learning_rate=0.01)
    untaught, taught = (sum(map(sum, who.token_logprobs(items, ids))) for who in (own, copy))
    assert taught > untaught + 10, "the examples became probable"
    assert all(torch.equal(weight, before[name]) for name, weight in policy.weights().items())
    assert all(weight.grad is None for weight in policy.weights().values())
    again = AttackerPolicy(own._policy, own._task, SAMPLING, (1, 2)).taught(lessons, steps=20, learning_rate=0.01)
    assert again.sample(items, 2) == copy.sample(items, 2), "equal lessons give equal copies"
    with pytest.raises(ValueError, match="at least one example"):
        own.taught([], 1, 0.1)


def test_a_bfloat16_copy_learns_in_small_steps(vowels: Task, items: list[Item], load_policy) -> None:  # type: ignore[no-untyped-def]
    own = AttackerPolicy(load_policy(dtype="bfloat16"), vowels, SAMPLING, (1,))
    copy = own.taught([(items[0], "owl")], steps=3, learning_rate=1e-3)
    ids = [(*own.encode("owl"), own.eos)]
    assert sum(copy.token_logprobs(items[:1], ids)[0]) > sum(own.token_logprobs(items[:1], ids)[0])
    assert str(copy._policy.model.dtype) == "torch.bfloat16"


class Remembers(Defense):
    """Accepts each text once."""

    name = "remembers"

    def __init__(self) -> None:
        self.seen: list[Submission] = []

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        raise NotImplementedError

    def ask(self, submission: Submission) -> Verdict:
        known = submission in self.seen
        self.seen.append(submission)
        return Verdict("zero") if known else ACCEPT


def trial(defense: Defense, submissions: Mapping[SlotKey, Submission]) -> dict[SlotKey, DefenseAnswer]:
    assert isinstance(defense, Remembers)
    accepted = {place: defense.ask(submission).action == "accept" for place, submission in submissions.items()}
    return {place: DefenseAnswer(accepted[place], str(submission), "") for place, submission in submissions.items()}


def test_questions_are_counted_per_slot_and_leave_the_defense_as_it_was(items: list[Item]) -> None:
    defense = Remembers()
    queries = DefenseQueries(defense, trial, budget=2)
    one, two = (Slot(items[0], 3, 0, index) for index in range(2))
    assert queries.accepts({one: "a", two: "a"}) == {one: True, two: False}, "the trial pool contains both submissions"
    changed = replace(one, item=replace(items[0], solution="another"))
    assert queries.accepts({changed: "a"}) == {changed: True}, "each query starts from the same state of the defense"
    assert defense.seen == []
    with pytest.raises(QueryBudgetError, match=r"\(3, 0, 0\) has used up its 2 queries"):
        queries.accepts({two: "b", one: "b"})
    assert queries.accepts({two: "b"}) == {two: True}, "a refused call costs nothing"
    with pytest.raises(QueryBudgetError):
        queries.answers({two: "b"})


def test_an_answer_says_what_would_be_learned_from(policy: Policy) -> None:
    ids = policy.encode("one two three")
    assert len(ids) > 2
    completion = Completion(tuple(ids), policy.decode([ids])[0], ended=True)
    assert answered(ACCEPT, completion, policy) == DefenseAnswer(True, completion.text, completion.text)
    assert answered(Verdict("drop"), completion, policy) == DefenseAnswer(False, completion.text, "")
    weights = (0.49, *[0.5] * (len(ids) - 1), 0.0)
    masked = answered(Verdict("accept", token_weights=weights), completion, policy)
    assert masked == DefenseAnswer(True, completion.text, policy.decode([ids[1:]])[0])
    assert answered(Verdict("accept", token_weights=(0.0,) * len(weights)), completion, policy) == DefenseAnswer(
        True, completion.text, ""
    )
