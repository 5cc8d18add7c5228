"""The guest's side of an isolated rule on tensors: an aggregation or a stage check, and the calls that both answer.

It runs in the sandbox only (`_isolated_worker`).
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from numpy.typing import NDArray

from thiefbench.defenses.base import Defense
from thiefbench.leaderboard.isolation import wire
from thiefbench.leaderboard.isolation.guest_stream import Stream, describe, send, why_not_made

Answer = tuple[dict[str, Any], list[NDArray[Any]]]
"""A reply and its arrays."""
Call = Callable[[Any, Stream, Mapping[str, Any], Sequence[NDArray[Any]]], Answer]
"""Answers one kind of request: the rule, the stream, the request and its arrays -> the answer."""


def serve(spec: str, most: int, file: int, contract: Any, calls: Mapping[str, Call]) -> None:
    """Construct the rule of a spec string, and answer the parent's requests until the stream ends.

    Args:
        spec: the rule.
        most: bytes of one answer.
        file: the stream.
        contract: the class that it derives from.
        calls: the requests that it answers beside `state` and `restore`.
    """
    stream = Stream(file, most)
    torch.set_num_threads(1)
    with suppress(EOFError, BrokenPipeError):
        rule, reply = _make(spec, contract)
        arrays: list[NDArray[Any]] = []
        while True:
            send(stream, reply, arrays)
            if rule is None:
                return
            request, sent = stream.receive()
            reply, arrays = _answered({**_CALLS, **calls}, rule, stream, request, sent)
            held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
            reply |= {"number": request["number"], "memory": held}


def _make(spec: str, contract: Any) -> tuple[Defense | None, dict[str, Any]]:
    from thiefbench import registry

    try:
        rule = registry.make("defense", spec)
        if not isinstance(rule, contract):
            raise TypeError(
                f"{type(rule).__name__} is not a subclass of {contract.__module__}.{contract.__name__}; write defenses "
                "of another kind into a file that does not import it"
            )
        return rule, {"number": 0, "name": rule.name, "requires": sorted(rule.requires)}
    except BaseException as error:  # also an exit
        return None, {"number": 0, "failed": why_not_made(error, spec)}


def _answered(
    calls: Mapping[str, Call],
    rule: Defense,
    stream: Stream,
    request: Mapping[str, Any],
    arrays: Sequence[NDArray[Any]],
) -> Answer:
    try:
        return calls[request["call"]](rule, stream, request, arrays)
    except EOFError:
        raise
    except BaseException as error:  # also an exit
        return {"failed": describe(error)}, []


def _state(rule: Defense, *_: Any) -> Answer:
    return {"state": wire.given_state(rule.state())}, []


def _restore(rule: Defense, stream: Stream, request: Mapping[str, Any], _: Any) -> Answer:
    rule.restore(request["state"])
    return {}, []


_CALLS: dict[str, Call] = {"state": _state, "restore": _restore}
