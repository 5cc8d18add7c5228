"""The real view's answers to an isolated defense's questions, counted and timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from thiefbench.defenses.answer_keys import PublicSet, public_of
from thiefbench.defenses.base import DefenderView
from thiefbench.leaderboard.isolation import wire
from thiefbench.leaderboard.isolation.answer_time import AnswerTime
from thiefbench.leaderboard.isolation.frames import Array, packed
from thiefbench.leaderboard.isolation.limits import POOL, Caps
from thiefbench.leaderboard.isolation.wire import Malformed
from thiefbench.tasks.base import Sampling

_TOLERANT = ("in_support", "replay")
_SCORED_AT_ONCE = 16
"""Texts whose rewards are computed before the time is looked at: each may be a program that takes seconds."""


class Services:
    """Policy and judge of one round's view, as an isolated defense may use them.

    Args:
        view: the real one.
        caps: the limits on questions and time.
    """

    def __init__(self, view: DefenderView, caps: Caps) -> None:
        self._view, self._caps = view, caps
        self._factor = max(1.0, len(view.completions) / POOL)
        self._questions, self._time = 0, AnswerTime(caps.service_seconds * self._factor, "a round")
        policy = view.policy
        self._measures: dict[str, Callable[..., list[Any]]] = {
            "token_logprobs": policy.token_logprobs, "ranks": policy.ranks, "in_support": policy.in_support,
            "replay": policy.replay, "hidden": policy.hidden, "spans": policy.spans,
        }  # fmt: skip

    def answer(self, question: Mapping[str, Any]) -> list[bytes]:
        """The answer to a question, as a message; if it is too long to send, a refusal that says so.

        Raises:
            Malformed: the question is invalid, or one too many. Errors of the policy or the judge are passed on.
        """
        self._questions += 1
        if self._questions > self._caps.questions * self._factor:
            raise Malformed(f"more than {self._caps.questions * self._factor:.0f} questions in a round; ask for many "
                            "completions at once")  # fmt: skip
        with self._time.counted():
            parts = self._answered(question)
        if (size := sum(map(len, parts))) > self._caps.answer:
            refusal = (
                f"an answer of {size:,} bytes, and at most {self._caps.answer:,} are allowed; ask for less at once"
            )
            return packed({"refused": refusal})
        return parts

    def _answered(self, question: Mapping[str, Any]) -> list[bytes]:
        what = question.get("ask")
        if isinstance(what, str) and what in self._measures:
            return self._measured(what, question)
        if what == "generate":
            prompts = wire.prompts_in(question.get("prompts"), self._view)
            limit = wire.number_in(question.get("max_new_tokens"), "max_new_tokens", 1, wire.MAX_NEW_TOKENS, int)
            return packed({"texts": list(self._view.policy.generate(prompts, limit))})
        if what == "judge" and self._view.judge is not None:
            prompts = wire.prompts_in(question.get("prompts"), self._view)
            votes = wire.number_in(question.get("votes"), "votes", 1, wire.MAX_VOTES, int)
            replies = self._view.judge.ask(prompts, sampling=_sampling(question.get("sampling")), votes=votes)
            return packed({"replies": replies})
        public = public_of(self._view)
        if what == "rewards" and public is not None:
            return packed({"rewards": self._rewarded(public, question)})
        raise Malformed(f"an unknown question, {wire.shown(what)!r}")

    def _rewarded(self, public: PublicSet, question: Mapping[str, Any]) -> list[float]:
        item_id, key, texts = wire.scored_in(question, self._view)
        rewards, began = list[float](), time.monotonic()
        for start in range(0, len(texts), _SCORED_AT_ONCE):
            rewards += public.rewards(item_id, key, texts[start : start + _SCORED_AT_ONCE])
            self._time.check(time.monotonic() - began)
        return rewards

    def _measured(self, what: str, question: Mapping[str, Any]) -> list[bytes]:
        completions = wire.asked_in(question.get("completions"), self._view)
        arguments: dict[str, Any] = {}
        if what in _TOLERANT and question.get("tolerance") is not None:
            arguments["tolerance"] = wire.number_in(question["tolerance"], "tolerance", -1e9, 1e9)
        try:
            measured = self._measures[what](completions, **arguments)
        except ValueError as error:  # about completions that the defense wrote itself
            raise Malformed(f"a question that the policy cannot answer: {error}") from error
        return packed({"shapes": [list(array.shape) for array in measured]}, [_joined(measured)])


def _joined(arrays: list[Array]) -> Array:
    """The numbers of several arrays of one type, concatenated."""
    return np.concatenate([array.reshape(-1) for array in arrays]) if arrays else np.zeros(0, np.float32)


def _sampling(data: Any) -> Sampling:
    try:
        sampling = Sampling(**data)
        wire.number_in(sampling.max_new_tokens, "max_new_tokens", 1, wire.MAX_NEW_TOKENS, int)
        wire.number_in(sampling.top_k, "top_k", 0, 1 << 20, int)
        wire.number_in(sampling.top_p, "top_p", 0, 1)
        wire.number_in(sampling.temperature, "temperature", 1e-6, 1e6)
    except (TypeError, ValueError) as error:
        raise Malformed(f"invalid sampler settings ({error})") from error
    return sampling
