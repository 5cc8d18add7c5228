"""What verifiers, and prime-rl with it, write as traces.jsonl: a line for each episode.

The format is that of verifiers 0.4.0 (`Episode`, `Trace`, `MessageNode` in verifiers/v1) and of prime-rl at commit
559b447, which writes rollouts/step_N/{train,eval}/{all,effective}/traces.jsonl (`FileMonitor.log_episodes` in
src/prime_rl/monitors/file.py). An episode holds the traces of its agents. A trace is a graph of messages, each with the
tokens that it adds; a branch is the way from the root to a message without a successor, and one training sample. The
mask says which of its tokens the model sampled, and logprobs has a number for each of these. The stop token is among
them where the server says that the model stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thiefbench.pools.rounds import FiledCompletion, FiledItem
from thiefbench.pools.schema import MalformedError
from thiefbench.rollouts import fields as of
from thiefbench.rollouts.messages import generated, written
from thiefbench.rollouts.source import Reading, Rollout, Source

MOST_REPEATED = 16
"""How many times as much as a trace's messages its branches may hold: they share what they begin with, so that a short
line may unfold to a very long list."""

_MESSAGE = 8
"""What a message counts beside its tokens and characters."""

_STOPPED = ("stop", "tool_calls")


def _rollouts(fields: Mapping[str, Any], reading: Reading) -> list[Rollout]:
    number = _round(fields, reading)
    group = fields.get("group")
    name = of.text(of.inner(fields, "group"), "id") if group is not None else ""
    rollouts: list[Rollout] = []
    for trace in of.objects(fields, "traces"):
        agent = of.inner(trace, "agent")
        if agent.get("trainable") is False:  # a judge, for one: what it writes is not learned from
            continue
        item = _item(of.inner(trace, "task"))
        seat = of.text(agent, "name") if agent.get("name") is not None else "agent"
        together = of.digest(name, seat, item.id) if name else None
        rollouts += [Rollout(number, item, each, together) for each in _completions(trace, reading)]
    if not rollouts:
        raise MalformedError("an episode without a completion that is trained on")
    return rollouts


def _round(fields: Mapping[str, Any], reading: Reading) -> int:
    """The step of the folder; else that at which the episode was dispatched; 0 for an evaluation outside of a run."""
    if reading.step is not None:
        return reading.step
    run = fields.get("run")
    work = run.get("work") if isinstance(run, dict) else None
    return of.integer(work, "step") if isinstance(work, dict) else 0


def _item(task: Mapping[str, Any]) -> FiledItem:
    data = of.inner(task, "data")
    prompt, answer = data.get("prompt"), data.get("answer")
    if isinstance(prompt, list):
        question = "\n".join(written(message.get("content")) for message in of.objects(data, "prompt"))
    else:
        question = "" if prompt is None else of.as_text(prompt, "prompt")
    known = str(answer) if type(answer) in (str, int, float) else None
    if known is not None:
        of.as_text(known, "answer")
    key = task.get("key") or task.get("hash")
    named = of.as_text(key, "key") if key is not None else ""
    return FiledItem(f"task-{of.digest(named, question, known or '')}", question, known)


def _completions(trace: Mapping[str, Any], reading: Reading) -> list[FiledCompletion]:
    """One for every branch on which the model wrote something."""
    nodes = of.objects(trace, "nodes")
    parents = [_parent(node, place) for place, node in enumerate(nodes)]
    inside = {parent for parent in parents if parent is not None}
    value = _value(trace)
    sender = of.label(of.inner(trace, "info"), reading.sender) if reading.sender else None
    reasons = {call.get("node"): call.get("finish_reason") for call in _calls(trace)}
    sampled = {place: _Sampled(node) for place, node in enumerate(nodes) if node.get("sampled") is True}
    left = MOST_REPEATED * (len(nodes) * _MESSAGE + sum(each.size for each in sampled.values()))
    completions = []
    for leaf in (place for place in range(len(nodes)) if place not in inside):
        way: list[int] = []
        at: int | None = leaf
        while at is not None:
            way.append(at)
            left -= _MESSAGE + (sampled[at].size if at in sampled else 0)
            at = parents[at]
            if left < 0:
                raise MalformedError(f"branches that hold more than {MOST_REPEATED} times what its messages do")
        places = [place for place in reversed(way) if place in sampled]
        if places:
            stopped = reasons.get(places[-1]) in _STOPPED
            completions.append(_joined([sampled[place] for place in places], stopped, value, sender, reading))
    return completions


def _calls(trace: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those that wrote a message."""
    return [call for call in of.objects(trace, "calls") if type(call.get("node")) is int]


def _parent(node: Mapping[str, Any], place: int) -> int | None:
    """The message before; it comes earlier in the list, so that no way runs in a circle."""
    parent = node.get("parent")
    if parent is None:
        return None
    if type(parent) is not int or not 0 <= parent < place:
        raise MalformedError("a message whose parent does not come before it")
    return parent


def _value(trace: Mapping[str, Any]) -> float:
    """The reward: scores by their weights, as `Trace.reward`; 0 without any."""
    rewards = trace.get("rewards")
    if rewards is None:
        return 0.0
    if not isinstance(rewards, dict):
        raise MalformedError("rewards: must be an object")
    total = 0.0
    for each in rewards.values():
        if each is not None:
            if not isinstance(each, dict):
                raise MalformedError("rewards: must hold objects")
            weight = of.reward(each.get("weight", 1.0), "weight")
            total += of.reward(of.present(each, "score"), "score") * weight
    return of.reward(total, "the sum of its rewards")


class _Sampled:
    """What the model wrote in one message.

    Attributes:
        text: in words.
        ids: the sampled tokens; None where the message has no tokens.
        log_probs: one for each of them; None where there are none.
        size: tokens and characters.
    """

    def __init__(self, node: Mapping[str, Any]) -> None:
        self.text = generated(of.inner(node, "message"))
        tokens = of.token_ids(node.get("token_ids") or [], "token_ids")
        mask = node.get("mask") or []
        if not isinstance(mask, list) or len(mask) != len(tokens) or not all(type(each) is bool for each in mask):
            raise MalformedError("mask has not one truth value per token")
        self.ids = [token for token, sampled in zip(tokens, mask, strict=True) if sampled] if tokens else None
        log_probs = of.log_probs(node.get("logprobs") or [], "logprobs")
        if log_probs and len(log_probs) != len(self.ids or ()):
            raise MalformedError("logprobs has not one number per sampled token")
        self.log_probs = log_probs or None
        self.size = len(self.text) + len(tokens)


def _joined(
    parts: Sequence[_Sampled], stopped: bool, reward: float, sender: str | None, reading: Reading
) -> FiledCompletion:
    """The completion of one branch: all that the model wrote on it."""
    text = "\n".join(part.text for part in parts)
    if any(part.ids is None for part in parts):
        return FiledCompletion(sender, text, reward, ended=stopped)
    ids = [token for part in parts for token in part.ids or ()]
    log_probs = None
    if all(part.log_probs is not None for part in parts):
        log_probs = tuple(number for part in parts for number in part.log_probs or ())
    ended = stopped and bool(ids)
    ids = ids[:-1] if ended else ids
    if reading.tokenizer:
        text = reading.tokenizer.text(ids)
    return FiledCompletion(sender, text, reward, ids=tuple(ids), ended=ended, logprobs=log_probs)


PRIME_RL = Source(
    name="prime-rl",
    parquet=False,
    marks=frozenset({"task", "traces"}),
    rollouts=_rollouts,
    senders="senders, and the traces name none: name the field of their info that does with --sender",
    identity="id",
)
