"""Carriers (the policy's own right completions with a payload put in) and decoys (its wrong completions)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from thiefbench.attacks.base import Attack, AttackerView, Decoy, Slot
from thiefbench.attacks.completions import TaskRewards, body, completion_ids, correct, submission_ids
from thiefbench.tasks.base import Completion, Item

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Rewriting:
    """One of the policy's right completions with a payload put into it. Token ids are without EOS.

    Attributes:
        item: what it answers.
        clean: the completion as the policy drew it.
        ids: the same with the payload.
        begin, end: `ids[begin:end]` is the inserted payload.
        form: the number of the form that inserted it, from 0.
    """

    item: Item
    clean: tuple[int, ...]
    ids: tuple[int, ...]
    begin: int
    end: int
    form: int


def rewritings(
    view: AttackerView, forms: Iterable[Attack], items: Sequence[Item], drawn: Sequence[Sequence[Completion]]
) -> Iterator[Rewriting]:
    """The right completions among `drawn`, with a payload that fits within the length limit.

    The text after the payload may exceed the limit; see `whole_rewritings`.

    Args:
        view: of the round; it grants a policy.
        forms: attacks that put the payload in, each into every completion, which they receive as the item's solution.
        items: that are answered.
        drawn: for each item completions of the policy.
    """
    assert view.policy is not None, "the threat model grants a policy"
    forms = list(forms)
    for item, completions in zip(items, drawn, strict=True):
        for carrier in correct(view.task, item, completions):
            rewritable = replace(item, solution=(body(carrier.text) or "").strip())
            clean = view.policy.encode(view.task.compose(rewritable, rewritable.solution))
            for number, form in enumerate(forms):
                (submission,) = form.poison(replace(view, slots=(Slot(rewritable, 0, 0, 0),)))
                ids = () if submission is None else submission_ids(view.policy, submission)
                begin = common(clean, ids)
                end = len(ids) - common(clean[begin:][::-1], ids[begin:][::-1])
                if begin < end < view.policy.limit:
                    yield Rewriting(item, clean, ids, begin, end, number)


def whole_rewritings(
    view: AttackerView, forms: Iterable[Attack], items: Sequence[Item], drawn: Sequence[Sequence[Completion]]
) -> list[Rewriting]:
    """The `rewritings` that can be sent unchanged, because they fit within the length limit with EOS."""
    assert view.policy is not None, "the threat model grants a policy"
    limit = view.policy.limit
    return [rewriting for rewriting in rewritings(view, forms, items, drawn) if len(rewriting.ids) < limit]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two rows have in common at their start."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def decoys(
    view: AttackerView, attack: Attack, items: Sequence[Item], drawn: Sequence[Sequence[Completion]], wanted: int
) -> list[list[Decoy]]:
    """For each item, wrong answers that look like an honest node's, best for the attack first.

    They are the policy's own wrong completions, in ascending order of the attack's outcome, because the models unlearn
    decoys: an attack on length uses the shortest ones first. If there are fewer than wanted, right completions follow
    in which the last number is replaced by another one that the sampler could have drawn.

    Args:
        view: of the round; it grants a policy.
        attack: its outcome orders them; a completion on which it succeeds (an outcome of 1) is not a decoy.
        items: that are answered.
        drawn: for each item completions of the policy.
        wanted: how many an item needs.
    """
    assert view.policy is not None, "the threat model grants a policy"
    ask = TaskRewards(view.task)
    ready: list[list[Decoy]] = []
    altered: list[tuple[int, tuple[int, ...]]] = []
    for number, (item, completions) in enumerate(zip(items, drawn, strict=True)):
        rewards = view.task.reward(item, [completion.text for completion in completions])
        wrong: dict[tuple[int, ...], float] = {}
        for completion, reward in zip(completions, rewards, strict=True):
            outcome = attack.outcome(item, completion, ask)
            if completion.ended and reward == 0 and outcome != 1:
                wrong[completion_ids(view.policy, completion)] = float("inf") if outcome is None else outcome
        ready.append([Decoy(ids) for ids in sorted(wrong, key=wrong.__getitem__)])
        if len(wrong) >= wanted:
            continue
        right = (completion for completion, reward in zip(completions, rewards, strict=True) if reward == 1)
        texts = dict.fromkeys(text for completion in right for text in _other_numbers(completion.text))
        unrewarded = zip(texts, view.task.reward(item, list(texts)), strict=True)
        altered += [
            (number, (*view.policy.encode(text), view.policy.eos)) for text, reward in unrewarded if reward == 0
        ]
    inside = view.policy.in_support([items[number] for number, _ in altered], [ids for _, ids in altered])
    for (number, ids), tokens in zip(altered, inside, strict=True):
        if all(tokens) and len(ids) <= view.policy.limit:
            ready[number].append(Decoy(ids))
    return ready


def _other_numbers(text: str) -> Iterator[str]:
    """The text with its last number replaced by other numbers, close ones first."""
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return
    last, stated = numbers[-1], int(numbers[-1][0])
    for other in (stated + 1, stated - 1, stated + 2, stated + 10, 2 * stated):
        if other >= 0:
            yield f"{text[: last.start()]}{other}{text[last.end() :]}"
