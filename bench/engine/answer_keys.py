"""The answers and tests that arrive with the work, where receivers score by them (`SwarmSpec.truth`).

A group's answer key comes from the one node that answers it, and what it says is hostile input: checked, bounded, and
refused by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from thiefbench.attacks.answer_keys import Keyed
from thiefbench.attacks.base import Submission
from thiefbench.defenses.answer_keys import KeyedCompletion, key_of
from thiefbench.defenses.base import ItemFacts, PoolCompletion
from thiefbench.engine.transport import Offer, Received
from thiefbench.tasks.answer_keys import AnswerKey, answer_key_fault, keyed_rewards, wrong
from thiefbench.tasks.base import Completion, Item, Task

MOST_CHARACTERS = 16_384
"""Most characters of an answer and its tests together."""
UNREADABLE = "its answer and tests are missing or cannot be read"


def readable(answer: object, tests: object) -> AnswerKey | None:
    """An answer key as it arrived; None if it is not text, is too long, or has no UTF-8."""
    if type(answer) is not str or type(tests) is not str or len(answer) + len(tests) > MOST_CHARACTERS:
        return None
    try:
        (answer + tests).encode()
    except UnicodeEncodeError:
        return None
    return AnswerKey(answer, tests)


def claimed_key(submission: Submission) -> AnswerKey | None:
    """The answer key that a malicious node sends along with a submission; None for the item's own."""
    return submission.answer_key if isinstance(submission, Keyed) else None


def with_key(completion: PoolCompletion, key: AnswerKey | None) -> PoolCompletion:
    """A completion as defenses see it where answers and tests arrive with the work."""
    shown = {field.name: getattr(completion, field.name) for field in fields(PoolCompletion)}
    return KeyedCompletion(**shown, answer_key=key)


def with_answer_keys(items: Sequence[Item], offers: Sequence[Offer]) -> list[Offer]:
    """Offers with the answer key that their sender sends with their group.

    It is the first that the group's offers claim, and the item's own if they claim none.

    Args:
        items: of every group.
        offers: all offers of the groups that they are of.
    """
    claimed: dict[int, AnswerKey] = {}
    for offer in offers:
        if offer.answer_key is not None:
            claimed.setdefault(offer.group, offer.answer_key)
    own = {offer.group: AnswerKey.of(items[offer.group]) for offer in offers}
    return [replace(offer, answer_key=claimed.get(offer.group, own[offer.group])) for offer in offers]


def with_checked_keys(
    task: Task, items: Sequence[Item], offers: Sequence[Offer], received: Sequence[Received]
) -> list[Received]:
    """Received completions with their answer keys; those by whose key nothing can be scored are refused.

    Where there is no readable key, or nothing else could be read, the completion is empty and has no key.

    Args:
        task: decides whether it can score by a key.
        items: of every group.
        offers: the offers as they were sent.
        received: each of them after the receiver's other checks.
    """
    checked = []
    for offer, arrival in zip(offers, received, strict=True):
        sent = offer.answer_key if arrival.completion.ids or arrival.completion.ended else None
        key = None if sent is None else readable(sent.answer, sent.tests)
        if key is None:
            checked.append(
                replace(arrival, completion=Completion((), "", False), refused=arrival.refused or UNREADABLE)
            )
            continue
        item = items[offer.group]
        fault = "" if key == AnswerKey.of(item) else answer_key_fault(task, item, key)
        checked.append(replace(arrival, answer_key=key, refused=arrival.refused or fault))
    return checked


def scored_item(item: Item, key: AnswerKey | None) -> Item:
    """The item by which a completion is scored: the item itself, or one with another answer key and another id."""
    if key is None or key == AnswerKey.of(item):
        return item
    return replace(key.put_into(item), id=f"{item.id} by {_digest(key)}")


def scored_id(item_id: str, key: AnswerKey | None, items: Mapping[str, Item]) -> str:
    """The id of the item by which a recorded completion was scored, with the answer key that came with it, if any."""
    return item_id if key is None or item_id not in items else scored_item(items[item_id], key).id


def stated_facts(items: Sequence[Item], offered: Sequence[PoolCompletion]) -> dict[str, ItemFacts]:
    """What a receiver knows of items: the question, and the answer that came with the item's first group."""
    answers: dict[str, str] = {}
    for completion in offered:
        key = key_of(completion)
        if key is not None:
            answers.setdefault(completion.item_id, key.answer)
    return {item.id: ItemFacts(item.question, answers.get(item.id, "")) for item in items}


class PublishedItems:
    """The published items of a round (`thiefbench.defenses.answer_keys.PublicSet`).

    Args:
        task: scores completions; programs run in the sandbox.
        items: of the round.
    """

    def __init__(self, task: Task, items: Sequence[Item]) -> None:
        self._task, self._items = task, {item.id: item for item in items}

    def answer_key(self, item_id: str) -> AnswerKey | None:
        """An item's published answer and tests."""
        item = self._items.get(item_id)
        return None if item is None else AnswerKey.of(item)

    def right(self, item_id: str) -> str:
        """The oracle's completion."""
        return self._task.oracle(self._items[item_id])

    def wrong(self, item_id: str) -> str:
        """A completion in the right format that earns nothing."""
        return wrong(self._task, self._items[item_id])

    def rewards(self, item_id: str, key: AnswerKey, texts: Sequence[str]) -> list[float]:
        """The task's rewards by an answer key; all 0 if nothing can be scored by it."""
        item = self._items[item_id]
        if key != AnswerKey.of(item) and answer_key_fault(self._task, item, key):
            return [0.0] * len(texts)
        return keyed_rewards(self._task, [scored_item(item, key)] * len(texts), texts)


def _digest(key: AnswerKey) -> str:
    text = f"{len(key.answer)} {key.answer}{key.tests}"
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()
