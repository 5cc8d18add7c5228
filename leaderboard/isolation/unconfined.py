"""A defense, an aggregation or a stage check in this process, under the rules of an isolated one; for trusted code."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any, ClassVar

from thiefbench import registry
from thiefbench.defenses.aggregation.base import Aggregate, Aggregation, AggregationView
from thiefbench.defenses.base import DefenderView, Defense, Verdict
from thiefbench.defenses.stages.base import StageCheck, StageVerdict, StageView
from thiefbench.leaderboard.isolation import wire
from thiefbench.leaderboard.isolation.frames import FrameError, packed, unpacked
from thiefbench.leaderboard.isolation.guest_stream import deep_copy, describe, why_not_made
from thiefbench.leaderboard.isolation.isolated import DefenseError
from thiefbench.leaderboard.isolation.limits import CAPS


class _Guarded:
    """Calls a submission's code, whose errors become one sentence.

    Attributes:
        kind, name: of the submission, for messages.
    """

    kind: ClassVar[str]
    name: str

    def _guarded(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (Exception, SystemExit) as error:  # the submission's code may raise anything
            raise DefenseError(f"the {self.kind} {self.name} failed in {what}: {describe(error)}") from error


def _made(kind: str, spec: str) -> Any:
    """The object of a spec string; raises DefenseError if it cannot be constructed."""
    try:
        return registry.make("defense", spec)
    except (Exception, SystemExit) as error:  # as in `_Guarded`
        raise DefenseError(f"the {kind} cannot be constructed: {why_not_made(error, spec)}") from error


class Unconfined(_Guarded, Defense):
    """As `Isolated`, but without a sandbox and without limits on time and memory.

    Args:
        spec: its spec string.

    Attributes:
        seconds: of the last inspection, including the answers of policy and judge.
        memory: peak memory of this process in bytes.

    Raises:
        DefenseError: it cannot be constructed, or wants to see labels.
    """

    kind = "defense"
    name: str  # type: ignore[misc]  # that of the real one

    def __init__(self, spec: str) -> None:
        self.spec, self.name, self.seconds, self.memory = spec, spec, 0.0, 0
        self.renew()
        if self._own.sees_labels:
            raise DefenseError(f"the defense {self.name} wants to see labels, which only rows of the benchmark may do")

    def renew(self) -> None:
        """Construct the defense again."""
        self._own: Defense = _made(self.kind, self.spec)
        self.name, self.requires, self.judge = self._own.name, self._own.requires, self._own.judge  # type: ignore[misc]

    def inspect(self, view: DefenderView) -> list[Verdict]:
        """Its verdicts on a pool; raises DefenseError."""
        return self._inspected(view, lambda: self._own)

    def inspect_copy(self, view: DefenderView) -> list[Verdict]:
        """As `inspect`, of a deep copy; raises DefenseError."""
        return self._inspected(view, lambda: deep_copy(self._own))

    def _inspected(self, view: DefenderView, asked: Callable[[], Defense]) -> list[Verdict]:
        began = time.monotonic()
        verdicts = self._guarded("inspect", lambda: wire.given_verdicts(asked().inspect(view)))
        self.seconds = time.monotonic() - began
        self.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        try:
            _, text, *_ = packed(
                {"verdicts": self._guarded("inspect", lambda: [wire.verdict_out(v) for v in verdicts])}
            )
            return wire.verdicts_in(unpacked(text, b"")[0]["verdicts"], view, CAPS.reason)
        except (wire.Malformed, FrameError, TypeError) as error:
            raise DefenseError(f"the defense {self.name} gave {error}") from error

    def prove(self, states: Any) -> bytes:
        """As the defense; raises DefenseError."""
        return bytes(self._guarded("prove", lambda: self._own.prove(states)))

    def state(self) -> dict[str, Any]:
        """As the defense; raises DefenseError."""
        given = self._guarded("state", lambda: wire.given_state(self._own.state()))
        state = self._guarded("state", lambda: unpacked(packed({"state": given})[1], b"")[0]["state"])
        if not isinstance(state, dict):
            raise DefenseError(f"the defense {self.name} gave a state that is {type(state).__name__}")
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """As the defense; raises DefenseError."""
        self._guarded("restore", lambda: self._own.restore(state))


class _UnconfinedRule(_Guarded):
    """A rule on tensors, made and asked for its state."""

    _own: Any

    def _make(self, spec: str, contract: Any) -> None:
        """Construct it; raises DefenseError if that fails, or if it does not derive from `contract`."""
        self.name = spec
        made = _made(self.kind, spec)
        if not isinstance(made, contract):
            raise DefenseError(f"{spec} is not a subclass of {contract.__module__}.{contract.__name__}")
        self._own, self.name, self.requires = made, made.name, made.requires

    def state(self) -> dict[str, Any]:
        """As the rule; raises DefenseError."""
        state: dict[str, Any] = self._guarded("state", self._own.state)
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """As the rule; raises DefenseError."""
        self._guarded("restore", lambda: self._own.restore(state))


class UnconfinedAggregation(_UnconfinedRule, Aggregation):
    """As `IsolatedAggregation`, but without a sandbox and without limits.

    Args:
        spec: its spec string.

    Raises:
        DefenseError: it cannot be constructed, or is no aggregation.
    """

    kind = "aggregation"
    name: str  # type: ignore[misc]  # that of the real one

    def __init__(self, spec: str) -> None:
        self._make(spec, Aggregation)

    def aggregate(self, view: AggregationView) -> Aggregate:
        """As the aggregation; raises DefenseError."""
        joined: Aggregate = self._guarded("aggregate", lambda: self._own.aggregate(view))
        return joined


class UnconfinedStageCheck(_UnconfinedRule, StageCheck):
    """As `IsolatedStageCheck`, but without a sandbox and without limits.

    Args:
        spec: its spec string.

    Raises:
        DefenseError: it cannot be constructed, or is no stage check.
    """

    kind = "stage_check"
    name: str  # type: ignore[misc]  # that of the real one

    def __init__(self, spec: str) -> None:
        self._make(spec, StageCheck)

    def check(self, view: StageView) -> StageVerdict:
        """As the stage check; raises DefenseError."""
        verdict: StageVerdict = self._guarded("check", lambda: self._own.check(view))
        return verdict
