"""What TRL writes with `log_completions=True`: completions/completions_NNNNN.parquet, a row for each completion.

The format is that of TRL 1.16.0 (`GRPOTrainer.log` in trl/trainer/grpo_trainer.py): step, prompt and completion, which
are texts or chat messages, then a column of numbers for each reward function, then what the user logged by
`log_extra`, then advantage. A reward function that did not apply to a row has no number there. Neither which columns
are rewards nor their weights are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thiefbench.pools.rounds import FiledCompletion, FiledItem
from thiefbench.pools.schema import MalformedError
from thiefbench.rollouts import fields as of
from thiefbench.rollouts.messages import generated, written
from thiefbench.rollouts.source import Reading, Rollout, Source
from thiefbench.tasks.text import one_line

_COLUMNS = ("step", "prompt", "completion")


def _rollouts(fields: Mapping[str, Any], reading: Reading) -> list[Rollout]:
    question = _text(fields, "prompt", asked=True)
    completion = FiledCompletion(
        sender=of.label(fields, reading.sender) if reading.sender else None,
        text=_text(fields, "completion", asked=False),
        reward=_reward(fields, reading.rewards) if reading.rewards else None,
    )
    item = FiledItem(f"prompt-{of.digest(question)}", question, None)
    return [Rollout(of.integer(fields, "step"), item, completion)]


def _text(fields: Mapping[str, Any], name: str, asked: bool) -> str:
    """A text, or what is written in chat messages: all of a prompt, and of a completion what the model wrote."""
    if isinstance(fields.get(name), str):
        return of.text(fields, name)
    of.present(fields, name)
    messages = of.objects(fields, name)
    if asked:
        return "\n".join(written(message.get("content")) for message in messages)
    return "\n".join(generated(message) for message in messages if message.get("role") == "assistant")


def _reward(fields: Mapping[str, Any], columns: Sequence[str]) -> float:
    """The sum of those that apply, as TRL's own with weights of 1; TRL writes NaN where one does not."""
    applying = {name: value for name in columns if (value := fields.get(name)) is not None and value == value}
    numbers = [of.reward(value, one_line(name, 60)) for name, value in applying.items()]
    if not numbers:
        raise MalformedError("a completion that no reward function scored")
    return of.reward(sum(numbers), "the sum of its rewards")


def _reward_columns(columns: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The columns of numbers between completion and advantage."""
    names = [name for name, _ in columns]
    first = names.index("completion") + 1
    last = names.index("advantage", first) if "advantage" in names[first:] else len(names)
    return tuple(name for name, kind in columns[first:last] if kind == "number")


TRL = Source(
    name="trl",
    parquet=True,
    marks=frozenset(_COLUMNS),
    rollouts=_rollouts,
    columns=_COLUMNS,
    rewards=_reward_columns,
    senders="senders, and TRL's completions name none: only defenses that judge each text by itself can be replayed",
)
