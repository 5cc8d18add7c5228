"""The guest's side of an isolated attack on exchanged weights or on a pipeline: what such attacks do beside others.

It runs in the sandbox only (`_isolated_worker`). Models stay with the parent, which teaches them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from thiefbench.attacks.exchange.base import ExchangeView, WeightAttack
from thiefbench.attacks.stages.base import Examples, LessonView, MessageView, StageAttack, StageAttackView
from thiefbench.leaderboard.isolation import attack_guest
from thiefbench.leaderboard.isolation import attack_wire as wire
from thiefbench.leaderboard.isolation.attack_guest import Arrays, Call, Guest, Reply
from thiefbench.leaderboard.isolation.frames import joined_tensors, split_tensors
from thiefbench.leaderboard.isolation.guest_vectors import plain_vector, type_of

torch.set_num_threads(1)


def _send(guest: Guest, request: Mapping[str, Any], arrays: Arrays) -> Reply:
    attack, stream = guest.member, guest.stream
    assert isinstance(attack, WeightAttack), "the parent asks attacks of this kind only"

    def moved(model: object) -> torch.Tensor:
        return _vector_of(stream.ask({"ask": "moved", "sampler": attack_guest.number_of(model)})[1])

    view = ExchangeView(
        exchange=request["exchange"],
        senders=request["senders"],
        honest=torch.from_numpy(arrays[0]),
        averaged=request["averaged"],
        rng=wire.generator_in(request["rng"]),
        lessons=attack_guest.view_of(guest, request["view"]),
        moved=moved,
    )
    sent = attack.send(view) if request["call"] == "send" else attack.placebo_send(view)
    if not isinstance(sent, Iterable):
        raise TypeError(f"send returns a list with a vector, or None, for each malicious node, not {type_of(sent)}")
    vectors = list(sent)
    named = {str(place): plain_vector(vector) for place, vector in enumerate(vectors) if vector is not None}
    shapes, joined = joined_tensors(named)
    return {"count": len(vectors), "sizes": {place: shape[0] for place, shape in shapes.items()}}, [joined]


def _learn(guest: Guest, request: Mapping[str, Any], arrays: Arrays) -> Reply:
    attack, stream = guest.member, guest.stream
    assert isinstance(attack, StageAttack), "the parent asks attacks of this kind only"
    lessons = attack_guest.view_of(guest, request["view"])

    def taught(
        examples: Examples, steps: int, learning_rate: float, changed: torch.Tensor | None = None
    ) -> torch.Tensor:
        pairs = attack_guest.named_examples(guest, examples)
        asked = {"ask": "taught stage", "examples": pairs, "steps": steps, "learning_rate": learning_rate}
        return _vector_of(stream.ask(asked, [] if changed is None else [plain_vector(changed)])[1])

    view = LessonView(lessons, taught, request["stage"], torch.from_numpy(arrays[0]))
    learned = attack.learned(view) if request["call"] == "learned" else attack.placebo_learned(view)
    return {}, [plain_vector(learned)]


def _add(guest: Guest, request: Mapping[str, Any], arrays: Arrays) -> Reply:
    attack = guest.member
    assert isinstance(attack, StageAttack), "the parent asks attacks of this kind only"
    learned, weights, update = torch.from_numpy(arrays[0])
    rng = wire.generator_in(request["rng"])
    view = StageAttackView(request["round"], request["stage"], request["stages"], learned, weights, update, rng)
    added = attack.added(view)
    return {}, [] if added is None else [plain_vector(added)]


def _pass(guest: Guest, request: Mapping[str, Any], arrays: Arrays) -> Reply:
    attack = guest.member
    assert isinstance(attack, StageAttack), "the parent asks attacks of this kind only"
    tensors = split_tensors(arrays[0], request["shapes"])
    received, computed = (torch.from_numpy(tensors[name]) for name in ("received", "computed"))
    message = attack.sent(MessageView(request["round"], request["pass"], received, computed))
    if message is None:
        return {"shape": None}, []
    if not isinstance(message, torch.Tensor) or message.dtype != torch.float32:
        raise TypeError(f"sent gives a float32 tensor or None, not {type_of(message)}")
    shapes, joined = joined_tensors({"message": message.detach().resolve_neg().numpy()})
    return {"shape": shapes["message"]}, [joined]


def _vector_of(arrays: Sequence[NDArray[Any]]) -> torch.Tensor:
    (vector,) = arrays
    return torch.from_numpy(vector)


_CALLS: dict[str, Call] = {
    "send": _send, "placebo_send": _send, "learned": _learn, "placebo_learned": _learn, "added": _add, "sent": _pass,
}  # fmt: skip

serve = partial(attack_guest.serve, calls=_CALLS)
"""Serve such an attack: (spec, most, file), see `attack_guest.serve`."""
