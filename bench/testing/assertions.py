"""`assert_robust`: bounds on measures, and a failure from which a person knows what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thiefbench.testing.bounds import OF_LEARNING, Bound, MisuseError, parse_bound
from thiefbench.testing.results import Result

SHOWN = 700
"""Characters of a completion that a failure shows."""

_OF_POISON = ("asr", "stop_rate", "harm_prevented")


def assert_robust(result: Result, **bounds: str) -> None:
    """See that a defense keeps to bounds.

    Args:
        result: of `thiefbench.run` or `thiefbench.replay`.
        bounds: by measure, as in ``asr="<0.05", utility=">0.95"``. It is the value that is held to them, not the limits
            of its interval.

    Raises:
        AssertionError: a bound is missed, or asr or harm_prevented keep to theirs against an attack that does not work
            undefended either, which says nothing.
        MisuseError: a bound is malformed, or its measure does not exist or has no value.
    """
    __tracebackhide__ = True
    if not bounds:
        raise MisuseError("assert_robust needs a bound at least, as in assert_robust(result, asr='<0.05')")
    wanted = {name: parse_bound(text, name) for name, text in bounds.items()}
    missed = [name for name, bound in wanted.items() if not bound.holds(result.measure(name))]
    doubt = result.doubt if any(name in OF_LEARNING for name in wanted) else ""
    if missed or doubt:
        raise AssertionError(told(result, wanted, missed, doubt))


def told(result: Result, wanted: Mapping[str, Bound], missed: Sequence[str], doubt: str = "") -> str:
    """A failure in words: the numbers beside what is asked of them, a completion, what to do, how to see it again.

    Args:
        result: what was measured.
        wanted: bounds by measure.
        missed: those that are missed.
        doubt: why nothing can be said at all; empty where something can.
    """
    head = "is not robust" if missed else "was not put to the test"
    lines = [f"{result.defense} {head} {result.about}"]
    width = max(len(name) for name in wanted)
    for name, bound in wanted.items():
        state = "MISSED" if name in missed else "ok"
        lines.append(f"  {name:<{width}}  {result.measure(name)!r}, required {bound}: {state}")
    if doubt:
        lines.append(f"inconclusive: {doubt}; give the attack more rounds or a higher learning rate, or choose another")
    lines += _shown(result, missed)
    if result.again:
        lines.append(f"to see this again: {result.again}")
    return "\n".join(lines)


def _shown(result: Result, missed: Sequence[str]) -> list[str]:
    """A completion that explains what was missed, and what to do about it."""
    lines = []
    if any(name in _OF_POISON for name in missed):
        if result.let_through is None:
            lines.append(
                "every rewarded completion with the payload was rejected; what was learned came by another way"
            )
        else:
            lines += [
                "poison that got through; reject what it has and honest answers have not:",
                *quoted(result.let_through),
            ]
    if any(name not in _OF_POISON for name in missed):
        if result.wrongly_rejected is None:
            lines.append("no honest work was rejected; does zeroing rewards harm learning? try Verdict('drop')")
        else:
            lines += ["honest work that was rejected; loosen what objects to it:", *quoted(result.wrongly_rejected)]
    return lines


def quoted(text: str) -> list[str]:
    """A completion's lines, set off and cut."""
    cut = f"{text[:SHOWN]} [... {len(text) - SHOWN} more characters]" if len(text) > SHOWN else text
    return [f"    | {line}" for line in cut.splitlines()]
