"""Converts a defense's view and its verdicts to plain data and back.

Of a view, only the fields of `DefenderView` are sent: never a label, an attack or a cell's seed. Everything that comes
back from the defense is checked.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from thiefbench.defenses.answer_keys import KeyedCompletion, KeyedView, PublicSet, key_of, public_of
from thiefbench.defenses.base import DefenderView, ItemFacts, PastRound, PoolCompletion, Verdict
from thiefbench.defenses.rule_rewards import JudgedCompletion
from thiefbench.defenses.skipping import ACTIONS
from thiefbench.errors import UserError
from thiefbench.tasks.answer_keys import AnswerKey
from thiefbench.tasks.base import Message, Sampling
from thiefbench.wording import counted

MAX_MESSAGES, MAX_CHARACTERS, MAX_NEW_TOKENS, MAX_VOTES = 64, 1 << 20, 4096, 64
"""Limits of a defense's questions: messages and characters of a prompt, tokens and draws of a reply."""

MAX_DEPTH = 100
"""How deeply the lists and dictionaries of a state may be nested."""


class Malformed(ValueError):  # noqa: N818  (the fault is the defense's, not the caller's)
    """A message of the defense that the protocol does not allow. A clause that says what it is."""


# --- what goes to the defense ---


def offered_out(offered: PoolCompletion) -> list[Any]:
    """One completion; `offered_in` is the inverse."""
    proof = None if offered.proof is None else offered.proof.hex()
    logprobs = None if offered.logprobs is None else list(offered.logprobs)
    sent = key_of(offered)
    key = ([] if sent is None else [sent.answer, sent.tests]) if isinstance(offered, KeyedCompletion) else None
    return [
        offered.item_id, offered.group, offered.index, offered.sender, list(offered.ids), offered.text, offered.ended,
        offered.reward, logprobs, offered.seed, proof, offered.version, offered.refused, key, _rule_out(offered),
    ]  # fmt: skip


def _rule_out(offered: PoolCompletion) -> list[float] | None:
    """The task's own reward, or none, in a swarm in which a judge rewards; None in all others."""
    if not isinstance(offered, JudgedCompletion):
        return None
    return [] if offered.rule_reward is None else [offered.rule_reward]


def offered_in(data: Sequence[Any]) -> PoolCompletion:
    """The inverse of `offered_out`."""
    item_id, group, index, sender, ids, text, ended, reward, logprobs, seed, proof, version, refused, key, rule = data
    offered = PoolCompletion(
        item_id, group, index, sender, tuple(ids), text, ended, reward, None if logprobs is None else tuple(logprobs),
        seed, None if proof is None else bytes.fromhex(proof), version, refused,
    )  # fmt: skip
    if key is None:
        return offered
    keyed = KeyedCompletion(**vars(offered), answer_key=AnswerKey(*key) if key else None)
    return keyed if rule is None else JudgedCompletion(**vars(keyed), rule_reward=rule[0] if rule else None)


def past_out(past: PastRound) -> list[Any]:
    """A finished round; `past_in` is the inverse."""
    return [past.round, [offered_out(each) for each in past.completions], [verdict_out(v) for v in past.verdicts]]


def past_in(data: Sequence[Any]) -> PastRound:
    """The inverse of `past_out`."""
    number, completions, verdicts = data
    return PastRound(number, tuple(map(offered_in, completions)), tuple(map(_verdict, verdicts)))


def view_out(view: DefenderView) -> dict[str, Any]:
    """A view without its history and its services."""
    return {
        "round": view.round,
        "completions": [offered_out(each) for each in view.completions],
        "items": {item_id: [facts.question, facts.answer] for item_id, facts in view.items.items()},
        "sampling": asdict(view.sampling),
        "rng": rng_out(view.rng),
        "judge": view.judge is not None,
        "public": None if (public := public_of(view)) is None else _public_out(view, public),
    }


def _public_out(view: DefenderView, public: PublicSet) -> dict[str, list[str]]:
    """The published items of a round: answer, tests, a right and a wrong completion, by item id."""
    keys = {item_id: public.answer_key(item_id) for item_id in view.items}
    return {
        item_id: [key.answer, key.tests, public.right(item_id), public.wrong(item_id)]
        for item_id, key in keys.items()
        if key is not None
    }


def view_in(
    data: Mapping[str, Any],
    history: Sequence[PastRound],
    policy: Any,
    judge: Any,
    public: Callable[[Mapping[str, list[str]]], Any] = lambda _: None,
) -> DefenderView:
    """The inverse of `view_out`, with stand-ins that send questions to the real policy, judge and task."""
    rng = random.Random()
    rng.setstate(rng_in(data["rng"]))
    view = DefenderView(
        round=data["round"],
        completions=tuple(map(offered_in, data["completions"])),
        items={item_id: ItemFacts(question, answer) for item_id, (question, answer) in data["items"].items()},
        sampling=Sampling(**data["sampling"]),
        history=tuple(history),
        rng=rng,
        policy=policy,
        judge=judge if data["judge"] else None,
    )
    return view if data["public"] is None else KeyedView(**vars(view), public=public(data["public"]))


def rng_out(rng: random.Random) -> list[Any]:
    """A generator's state; `rng_in` is the inverse."""
    version, internal, gauss = rng.getstate()
    return [version, list(internal), gauss]


def rng_in(data: Any) -> tuple[Any, ...]:
    """A state for `random.Random.setstate`.

    Raises:
        Malformed: the data is not one.
    """
    try:
        version, internal, gauss = data
        sound = version == 3 and len(internal) == 625 and all(type(x) is int and 0 <= x < 2**32 for x in internal)
        if sound and 1 <= internal[-1] <= 624 and (gauss is None or type(gauss) is float):
            return version, tuple(internal), gauss
    except (TypeError, ValueError):
        pass
    raise Malformed("something that is not a state of the random generator")


# --- what comes back ---


def given_verdicts(given: object) -> list[Verdict]:
    """What `Defense.inspect` returned, as a list.

    Raises:
        UserError: it is no sequence of verdicts; the message says what to return.
    """
    expected = "return a list with one Verdict per completion, such as ACCEPT or Verdict('zero')"
    if not isinstance(given, Iterable):
        raise UserError(f"it returned {given!r:.100}; {expected}")
    verdicts = list(given)
    if strange := [each for each in verdicts if not isinstance(each, Verdict)]:
        raise UserError(f"it returned {strange[0]!r:.100}, which is not a Verdict; {expected}")
    return verdicts


def verdict_out(verdict: Verdict) -> list[Any]:
    """One verdict, as the defense made it."""
    weights = None if verdict.token_weights is None else list(verdict.token_weights)
    return [verdict.action, verdict.score, weights, verdict.reason]


def _verdict(data: Sequence[Any]) -> Verdict:
    action, score, weights, reason = data
    return Verdict(action, score, None if weights is None else tuple(weights), reason)


def verdicts_in(data: Any, view: DefenderView, reason: int) -> list[Verdict]:
    """The verdicts that a defense sent.

    Args:
        data: the message.
        view: of the round.
        reason: how many characters a reason may have.

    Raises:
        Malformed: the data is not one valid verdict per completion.
    """
    if not isinstance(data, list):
        raise Malformed("something other than a list of verdicts")
    if len(data) != len(view.completions):
        raise Malformed(
            f"{counted(len(data), 'verdict')} for {counted(len(view.completions), 'completion')}; inspect returns one "
            "per completion, in the view's order"
        )
    return [_checked(each, offered, reason) for each, offered in zip(data, view.completions, strict=True)]


def said_in(data: object, actions: Collection[str], longest: int) -> tuple[str, float | None, str]:
    """Action, score and reason of a verdict on a vector or a stage.

    Args:
        data: what the guest sent.
        actions: those that the contract has.
        longest: characters of a reason.

    Raises:
        Malformed: it is no such verdict.
    """
    action, score, reason = data if isinstance(data, list) and len(data) == 3 else (None, None, None)
    if not isinstance(action, str) or action not in actions:
        raise Malformed(f"a verdict {shown(action)!r}; it is one of {', '.join(actions)}")
    if score is not None and not (type(score) in (int, float) and _finite(score)):
        raise Malformed("a verdict whose score is not a finite number")
    if not isinstance(reason, str) or len(reason) > longest or not is_whole(reason):
        raise Malformed(f"a verdict whose reason is not text of at most {longest} characters")
    return action, None if score is None else float(score), reason


def _checked(data: Any, offered: PoolCompletion, most: int) -> Verdict:
    if not isinstance(data, list) or len(data) != 4:
        raise Malformed("something that is not a verdict")
    action, score, weights, reason = data
    if action not in ACTIONS:
        raise Malformed(f"the action {shown(action)!r}; a verdict's action must be accept, zero, drop or skip")
    if score is not None and not _finite(score):
        raise Malformed(f"the score {shown(score)}; a score must be a finite number or None")
    if not isinstance(reason, str) or len(reason) > most:
        received = f"{len(reason):,} characters" if isinstance(reason, str) else type(reason).__name__
        raise Malformed(f"a reason of {received}; a reason must be text of at most {most} characters")
    if not is_whole(reason):
        raise Malformed("a reason with half a character (a lone surrogate), which no table holds")
    score = None if score is None else float(score)  # of whole numbers, tables hold only some
    if weights is None:
        return Verdict(action, score, None, reason)
    if not isinstance(weights, list) or len(weights) != offered.length:
        count = len(weights) if isinstance(weights, list) else "no"
        raise Malformed(f"{count} token weights for {offered.length} tokens (EOS included)")
    for weight in weights:
        number_in(weight, "the token weight", 0, 1)
    return Verdict(action, score, tuple(map(float, weights)), reason)


def is_whole(text: str) -> bool:
    """Whether a text has no lone surrogate, so that it can be stored."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)


def given_state(state: object) -> object:
    """What a guest's `state` returned, unchanged.

    Raises:
        UserError: it holds a set, a number that is not finite or one of numpy's, or a key that is not text. The message
            says where.
    """
    waiting: list[tuple[str, object, int]] = [("state()", state, 0)]
    while waiting:
        place, one, depth = waiting.pop()
        if isinstance(one, float) and not math.isfinite(one):
            raise UserError(f"{place} is {one}; a state is JSON, whose numbers are finite")
        if isinstance(one, set | frozenset):
            raise UserError(f"{place} is a set, which JSON does not have; return sorted(...) of it")
        if isinstance(one, np.generic | np.ndarray) and not isinstance(one, float | str):
            raise UserError(f"{place} is a numpy.{type(one).__name__}, which JSON does not have; return its .tolist()")
        for key in one if isinstance(one, Mapping) else ():
            if not isinstance(key, str):
                raise UserError(f"{place} has the key {key!r:.60}, and keys of JSON are text; write str(...) of it")
        if depth > MAX_DEPTH:  # told by `is_plain`
            continue
        inside = one.items() if isinstance(one, Mapping) else enumerate(one) if isinstance(one, list | tuple) else ()
        waiting += [(f"{place}[{key!r:.60}]", each, depth + 1) for key, each in inside]
    return state


def is_plain(data: Any) -> bool:
    """Whether JSON data holds finite numbers only and is not nested deeper than `MAX_DEPTH`."""
    waiting = [(data, 0)]
    while waiting:
        one, depth = waiting.pop()
        if depth > MAX_DEPTH or (isinstance(one, float) and not math.isfinite(one)):
            return False
        inside = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        waiting += [(each, depth + 1) for each in inside]
    return True


def shown(value: Any, most: int = 80) -> str:
    """The beginning of a stranger's value as text; of lists and dictionaries, which may be deeply nested, the type."""
    return type(value).__name__ if isinstance(value, list | dict) else str(value)[:most]


# --- questions ---


def asked_out(completion: PoolCompletion, places: Mapping[int, int]) -> Any:
    """A completion that a question is about: its place in the pool where it is the pool's own object (by `id`)."""
    place = places.get(id(completion))
    if place is not None:
        return place
    return [completion.item_id, list(completion.ids), completion.text, completion.ended, completion.seed]


def asked_in(data: Any, view: DefenderView) -> list[PoolCompletion]:
    """The completions that a question is about.

    They may be of the pool, or written by the defense itself: then they must answer an item of the round, and be no
    longer than completions of the pool may be.

    Raises:
        Malformed: they are neither.
    """
    most = 4 * len(view.completions) + 64
    if not isinstance(data, list) or len(data) > most:
        raise Malformed(f"a question about something other than a list of at most {most} completions")
    return [_asked(each, view) for each in data]


def _asked(data: Any, view: DefenderView) -> PoolCompletion:
    if type(data) is int and 0 <= data < len(view.completions):
        return view.completions[data]
    if not isinstance(data, list) or len(data) != 5:
        raise Malformed("a question about something that is not a completion")
    item_id, ids, text, ended, seed = data
    limit = view.sampling.max_new_tokens
    if not isinstance(item_id, str) or item_id not in view.items:
        raise Malformed(f"a question about the item {shown(item_id)!r}, which is not of this round")
    if not isinstance(ids, list) or len(ids) > limit or not all(type(token) is int for token in ids):
        raise Malformed(f"a question about a completion whose ids are not at most {limit} integers")
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS or type(ended) is not bool:
        raise Malformed("a question about a completion without a valid text or end")
    if seed is not None and not (type(seed) is int and -(2**63) <= seed < 2**63):
        raise Malformed("a question about a completion whose seed is not a signed 64-bit integer")
    return PoolCompletion(item_id, 0, 0, "", tuple(ids), text, ended, 0.0, seed=seed)


def prompts_in(data: Any, view: DefenderView) -> list[list[Message]]:
    """The chat prompts of a question.

    Raises:
        Malformed: the data is not a list of prompts, or they are too many or too long.
    """
    most = 16 * len(view.completions) + 64
    if not isinstance(data, list) or len(data) > most:
        raise Malformed(f"something other than a list of at most {most} prompts")
    for prompt in data:
        if not isinstance(prompt, list) or not 0 < len(prompt) <= MAX_MESSAGES:
            raise Malformed(f"a prompt of something other than 1 to {MAX_MESSAGES} messages")
        for message in prompt:
            texts = isinstance(message, dict) and all(isinstance(value, str) for value in message.values())
            if not texts or set(message) != {"role", "content"} or message["role"] not in _ROLES:
                raise Malformed(f"a message without a role ({', '.join(_ROLES)}) and a content")
        if sum(len(message["content"]) for message in prompt) > MAX_CHARACTERS:
            raise Malformed(f"a prompt of more than {MAX_CHARACTERS:,} characters")
    return data


_ROLES = ("system", "user", "assistant")


def scored_in(data: Mapping[str, Any], view: DefenderView) -> tuple[str, AnswerKey, list[str]]:
    """The item, the answer key and the texts of a question about rewards.

    Raises:
        Malformed: the item is not of the round, or the rest is not text, or too much of it.
    """
    item_id, answer, tests, texts = (data.get(name) for name in ("item", "answer", "tests", "texts"))
    most = 4 * len(view.completions) + 64
    if not isinstance(item_id, str) or item_id not in view.items:
        raise Malformed(f"a question about the item {shown(item_id)!r}, which is not of this round")
    if not isinstance(texts, list) or len(texts) > most:
        raise Malformed(f"a question about the rewards of something other than a list of at most {most} texts")
    if not isinstance(answer, str) or not isinstance(tests, str) or not all(isinstance(text, str) for text in texts):
        raise Malformed("a question about the rewards of something that is not text")
    if sum(map(len, (answer, tests, *texts))) > MAX_CHARACTERS:
        raise Malformed(f"a question about the rewards of more than {MAX_CHARACTERS:,} characters")
    return item_id, AnswerKey(answer, tests), texts


def number_in(value: Any, what: str, low: float, high: float, kind: type = float) -> Any:
    """A number between `low` and `high`, both included; `what` names it in the error.

    Raises:
        Malformed: it is not one.
    """
    fitting = (int,) if kind is int else (int, float)
    if type(value) not in fitting or not low <= value <= high:
        raise Malformed(f"{what} {shown(value)}; it must lie between {low:g} and {high:g}")
    return value
