"""The rules for every task, as a test class."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import ClassVar

import pytest

from thiefbench.tasks.answer_keys import AnswerKey, answer_key_fault, wrong
from thiefbench.tasks.base import Item, Split, Task, TaskError
from thiefbench.tasks.sandbox import SandboxUnavailable
from thiefbench.testing.contracts.subjects import made

SPLITS: tuple[Split, Split] = ("train", "test")
COLUMNS = {"id", "question", "answer", "solution", "tests"}
HOSTILE = (
    "",
    "gibberish qx zrt 17 blorp",
    " \t\r\n",
    "\x00\x01\x1b[2J\x7f",
    "\ud800\udfff",
    "\u202e\u200b\ufeff\uff17",
    "9" * 100_000,
    "<think>" * 20_000,
    "<" * 100_000,
    "((((" * 20_000,
    "<think> x </think><answer>" + " 1 +" * 20_000 + " </answer>",
    "<think> x </think><answer> 1/0 </answer>",
    "<think> x </think><answer> \\frac{1}{0} </answer>",
    "<think> x </think><answer> 1e999999999 </answer>",
    "<think> x </think><answer> \\sqrt{" + "(" * 50 + " </answer>",
    "```python\nwhile True: pass\n```",
    "import os; os._exit(0)",
    "<code>" * 20_000,
    "<code> </code>",
    "<code>\nthis is no program\n</code>",
    "<code>\nprint(" + "(" * 5_000 + "\n</code>",
    "<code>\nprint('\ud800')\n</code>",
    "<code>\n\x00\n</code>",
    "<code>\nraise SystemExit\n</code>",
)


class TaskContract:
    """Subclass it as ``class TestMine(TaskContract)``; every rule is one test.

    Every item's oracle is rewarded, so give a task with many items a small size. To leave out a rule that does not
    apply to a task, set it to None.

    Attributes:
        task: a spec string, as "my_task.py:Mine(size=64)", or the class itself.
    """

    task: ClassVar[str | type[Task]]

    def make(self) -> Task:
        """A fresh task; override this if neither a spec string nor a class is enough."""
        task: Task = made(self, "task")
        return task

    def test_it_has_a_name(self) -> None:
        """The registry and reports use it."""
        task = self._subject()
        assert isinstance(task, Task), "a task derives from thiefbench.tasks.base.Task"
        assert isinstance(getattr(task, "name", None), str), "a task has a name"

    def test_it_has_the_columns(self) -> None:
        """Every split has items, and items have fields."""
        task = self._subject()
        assert task.splits, "a task has at least one split"
        for split in task.splits:
            data = task.items(split)
            assert len(data) > 0, f"the {split} split has items"
            assert set(data.column_names) >= COLUMNS, f"the {split} split has the columns {', '.join(sorted(COLUMNS))}"

    def test_a_split_it_lacks_is_refused(self) -> None:
        """It raises the error that shows the user one sentence."""
        task = self._subject()
        for split in SPLITS:
            if split not in task.splits:
                with pytest.raises(TaskError, match=split):
                    task.items(split)

    def test_items_are_deterministic(self) -> None:
        """A cell's identity contains arguments and data, so these must determine the items."""
        first, second = self._subject(), self.make()
        assert first.fingerprint() == second.fingerprint(), (
            "a task's fingerprint depends on its arguments and data alone"
        )
        for split in first.splits:
            assert _items(first, split) == _items(second, split), (
                f"the {split} items depend on arguments and data alone"
            )

    def test_ids_are_unique_over_both_splits(self) -> None:
        """Noise and records are keyed by them."""
        task = self._subject()
        ids = [item.id for split in task.splits for item in _items(task, split)]
        assert len(set(ids)) == len(ids), "an item's id is unique within the task, over both splits"

    def test_splits_share_no_question(self) -> None:
        """Held-out items were not trained on."""
        task = self._subject()
        questions = [{item.question for item in _items(task, split)} for split in task.splits]
        assert sum(map(len, questions)) == len(set.union(*questions)), "no question stands in both splits"

    def test_fields_are_filled(self) -> None:
        """Attackers need a solution to poison."""
        task = self._subject()
        for split in task.splits:
            for item in _items(task, split):
                assert item.question.strip(), f"{item.id} has a question"
                assert item.answer.strip(), f"{item.id} has an answer"
                assert item.solution.strip(), f"{item.id} has a worked solution for the oracle"

    def test_every_item_is_of_one_domain(self) -> None:
        """Reports give scores by domain, so both splits must contain every domain."""
        task = self._subject()
        known = set(task.domains) or {""}
        assert "" not in task.domains, "a domain has a name; a task with but one leaves `domains` empty"
        assert len(set(task.domains)) == len(task.domains), "no domain is listed twice"
        for split in task.splits:
            domains = {task.domain(item) for item in _items(task, split)}
            assert domains <= known, (
                f"the domain of an item is one of the task's `domains`, or an empty string where it has none: {domains}"
            )
            assert domains == known, f"the {split} split holds items of every domain, not only of {domains}"

    def test_the_oracle_earns_the_full_reward(self) -> None:
        """The oracle's completion earns it on every item."""
        task = self._subject()
        for split in task.splits:
            for item in _items(task, split):
                assert _rewards(task, item, task.oracle(item)) == [1.0], f"the oracle's completion earns 1 on {item.id}"

    def test_empty_and_gibberish_earn_nothing(self) -> None:
        """They earn 0 on every item."""
        task = self._subject()
        for split in task.splits:
            for item in _items(task, split)[:200]:
                rewards = _rewards(task, item, "", " \n", "gibberish qx zrt blorp", item.question)
                assert rewards == [0.0] * 4, f"an empty string, gibberish and the bare question earn 0 on {item.id}"

    def test_the_bare_solution_and_a_neighbours_oracle_earn_nothing(self) -> None:
        """Both the format and the answer must be right."""
        task = self._subject()
        for item, other in pairwise(_items(task, task.splits[0])[:200]):
            assert _rewards(task, item, item.solution) == [0.0], f"a solution outside the format earns 0 on {item.id}"
            if item.answer != other.answer:
                assert _rewards(task, item, task.oracle(other)) == [0.0], f"another item's answer earns 0 on {item.id}"

    def test_every_completion_gets_one_reward_between_0_and_1(self) -> None:
        """Its reward does not depend on the other completions."""
        task = self._subject()
        item = _items(task, task.splits[0])[0]
        assert _rewards(task, item) == [], "no completions, no rewards"
        texts = [*HOSTILE, task.oracle(item), *HOSTILE]
        rewards = _rewards(task, item, *texts)
        assert len(rewards) == len(texts), "reward gives one number per completion"
        assert all(isinstance(reward, float) and 0 <= reward <= 1 for reward in rewards), (
            "a reward is a float in [0, 1]"
        )
        assert rewards[len(HOSTILE)] == 1.0, "a completion's reward does not depend on its neighbours"

    def test_hostile_texts_do_not_raise(self) -> None:
        """Completions are data from strangers."""
        task = self._subject()
        item = _items(task, task.splits[0])[0]
        for text in HOSTILE:
            try:
                rewards = _rewards(task, item, text)
            except Exception as error:
                raise AssertionError(f"a hostile text earns 0 and raises nothing: {text[:40]!r}") from error
            assert rewards == [0.0], f"a hostile text earns 0 and raises nothing: {text[:40]!r}"

    def test_a_wrong_completion_earns_nothing(self) -> None:
        """Answers and tests that a sender sends are tried on it."""
        task = self._subject()
        for item in _items(task, task.splits[0])[:20]:
            assert _rewards(task, item, wrong(task, item)) == [0.0], f"the wrong completion of {item.id} earns 0"

    def test_answers_and_tests_have_no_fault_unless_a_stranger_wrote_them(self) -> None:
        """In some swarms, senders send them with their work."""
        task = self._subject()
        item = _items(task, task.splits[0])[0]
        keys = [
            (item.answer, item.tests),
            *((text, text) for text in HOSTILE),
            *((item.answer, text) for text in HOSTILE),
        ]
        for answer, tests in keys:
            try:
                fault = answer_key_fault(task, item, AnswerKey(answer, tests))
            except SandboxUnavailable as error:
                pytest.skip(str(error))
            except Exception as error:
                raise AssertionError(f"hostile answers and tests raise nothing: {answer[:40]!r}") from error
            assert isinstance(fault, str), "answer_key_fault gives a clause, or an empty string"
            own = (answer, tests) == (item.answer, item.tests)
            assert not (own and fault), f"the task's own answers and tests have no fault: {fault}"

    def test_prompts_ask_and_do_not_tell(self) -> None:
        """They contain the question, but not the solution."""
        task = self._subject()
        for item in _items(task, task.splits[0])[:200]:
            messages = task.messages(item)
            assert messages, f"{item.id} is put to a model in at least one message"
            assert all(set(message) == {"role", "content"} for message in messages), (
                "a message has a role and a content"
            )
            assert messages[-1]["role"] == "user", "the last message is the user's"
            prompt = "\n".join(message["content"] for message in messages)
            assert item.question in prompt, f"the prompt of {item.id} holds its question"
            assert item.solution not in prompt, f"the prompt of {item.id} does not hold its solution"

    def test_compose_puts_the_true_answer_behind_any_reasoning(self) -> None:
        """Attacks use it to write completions."""
        task = self._subject()
        item = _items(task, task.splits[0])[0]
        text = task.compose(item, "All of this is beside the point.")
        assert "All of this is beside the point." in text, "compose keeps the reasoning it is given"
        assert _rewards(task, item, text) == [1.0], "compose adds the true answer in the task's format"

    def _subject(self) -> Task:
        """The task, made once for all rules: reading data may take a while."""
        which = (type(self), getattr(self, "task", None))
        if which not in _MADE:
            _MADE[which] = self.make()
        return _MADE[which]


_MADE: dict[tuple[type, object], Task] = {}


@cache
def _items(task: Task, split: Split) -> list[Item]:
    """All items of a split, read once."""
    return [Item.from_row(row) for row in task.items(split)]


def _rewards(task: Task, item: Item, *texts: str) -> list[float]:
    """The task's rewards; skips the test if it needs programs that this machine cannot run."""
    try:
        return list(task.reward(item, texts))
    except SandboxUnavailable as error:
        return pytest.skip(str(error))
