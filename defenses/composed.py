"""`a+b`: several defenses as one; a completion must be accepted by all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import prod
from typing import TYPE_CHECKING, Any

from thiefbench.defenses.base import DefenderView, Defense, JudgeSpec, Requirement, Verdict

if TYPE_CHECKING:  # as in `defenses/base.py`
    import numpy as np
    from numpy.typing import NDArray


class Composed(Defense):
    """The defense `a+b`: every part judges the whole pool, and a completion is accepted only if all parts accept it.

    Args:
        parts: two or more defenses, in order.

    Reason and score are those of the first part that rejects, with its name before the reason; where no part rejects,
    those of the first part that masks. If one part says "drop" and another "zero", the completion is dropped. Token
    weights are multiplied. The parts share the view's random generator, in order, and the history holds their joint
    verdicts.
    """

    def __init__(self, parts: Sequence[Defense]) -> None:
        if len(parts) < 2:
            raise ValueError(f"composed: give two or more defenses, not {len(parts)}")
        self.parts = tuple(parts)
        self._provers = [part for part in self.parts if "proofs" in part.requires]
        if len(self._provers) > 1:
            raise ValueError("composed: a completion carries one proof, so one part at most can require proofs")
        if len({part.judge for part in self.parts if part.judge is not None}) > 1:
            raise ValueError("composed: parts that ask a judge must ask the same one")

    @property
    def name(self) -> str:  # type: ignore[override]  # of plain defenses a constant, here made of the parts' names
        """The parts' names, joined by +."""
        return "+".join(part.name for part in self.parts)

    @property
    def requires(self) -> frozenset[Requirement]:  # type: ignore[override]  # as name
        """Everything that any part needs."""
        return frozenset[Requirement]().union(*(part.requires for part in self.parts))

    @property
    def sees_labels(self) -> bool:  # type: ignore[override]  # as name
        """Whether any part sees labels; the other parts still get a view without them."""
        return any(part.sees_labels for part in self.parts)

    @property
    def judge(self) -> JudgeSpec | None:  # type: ignore[override]  # as name
        """The judge of the parts that have one."""
        return next((part.judge for part in self.parts if part.judge is not None), None)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Ask every part, and join the verdicts.

        Raises:
            RuntimeError: a part failed or gave no verdict for each completion; the message names it.
        """
        plain = DefenderView(**{field.name: getattr(view, field.name) for field in fields(DefenderView)})
        verdicts_by_part = [_checked_verdicts(part, view if part.sees_labels else plain) for part in self.parts]
        names = [part.name for part in self.parts]
        return [_joined(names, verdicts) for verdicts in zip(*verdicts_by_part, strict=True)]

    def prove(self, states: NDArray[np.float32]) -> bytes:
        """The proof of the part that requires proofs."""
        return self._provers[0].prove(states)

    def state(self) -> dict[str, Any]:
        """Every part's state, in order; empty if no part has any."""
        states = [part.state() for part in self.parts]
        return {"parts": states} if any(states) else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Give every part its state back."""
        for part, part_state in zip(self.parts, state.get("parts") or [{} for _ in self.parts], strict=True):
            part.restore(part_state)


def _checked_verdicts(part: Defense, view: DefenderView) -> list[Verdict]:
    try:
        verdicts = list(part.inspect(view))
    except Exception as error:
        raise RuntimeError(f"{part.name}: {type(error).__name__}: {error}") from error
    if len(verdicts) != len(view.completions):
        raise RuntimeError(f"{part.name}: {len(verdicts)} verdicts for {len(view.completions)} completions")
    for completion, verdict in zip(view.completions, verdicts, strict=True):
        if not isinstance(verdict, Verdict):
            raise RuntimeError(f"{part.name}: {verdict!r} is no Verdict")
        if verdict.token_weights is not None and len(verdict.token_weights) != completion.length:
            count = len(verdict.token_weights)
            raise RuntimeError(f"{part.name}: {count} token weights for {completion.length} tokens (EOS included)")
    return verdicts


def _joined(names: Sequence[str], verdicts: Sequence[Verdict]) -> Verdict:
    all_weights = [verdict.token_weights for verdict in verdicts if verdict.token_weights is not None]
    weights = tuple(prod(column) for column in zip(*all_weights, strict=True)) if all_weights else None
    pairs = list(zip(names, verdicts, strict=True))
    rejecting = [(name, verdict) for name, verdict in pairs if verdict.action != "accept"]
    masking = [(name, verdict) for name, verdict in pairs if verdict.token_weights is not None]
    if not (rejecting or masking):
        return Verdict()
    name, first = (rejecting or masking)[0]
    dropped = any(verdict.action == "drop" for _, verdict in rejecting)
    return Verdict(
        action="drop" if dropped else first.action,
        score=first.score,
        token_weights=weights,
        reason=f"{name}: {first.reason}" if first.reason else name,
    )
