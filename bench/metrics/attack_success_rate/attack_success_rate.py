"""Attack success rate: how often completions do what an attack wants, as the attack itself judges them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import datasets
import evaluate
import numpy as np

from thiefbench import registry
from thiefbench.attacks.completions import TaskRewards
from thiefbench.engine.compatibility import drawn_for
from thiefbench.suite.analysis.scoring import mean_score
from thiefbench.tasks.base import Completion, Item, Task
from thiefbench.zoo.models import resolve

INPUTS = """
Args:
    predictions: completion texts.
    references: for each the item it answers, as a row of the task's items (id, question, answer, solution, tests), or
        only the item's answer, which is enough for attacks that look at the text alone.
    attack: spec string, such as 'text(phrase="All hail to the thief")'.
    task: spec string, such as "gsm_micro".
    seed: draws the part of the payload that the spec string leaves open, as a cell's seed does (default 0).
    tokenizer: a built-in model, a directory or a hub name; needed by attacks that count tokens, such as dos. Texts are
        encoded anew, which may give another length than was sampled.
Returns:
    value: mean outcome; None where no completion says anything.
    low, high: its 95 % interval over completions: Wilson for outcomes 0 and 1, bootstrap for others.
    count: how many completions the attack judged; those it has no opinion on do not count.
"""


class AttackSuccessRate(evaluate.Metric):  # type: ignore[misc]  # evaluate comes without types
    """`evaluate.load(thiefbench.metrics.path("attack_success_rate"))`."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        item = dict.fromkeys((field.name for field in fields(Item)), text)
        return evaluate.MetricInfo(
            description="Mean outcome of a poisoning attack over completions, judged by the attack itself.",
            citation="Blagoev, Ersoy and Chen, Hail to the Thief, arXiv:2511.09780",
            inputs_description=INPUTS,
            features=[datasets.Features(predictions=text, references=reference) for reference in (text, item)],
        )

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Take in completions; items may have more columns than are needed.

        Raises:
            ValueError: an item lacks a column.
        """
        super().add_batch(predictions=predictions, references=[_row(reference) for reference in references], **kwargs)

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[str | Mapping[str, Any]],
        attack: str,
        task: str,
        seed: int = 0,
        tokenizer: str | None = None,
    ) -> dict[str, float | int | None]:
        task_of_items: Task = registry.make("task", task)
        member = drawn_for(task_of_items, registry.make("attack", attack), seed)
        ask = TaskRewards(task_of_items.with_libraries(member.libraries()))
        encoder = _encoder(tokenizer)
        outcomes = [
            member.outcome(_item(reference, number), Completion(encoder(text), text, ended=True), ask)
            for number, (reference, text) in enumerate(zip(references, predictions, strict=True))
        ]
        score = mean_score(np.array([np.nan if outcome is None else outcome for outcome in outcomes], float))
        rate: dict[str, float | int | None] = score.model_dump()
        return rate


class _Unknown(tuple[int, ...]):
    """Unknown token ids: using them raises an error that says what to pass."""

    def __len__(self) -> int:
        raise ValueError("this attack counts tokens, which need a tokenizer; pass tokenizer=MODEL")

    __iter__ = __getitem__ = __len__  # type: ignore[assignment]


def _encoder(tokenizer: str | None) -> Any:
    """A function from a text to its token ids."""
    if tokenizer is None:
        return lambda text: _Unknown()
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(resolve(tokenizer), trust_remote_code=False)
    return lambda text: tuple(loaded(text, add_special_tokens=False)["input_ids"])


def _row(reference: Any) -> Any:
    """An item with exactly its own columns; anything else as it is."""
    if not isinstance(reference, Mapping):
        return reference
    needed = ("id", "question", "answer", "solution")
    missing = [name for name in needed if name not in reference]
    if missing:
        raise ValueError(f"an item has {', '.join(needed)}, and one of the references lacks {missing[0]}")
    return asdict(Item.from_row(reference))


def _item(reference: str | Mapping[str, Any], number: int) -> Item:
    return Item(str(number), "", reference, "") if isinstance(reference, str) else Item.from_row(reference)
