"""A submitted stage check in a separate, sandboxed process, where it sees of a stage what other participants see.

To the swarm, `IsolatedStageCheck` is a stage check like any other. The real class runs in the sandbox in which
submitted aggregations run. Weights and means of signals go in; a verdict comes out. The pipeline stays on this side:
where the check wants a stage's work repeated, it asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from thiefbench.defenses.stages.base import Recomputed, StageCheck, StageVerdict, StageView
from thiefbench.leaderboard.isolation import wire
from thiefbench.leaderboard.isolation.answer_time import AnswerTime
from thiefbench.leaderboard.isolation.frames import joined_tensors, packed
from thiefbench.leaderboard.isolation.isolated import IsolatedRule
from thiefbench.leaderboard.isolation.limits import STAGE_CHECK_CAPS, Caps
from thiefbench.leaderboard.isolation.wire import Malformed

ACTIONS: tuple[str, ...] = get_args(get_type_hints(StageVerdict)["action"])
"""The actions of a stage check's verdict."""
_SIGNALS = ("received", "sent", "gradient")


class IsolatedStageCheck(IsolatedRule, StageCheck):
    """A stage check whose class is loaded in the sandbox, never here.

    Args:
        spec: its spec string.
        caps: what it may use.
        hash_seed: of the isolated Python; equal ones make sets and dictionaries of text iterate alike.

    Attributes:
        spec, caps: the arguments.
        seconds: of the check's own time in the last call, without the repeated work that it asked for.
        memory: peak memory of the process in bytes, as it reports it.

    A deep copy, which every stage has, is another process with the same `state()`. After an error the process is ended,
    and every further call raises the same error.

    Raises:
        DefenseError: it cannot be constructed.
        SandboxUnavailable: this machine has no working sandbox.
        SpecStringError: the spec string is malformed, or names a file that is not there.
    """

    kind = "stage_check"
    asking = "check"
    published = STAGE_CHECK_CAPS
    name: str  # type: ignore[misc]  # of plain checks a constant of the class, here reported by the process

    def check(self, view: StageView) -> StageVerdict:
        """The isolated check's verdict on a stage.

        Raises:
            DefenseError: it fails or misbehaves.
        """
        signals = {name: getattr(view, name) for name in _SIGNALS}
        tensors = {"weights": view.weights, "before": view.before, "before_recovery": view.before_recovery}
        tensors |= {name: None if signal is None else signal.mean for name, signal in signals.items()}
        shapes, joined = joined_tensors(
            {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items() if tensor is not None}
        )
        request = {
            "round": view.round,
            "stage": view.stage,
            "stages": view.stages,
            "shapes": shapes,
            "signals": {
                name: None if signal is None else {"rms": signal.rms, "tokens": signal.tokens}
                for name, signal in signals.items()
            },
            "rng": wire.rng_out(view.rng),
        }
        reply = self._call("check", request, [joined], services=_Repeats(view.recompute, self.caps))
        try:
            action, score, reason = wire.said_in(reply.get("verdict"), ACTIONS, self.caps.reason)
        except Malformed as error:
            self._fail(f"gave {error}")
        return StageVerdict(action, score, reason)  # type: ignore[arg-type]


class _Repeats:
    """Has a stage's work repeated for an isolated check that asks for it, counted and timed.

    Args:
        recompute: of one view.
        caps: the limits on questions and time.
    """

    def __init__(self, recompute: Callable[[], Recomputed], caps: Caps) -> None:
        self._recompute, self._caps = recompute, caps
        self._questions, self._time = 0, AnswerTime(caps.service_seconds, "a stage's round")

    def answer(self, question: Mapping[str, Any]) -> list[bytes]:
        """What another participant gets, as a message.

        Raises:
            Malformed: the question is invalid, or one too many.
        """
        self._questions += 1
        if self._questions > self._caps.questions:
            raise Malformed(f"more than {self._caps.questions} questions about a stage's round")
        if question.get("ask") != "recompute":
            raise Malformed(f"an unknown question, {wire.shown(question.get('ask'))!r}")
        with self._time.counted():
            repeated = self._recompute()
        weights: NDArray[Any] = repeated.weights.detach().cpu().numpy().astype(np.float32, copy=False)
        return packed({"sent_error": repeated.sent_error}, [weights])
