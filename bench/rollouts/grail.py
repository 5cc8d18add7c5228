"""What a miner of grail uploads for a window: a Parquet file with a row for each rollout.

The format is that of grail 0.0.60 (commit 54d6342, `INFERENCE_SCHEMA` in grail/infrastructure/parquet_io.py): tokens
are the prompt's and the completion's, `rollout.prompt_length` and `completion_length` say where they part,
token_logprobs has one number per token or one per token of the completion, and stands for nothing before the
completion. Texts are not in the file. The seed of a group comes from the miner, so no two miners share one
(`MinerValidator` in grail/validation/miner_validator.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thiefbench.pools.rounds import FiledCompletion, FiledItem
from thiefbench.pools.schema import MalformedError
from thiefbench.rollouts import fields as of
from thiefbench.rollouts.source import Reading, Rollout, Source

_SENDER = "hotkey"


def _rollouts(fields: Mapping[str, Any], reading: Reading) -> list[Rollout]:
    sender, window = of.label(fields, reading.sender or _SENDER), of.integer(fields, "window_start")
    group = of.present(fields, "rollout_group")
    if type(group) is not int:
        raise MalformedError("rollout_group: must be a whole number")
    commit = of.inner(fields, "commit")
    tokens, rollout = of.token_ids(of.present(commit, "tokens"), "tokens"), of.inner(commit, "rollout")
    split, length = of.integer(rollout, "prompt_length"), of.integer(rollout, "completion_length")
    if split + length != len(tokens) or not length:
        raise MalformedError("prompt_length and completion_length do not add up to the tokens, or nothing is left")
    prompt, ids = tokens[:split], tuple(tokens[split:])
    log_probs = of.log_probs(of.present(rollout, "token_logprobs"), "token_logprobs")
    if len(log_probs) not in (0, length, len(tokens)):
        raise MalformedError("token_logprobs has not one number per token")
    ended, text, question = False, None, None
    if reading.tokenizer:
        ended = reading.tokenizer.closes(ids[-1])
        ids = ids[:-1] if ended else ids
        text, question = reading.tokenizer.text(ids), reading.tokenizer.text(prompt)
    completion = FiledCompletion(
        sender=sender,
        text=text,
        reward=of.reward(of.present(rollout, "total_reward"), "total_reward"),
        ids=ids,
        ended=ended,
        logprobs=tuple(log_probs[-length:]) if log_probs else None,
    )
    item = FiledItem(f"prompt-{of.digest(*map(str, prompt))}", question, None)
    return [Rollout(window, item, completion, f"{group} of {of.digest(sender)}, {item.id}")]


GRAIL = Source(
    name="grail",
    parquet=True,
    marks=frozenset({"window_start", "rollout_group", "commit", _SENDER}),
    rollouts=_rollouts,
    columns=(
        "window_start", "rollout_group", _SENDER, "commit.tokens", "commit.rollout.total_reward",
        "commit.rollout.token_logprobs", "commit.rollout.prompt_length", "commit.rollout.completion_length",
    ),
    texts="texts, and grail's rollouts hold token ids alone: name the tokenizer that decodes them with --tokenizer",
)  # fmt: skip
