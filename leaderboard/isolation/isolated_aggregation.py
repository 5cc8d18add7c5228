"""A submitted aggregation in a separate, sandboxed process, where it sees vectors and nothing else.

To the swarm, `IsolatedAggregation` is an aggregation like any other. The real class runs in the sandbox in which
submitted defenses run, with torch among its packages. The vectors go in; one vector and a verdict for each come out.
The node's model stays on this side: where the aggregation wants to try a vector, it asks, and the real view measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch

from thiefbench.defenses.aggregation.base import (
    Aggregate,
    Aggregation,
    AggregationView,
    VectorAction,
    VectorVerdict,
)
from thiefbench.leaderboard.isolation import wire
from thiefbench.leaderboard.isolation.answer_time import AnswerTime
from thiefbench.leaderboard.isolation.frames import packed
from thiefbench.leaderboard.isolation.isolated import IsolatedRule
from thiefbench.leaderboard.isolation.limits import AGGREGATION_CAPS, Caps
from thiefbench.leaderboard.isolation.wire import Malformed


class IsolatedAggregation(IsolatedRule, Aggregation):
    """An aggregation whose class is loaded in the sandbox, never here.

    Args:
        spec: its spec string.
        caps: what it may use.
        hash_seed: of the isolated Python; equal ones make sets and dictionaries of text iterate alike.

    Attributes:
        spec, caps: the arguments.
        seconds: of the aggregation's own time in the last call, without the measures that it asked for.
        memory: peak memory of the process in bytes, as it reports it.

    A deep copy is another process with the same `state()`. After an error the process is ended, and every further call
    raises the same error.

    Raises:
        DefenseError: it cannot be constructed.
        SandboxUnavailable: this machine has no working sandbox.
        SpecStringError: the spec string is malformed, or names a file that is not there.
    """

    kind = "aggregation"
    asking = "aggregate"
    published = AGGREGATION_CAPS
    arrays = 1
    name: str  # type: ignore[misc]  # of plain aggregations a constant of the class, here reported by the process

    def aggregate(self, view: AggregationView) -> Aggregate:
        """What the isolated aggregation makes of the vectors; its draws from `view.rng` advance the generator here too.

        Raises:
            DefenseError: it fails or misbehaves.
        """
        request = {
            "exchange": view.exchange,
            "senders": [sent.sender for sent in view.vectors],
            "rng": wire.rng_out(view.rng),
        }
        vectors = view.stacked().numpy()
        reply = self._call("aggregate", request, [vectors], services=_Measures(view, self.caps))
        try:
            vector = finite_vector(reply["arrays"], len(view.own), "an aggregate")
            verdicts = _verdicts(reply.get("verdicts"), len(view.vectors), self.caps.reason)
            rng = wire.rng_in(reply.get("rng"))
        except Malformed as error:
            self._fail(f"gave {error}")
        view.rng.setstate(rng)
        return Aggregate(vector, verdicts)


class _Measures:
    """The real view's measures of vectors that an isolated aggregation tries, counted and timed.

    Args:
        view: of one exchange.
        caps: the limits on questions and time.
    """

    def __init__(self, view: AggregationView, caps: Caps) -> None:
        self._view, self._caps = view, caps
        self._questions, self._time = 0, AnswerTime(caps.service_seconds, "an exchange")

    def answer(self, question: Mapping[str, Any]) -> list[bytes]:
        """The measure of a vector, as a message.

        Raises:
            Malformed: the question is invalid, or one too many.
        """
        self._questions += 1
        if self._questions > self._caps.questions:
            raise Malformed(f"more than {self._caps.questions} questions in an exchange")
        measures = {"reward": self._view.reward, "loss": self._view.loss}
        what = question.get("ask")
        if not isinstance(what, str) or what not in measures:
            raise Malformed(f"an unknown question, {wire.shown(what)!r}")
        vector = finite_vector(question["arrays"], len(self._view.own), f"a question for the {what} of")
        with self._time.counted():
            value = measures[what](vector)
        return packed({"value": value})


def finite_vector(arrays: Sequence[np.ndarray[Any, Any]], size: int, what: str) -> torch.Tensor:
    """The one vector of a message; raises Malformed for anything else.

    Args:
        arrays: of the message.
        size: of the vector.
        what: it is, for messages; may be empty.
    """
    what += " " if what else ""
    if len(arrays) != 1:
        raise Malformed(f"{what}no vector")
    (vector,) = arrays
    if vector.dtype != np.float32 or vector.shape != (size,):
        raise Malformed(f"{what}a vector of {vector.dtype} and shape {vector.shape}, not float32 and ({size},)")
    if not bool(np.isfinite(vector).all()):
        raise Malformed(f"{what}a vector with numbers that are not finite")
    return torch.from_numpy(vector)


def _verdicts(data: object, count: int, longest: int) -> tuple[VectorVerdict, ...]:
    """The verdicts of a message; raises Malformed unless there is a valid one for every vector."""
    if not isinstance(data, list) or len(data) != count:
        found = f"{len(data)} verdicts" if isinstance(data, list) else "no verdicts"
        raise Malformed(f"{found} for {count} vectors; aggregate returns one per vector, in the view's order")
    said = (wire.said_in(each, get_args(VectorAction), longest) for each in data)
    return tuple(VectorVerdict(action, score, reason) for action, score, reason in said)  # type: ignore[arg-type]
