"""`assert_robust`: check measures against bounds; a failure shows the numbers, a completion and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thiefbench.suite.analysis.statistics import FEW_SEEDS, SeedCount
from thiefbench.testing.bounds import OF_LEARNING, Bound, MisuseError, parse_bound
from thiefbench.testing.numbers import Number
from thiefbench.testing.results import OF_POISON, REPLAYED, Result

SHOWN = 700
"""Characters of a completion that a failure shows."""


def assert_robust(result: Result, **bounds: str) -> None:
    """Fail unless the measures of a defense are within bounds.

    Args:
        result: the result of `thiefbench.run` or `thiefbench.replay`.
        bounds: by measure, as in ``asr="<0.05", drift="<0.05", utility=">0.95"``. The value itself is compared with its
            bound, not the limits of its interval. Over several recordings, the value in each is compared: a mean over
            attacks says nothing about the attack that passes.

    Raises:
        AssertionError: a bound is missed; or asr or harm_prevented have a bound, and the attack does not work even
            without a defense, so that their values say nothing.
        MisuseError: a bound is malformed, or its measure does not exist or has no value.
    """
    __tracebackhide__ = True
    if not bounds:
        raise MisuseError("assert_robust needs at least one bound, as in assert_robust(result, asr='<0.05')")
    if not hasattr(result, "measure"):
        raise MisuseError(
            f"assert_robust takes the result of thiefbench.run or thiefbench.replay, not {type(result).__name__}"
        )
    parsed = {name: parse_bound(text, name) for name, text in bounds.items()}
    missed = [name for name, bound in parsed.items() if not _holds(result, name, bound)]
    doubt = result.doubt if any(name in OF_LEARNING for name in parsed) else ""
    if missed or doubt:
        raise AssertionError(failure_message(result, parsed, missed, doubt))


def _holds(result: Result, name: str, bound: Bound) -> bool:
    return all(bound.holds(number) for number in (result.measure(name), *result.by_recording(name).values()))


def failure_message(result: Result, bounds: Mapping[str, Bound], missed: Sequence[str], doubt: str = "") -> str:
    """A failure in words: the numbers and their bounds, a completion, what to do, and how to repeat the test.

    Args:
        result: what was measured.
        bounds: by measure.
        missed: the measures outside their bounds.
        doubt: why the result says nothing; empty if it says something.
    """
    head = "is not robust" if missed else "was not put to the test"
    lines = [f"{result.defense} {head} {result.about}"]
    width = max(len(name) for name in bounds)
    for name, bound in bounds.items():
        state, number = "MISSED" if name in missed else "ok", result.measure(name)
        if name in missed and bound.holds(number):
            state = "MISSED in a recording, and each has to keep it"
        honest = result.honest(name)
        beside = "" if honest is None else f" (an honest swarm: {float(honest):.3f})"
        lines.append(f"  {name:<{width}}  {number!r}, required {bound}: {state}{_met(name, number, bound)}{beside}")
        if name in missed:
            parts = result.by_recording(name)
            wide = max(map(len, parts), default=0)
            lines += [
                f"    {recording:<{wide}}  {part!r}{'' if bound.holds(part) else ': MISSED'}"
                for recording, part in parts.items()
            ]
    if doubt:
        lines.append(f"inconclusive: {doubt}; give the attack more rounds or a higher learning rate, or choose another")
    lines += _explanation(result, bounds, missed)
    if result.again:
        lines.append(f"to repeat this test: {result.again}")
    return "\n".join(lines)


def _met(name: str, number: Number, bound: Bound) -> str:
    """The number of seeds within a bound, from `FEW_SEEDS` seeds on: an interval does not show rare failures.

    Not of harm prevented: its points are shares of the mean undefended harm, and high at seeds with little harm.
    """
    if len(number.points) < FEW_SEEDS or name == "harm_prevented":
        return ""
    kept = SeedCount(sum(bound.holds(value) for _, value in number.points), len(number.points))
    return f" (kept at {kept.text()})"


def _explanation(result: Result, bounds: Mapping[str, Bound], missed: Sequence[str]) -> list[str]:
    """Completions that show why bounds were missed, from the recordings that missed them, and what to do about it."""
    lines = []
    for kind, (told, without) in _SAID.items():
        if name := next((each for each in missed if _kind(each) == kind), ""):
            parts = result.by_recording(name)
            example = result.example(name, [each for each, number in parts.items() if not bounds[name].holds(number)])
            if example is not None:
                lines += [told, *quoted(example)]
            elif name not in REPLAYED or kind == "poison":
                lines.append(without)
    return lines


def _kind(name: str) -> str:
    return "poison" if name in OF_POISON else "placebo" if name == "placebo_rejection_rate" else "honest"


_SAID = {
    "poison": (
        "poison that got through; find out what sets it apart from honest answers, and reject that:",
        "every rewarded completion with the payload was rejected; the model learned it in another way",
    ),
    "placebo": ("clean work in the attackers' place that was rejected; loosen the rule that rejects it:", ""),
    "honest": (
        "honest work that was rejected; loosen the rule that rejects it:",
        "no honest work was rejected; if zeroing rewards harms learning, try Verdict('drop')",
    ),
}
"""By kind of measure, what is said above an example, and what is said where there is none."""


def quoted(text: str) -> list[str]:
    """The lines of a completion, indented; a long one is cut."""
    cut = f"{text[:SHOWN]} [... {len(text) - SHOWN} more characters]" if len(text) > SHOWN else text
    return [f"    | {line}" for line in cut.splitlines()]
