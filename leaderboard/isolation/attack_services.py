"""The answers to an isolated attack's questions: from the task, its copy of the policy, and the defense it may query.

They are what the real view grants, counted for the cost that an attack's entry states, and limited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from thiefbench.attacks.base import AttackerView, ChoiceView, QueryBudgetError, Sampler, ThreatModel
from thiefbench.engine.answer_keys import MOST_CHARACTERS
from thiefbench.engine.views.attacker import AttackerPolicy
from thiefbench.leaderboard.isolation import attack_wire as wire
from thiefbench.leaderboard.isolation.answer_time import AnswerTime
from thiefbench.leaderboard.isolation.frames import packed
from thiefbench.leaderboard.isolation.limits import POOL, Caps
from thiefbench.leaderboard.isolation.wire import Malformed, number_in, shown
from thiefbench.tasks.answer_keys import AnswerKey, answer_key_fault
from thiefbench.tasks.base import Ask, Completion, Item, Split, Task

MOST_TASK_QUESTIONS = 50_000
"""Questions to the task in one round: composing a text is one."""
MOST_ROWS = 8192
"""Completions of one question."""
MOST_COPIES = 8
"""Copies of the policy that an attack may teach in one round."""
MOST_STEPS = 200
"""Steps of teaching one."""
_NUMBER = re.compile(r"-?\d{1,40}(\.\d{1,40})?")


@dataclass
class Cost:
    """What an attack used in one round, or in one exchange of weights.

    Attributes:
        sent: submissions with the payload; vectors; of a stage, whether it added to its weights, and the passes in
            which it sent something other than what it computed.
        queries: submissions about which it asked the defense.
        samples: completions that it had its copy of the policy draw.
        scored: completions whose tokens it had its copy measure.
        steps: of teaching copies.
    """

    sent: int = 0
    queries: int = 0
    samples: int = 0
    scored: int = 0
    steps: int = 0


class TaskAnswers:
    """Questions about the task and the items of a view.

    Args:
        task: the real one.
        items: those that the attack may ask about.
        caps: the limits.
        factor: by which limits grow with the number of slots.
        oracle: whether the items of whole splits come with their solutions.
    """

    def __init__(
        self, task: Task, items: Sequence[Item], caps: Caps, factor: float = 1.0, oracle: bool = False
    ) -> None:
        self._task, self._items, self._caps, self._factor, self._oracle = task, items, caps, factor, oracle
        self._asked, self._time = 0, AnswerTime(caps.service_seconds * factor, "a round")

    def answer(self, question: Mapping[str, Any]) -> list[bytes]:
        """The answer to a question, as a message, or a refusal that says why there is none.

        Raises:
            Malformed: the question is invalid, or one too many. Errors of the engine are passed on.
        """
        self._asked += 1
        if self._asked > MOST_TASK_QUESTIONS * self._factor:
            raise Malformed(f"more than {MOST_TASK_QUESTIONS * self._factor:,.0f} questions in a round")
        try:
            with self._time.counted():
                message = self._message(str(shown(question.get("ask"))), question)
        except (ValueError, QueryBudgetError) as error:
            if isinstance(error, Malformed):
                raise
            return packed({"refused": str(error)[:300], "as": type(error).__name__})
        if (size := sum(map(len, message))) > self._caps.answer:
            return packed({"refused": f"an answer of {size:,} bytes, and at most {self._caps.answer:,} are allowed"})
        return message

    def _message(self, what: str, question: Mapping[str, Any]) -> list[bytes]:
        """An answer as a message; `what` is asked."""
        return packed(self._answered(what, question))

    def _answered(self, what: str, question: Mapping[str, Any]) -> dict[str, Any]:
        if what in ("compose", "oracle", "messages", "reward", "domain"):
            item = self._item(question.get("item"))
            if what == "compose":
                return {"text": self._task.compose(item, wire.text_in(question.get("text")))}
            if what == "reward":
                texts = [wire.text_in(text) for text in _listed(question.get("texts"))]
                return {"rewards": self._task.reward(item, texts) if texts else []}
            if what == "messages":
                return {"messages": self._task.messages(item)}
            return {"text": self._task.oracle(item) if what == "oracle" else self._task.domain(item)}
        if what == "items" and question.get("split") in self._task.splits:
            return {"items": _all_items(self._task, question["split"], self._oracle)}
        raise Malformed(f"an unknown question, {what!r}")

    def _item(self, data: Any) -> Item:
        """The item that a question is about, with what the attack wrote into it, as it may in process.

        Raises:
            Malformed: it is not of this round.
            ValueError: the task can score nothing by the answer that the attack wrote.
        """
        written = data if isinstance(data, list) and len(data) == 3 else [data]
        place = written[0]
        if type(place) is not int or not 0 <= place < len(self._items):
            raise Malformed("a question about an item that is not of this round")
        item = self._items[place]
        if written is not data:
            return item
        answer, solution = wire.text_in(data[1]), wire.text_in(data[2])
        if answer != item.answer and (fault := self._fault_of(answer, item)):
            raise ValueError(f"the answer that the attack wrote into {item.id!r} cannot be used: {fault}")
        return replace(item, answer=answer, solution=solution)

    def _fault_of(self, answer: str, item: Item) -> str:
        """Why no text is composed or rewarded by an answer that the attack wrote; empty if it can be."""
        if len(answer) > MOST_CHARACTERS:
            return f"it has more than {MOST_CHARACTERS:,} characters"
        if _NUMBER.fullmatch(item.answer):  # to compare closed forms with others may take minutes
            return "" if _NUMBER.fullmatch(answer) else "it is not a plain number"
        # Not through its cache, which would keep thousands of an attack's texts.
        return str(answer_key_fault.__wrapped__(self._task, item, AnswerKey(answer, item.tests)))


class ViewAnswers(TaskAnswers):
    """Questions during a round: about the task, to the copy of the policy, to the defense.

    Attributes:
        asked_of, period: to whom costly questions are put, and when, for messages.

    Args:
        view: the real one.
        items: of its slots, each once, and the attack's probes.
        caps: the limits.
        cost: counts what is used.
        owed: completions; by these, limits grow.
        oracle: whether the items of whole splits come with their solutions.
    """

    asked_of: ClassVar[str] = "policy and defense"
    period: ClassVar[str] = "a round"

    def __init__(
        self, view: AttackerView, items: Sequence[Item], caps: Caps, cost: Cost, owed: int, oracle: bool
    ) -> None:
        super().__init__(view.task, items, caps, max(1.0, owed / POOL), oracle)
        self._view, self._cost, self._costly = view, cost, 0
        self._samplers: list[Sampler] = [] if view.policy is None else [view.policy]
        self._asks: dict[str, Callable[[Sampler, Mapping[str, Any]], dict[str, Any]]] = {
            "encode": self._encode, "decode": self._decode, "sample": self._sample, "sample_after": self._after,
            "sample_seeded": self._seeded, "sample_near": self._near, "in_support": self._measured,
            "token_logprobs": self._measured, "taught": self._taught,
        }  # fmt: skip

    def _answered(self, what: str, question: Mapping[str, Any]) -> dict[str, Any]:
        if what in self._asks:
            if what not in ("encode", "decode"):
                self._count()
            return self._asks[what](self._sampler(question), question)
        if what == "defense":
            self._count()
            return self._queried(question)
        return super()._answered(what, question)

    def _sampler(self, question: Mapping[str, Any]) -> Sampler:
        """The copy of the policy that a question is about."""
        number = question.get("sampler")
        if type(number) is not int or not 0 <= number < len(self._samplers):
            raise Malformed("a question to a policy that it is not granted")
        return self._samplers[number]

    def _count(self) -> None:
        self._costly += 1
        if self._costly > (most := self._caps.questions * self._factor):
            raise Malformed(
                f"more than {most:.0f} questions to {self.asked_of} in {self.period}; ask about many things at once"
            )

    def _queried(self, question: Mapping[str, Any]) -> dict[str, Any]:
        if self._view.defense is None:
            raise Malformed("a question to the defense, which it is not granted")
        submissions = {}
        for each in _listed(question.get("submissions")):
            if not isinstance(each, list) or len(each) != 2 or type(each[0]) is not int:
                raise Malformed("a query that is not a slot and a submission")
            if not 0 <= each[0] < len(self._view.slots):
                raise Malformed("a query for a slot that is not of this round")
            submissions[self._view.slots[each[0]]] = wire.submission_in(each[1])
        if not submissions:
            return {"answers": []}
        verdicts = self._view.defense.answers(submissions)
        self._cost.queries += len(submissions)
        answers = [verdicts[slot] for slot in submissions]
        return {"answers": [[each.accepted, each.text, each.learned] for each in answers]}

    # Of the policy.

    def _encode(self, sampler: Sampler, question: Mapping[str, Any]) -> dict[str, Any]:
        return {"ids": list(sampler.encode(wire.text_in(question.get("text"))))}

    def _decode(self, sampler: Sampler, question: Mapping[str, Any]) -> dict[str, Any]:
        return {"text": sampler.decode(wire.ids_in(question.get("ids"), _vocabulary(sampler)))}

    def _sample(self, sampler: Sampler, question: Mapping[str, Any]) -> dict[str, Any]:
        items, count = self._each(question, "count")
        return self._drawn(sampler.sample(items, count) if items else [])

    def _after(self, sampler: Sampler, question: Mapping[str, Any]) -> dict[str, Any]:
        items, count = self._each(question, "count")
        prefixes = self._tokens(sampler, question.get("prefixes"), len(items))
        return self._drawn(sampler.sample_after(items, prefixes, count))

    def _seeded(self, sampler: Sampler, question: Mapping[str, Any]) -> dict[str, Any]:
        items, _ = self._each(question, "")
        return self._drawn([sampler.sample_seeded(items, self._seeds(question, len(items))) if items else []])

    def _near(self, sampler: Sampler, question: Mapping[str, Any]) -> dict[str, Any]:
        items, count = self._each(question, "count")
        tolerance = float(number_in(question.get("tolerance"), "tolerance", 0, 1e6))
        drawn = sampler.sample_near(items, self._seeds(question, len(items)), tolerance, count) if items else []
        return self._drawn(drawn)

    def _measured(self, sampler: Sampler, question: Mapping[str, Any]) -> dict[str, Any]:
        items, _ = self._each(question, "")
        rows = self._tokens(sampler, question.get("rows"), len(items))
        self._cost.scored += len(rows)
        if not items:
            return {"measured": []}
        if question["ask"] == "in_support":
            return {"measured": sampler.in_support(items, rows)}
        return {"measured": sampler.token_logprobs(items, rows)}

    def _taught(self, sampler: Sampler, question: Mapping[str, Any]) -> dict[str, Any]:
        if len(self._samplers) > MOST_COPIES:
            raise Malformed(f"more than {MOST_COPIES} copies of the policy taught in {self.period}")
        examples, steps, rate = self._lesson(question, MOST_STEPS)
        self._samplers.append(sampler.taught(examples, steps, rate))
        self._cost.steps += steps
        return {"number": len(self._samplers) - 1}

    def _lesson(self, question: Mapping[str, Any], most: int) -> tuple[list[tuple[Item, str]], int, float]:
        """Examples, steps (at most `most`) and learning rate of a question that teaches."""
        examples = []
        for each in _listed(question.get("examples"), wire.MOST_LESSONS):
            if not isinstance(each, list) or len(each) != 2:
                raise Malformed("an example that is not an item and a text")
            examples.append((self._item(each[0]), wire.text_in(each[1])))
        steps: int = number_in(question.get("steps"), "steps", 1, most, int)
        return examples, steps, float(number_in(question.get("learning_rate"), "the learning rate", 0, 1))

    def _each(self, question: Mapping[str, Any], count: str) -> tuple[list[Item], int]:
        """The items of a question, and how many completions of each are wanted."""
        items = [self._item(each) for each in _listed(question.get("items"))]
        number: int = number_in(question.get(count), count, 1, MOST_ROWS, int) if count else 1
        if len(items) * number > MOST_ROWS:
            raise Malformed(f"a question about {len(items) * number:,} completions, of at most {MOST_ROWS:,}")
        return items, number

    def _drawn(self, rows: Sequence[Sequence[Completion]]) -> dict[str, Any]:
        self._cost.samples += sum(map(len, rows))
        return {"rows": [[wire.completion_out(each) for each in row] for row in rows]}

    def _tokens(self, sampler: Sampler, data: Any, count: int) -> list[tuple[int, ...]]:
        rows = _listed(data)
        if len(rows) != count:
            raise Malformed(f"{len(rows)} rows of token ids for {count} items")
        return [wire.ids_in(row, _vocabulary(sampler), sampler.limit) for row in rows]

    def _seeds(self, question: Mapping[str, Any], count: int) -> list[int]:
        seeds = [number_in(each, "a seed", -(2**63), 2**63 - 1, int) for each in _listed(question.get("seeds"))]
        if len(seeds) != count:
            raise Malformed(f"{len(seeds)} seeds for {count} items")
        return seeds


class ChoiceAnswers(ViewAnswers):
    """Questions while a node picks its items: about the task, to the copy of the policy, and for seeds.

    Args:
        view: the real one.
        items: to pick from.
        caps: the limits, which grow with the completions that the node owes.
        cost: counts what is used.
        threat: what the attack is granted.
    """

    def __init__(self, view: ChoiceView, items: Sequence[Item], caps: Caps, cost: Cost, threat: ThreatModel) -> None:
        asked = AttackerView(0, (), view.task, view.rng, view.policy)
        super().__init__(asked, items, caps, cost, view.count * view.group, threat.oracle)
        self._choice, self._threat = view, threat

    def _answered(self, what: str, question: Mapping[str, Any]) -> dict[str, Any]:
        if what != "seed":
            return super()._answered(what, question)
        if not self._threat.beacon:
            raise Malformed("a question for a seed, and it is not granted the beacon")
        position: int = number_in(question.get("position"), "a position", 0, self._choice.count - 1, int)
        sample: int = number_in(question.get("sample"), "a sample", 0, self._choice.group - 1, int)
        return {"seed": self._choice.seed(self._item(question.get("item")), position, sample)}


class OutcomeAnswers:
    """Questions while a completion is judged: the task's reward of texts on its item.

    Args:
        ask: the engine's.
        item: that is judged.
        caps: the limits.
        time: of the answers to this attack's judging process, whatever it judges.
    """

    def __init__(self, ask: Ask, item: Item, caps: Caps, time: AnswerTime) -> None:
        self._ask, self._item, self._caps, self._time, self._asked = ask, item, caps, time, 0

    def answer(self, question: Mapping[str, Any]) -> list[bytes]:
        """The reward; raises Malformed for any other question, or one too many."""
        self._asked += 1
        if question.get("ask") != "reward" or self._asked > self._caps.questions:
            raise Malformed(f"an unknown question, {shown(question.get('ask'))!r}, or more than {self._caps.questions}")
        with self._time.counted():
            return packed({"reward": self._ask.reward(self._item, wire.text_in(question.get("text")))})


@lru_cache(maxsize=8)
def _all_items(task: Task, split: Split, solutions: bool) -> list[list[str]]:
    """The items of a split, without their solutions unless an oracle is granted."""
    items = (Item.from_row(row) for row in task.items(split))
    return [wire.item_out(item if solutions else replace(item, solution="")) for item in items]


def _listed(data: Any, most: int = MOST_ROWS) -> list[Any]:
    if not isinstance(data, list) or len(data) > most:
        raise Malformed(f"something other than a list of at most {most:,}")
    return data


def _vocabulary(sampler: Sampler) -> int:
    assert isinstance(sampler, AttackerPolicy), "the engine's"
    return sampler.policy.vocabulary
