"""Submitted attacks on exchanged weights and on pipelines, in separate, sandboxed processes.

They are isolated as attacks on completions are (`isolated_attack`): a fresh process for everything that they send, and
another one that judges. Weights and activations go in and come out as arrays. Models stay on this side: where the
attack wants one taught, it asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from math import prod
from typing import Any, ClassVar, Final

import numpy as np
import torch

from thiefbench.attacks.base import Attack, AttackerView, Poison, ThreatModel, Withheld
from thiefbench.attacks.exchange.base import ExchangeView, WeightAttack
from thiefbench.attacks.stages.base import LessonView, MessageView, StageAttack, StageAttackView
from thiefbench.leaderboard.isolation import attack_wire as wire
from thiefbench.leaderboard.isolation.attack_services import Cost, ViewAnswers
from thiefbench.leaderboard.isolation.frames import Array, joined_tensors, packed
from thiefbench.leaderboard.isolation.isolated_aggregation import finite_vector
from thiefbench.leaderboard.isolation.isolated_attack import AttackProcess, IsolatedAttack
from thiefbench.leaderboard.isolation.limits import TENSOR_ATTACK_CAPS, Caps
from thiefbench.leaderboard.isolation.sandbox_paths import AttackKind, attack_kind
from thiefbench.leaderboard.isolation.wire import Malformed, number_in, rng_out
from thiefbench.wording import counted

MOST_STAGE_STEPS: Final = 400
"""Steps of one teaching of a stage."""
_MOST_DIMENSIONS, _LONGEST = 8, 1 << 31
"""Of activations."""
OFFLINE: Final = 0
"""The round under which costs have what a stage attack uses before round 1."""


class _WeightProcess(AttackProcess):
    attack_kind = "weight_attack"
    asking = "draw, choose, send, placebo_send, outcome and spill"
    arrays = 1


class _StageProcess(AttackProcess):
    attack_kind = "stage_attack"
    asking = "draw, choose, learned, placebo_learned, outcome and spill"
    arrays = 1


class _IsolatedTensorAttack(IsolatedAttack):
    """What both kinds share: nobody sends completions, and there is no inner attack on this side."""

    published = TENSOR_ATTACK_CAPS
    # Of wrappers these are properties, and of this attack attributes that its process reports.
    threat: ThreatModel = ThreatModel("in-context")  # type: ignore[misc]
    reference: wire.Reference = "placebo"  # type: ignore[mutable-override]
    copies: int = 1
    draw, forms, hand_over = Attack.draw, Attack.forms, Attack.hand_over
    by_other_rules, harm, remarks = Attack.by_other_rules, Attack.harm, Attack.remarks

    def poison(self, view: AttackerView) -> list[Poison]:
        """Nothing."""
        return [Withheld()] * len(view.slots)

    def placebo(self, view: AttackerView) -> list[Poison]:
        """Nothing."""
        return [Withheld()] * len(view.slots)


class IsolatedWeightAttack(_IsolatedTensorAttack, WeightAttack):
    """An attack on exchanged weights whose class is loaded in the sandbox, never here; see `IsolatedAttack`."""

    process = _WeightProcess

    def send(self, view: ExchangeView) -> list[torch.Tensor | None]:
        """What the isolated attack's nodes send; raises AttackError."""
        cost = self._cost_of(view.exchange)
        vectors = self._vectors("send", view, cost)
        cost.sent = sum(vector is not None for vector in vectors)
        self.noted()
        return vectors

    def placebo_send(self, view: ExchangeView) -> list[torch.Tensor | None]:
        """What clean nodes send in their places; raises AttackError."""
        vectors = self._vectors("placebo_send", view, self._cost_of(view.exchange))
        self.noted()
        return vectors

    def _vectors(self, call: str, view: ExchangeView, cost: Cost) -> list[torch.Tensor | None]:
        items = self._asked_about(view.lessons)
        request = {
            "exchange": view.exchange,
            "senders": view.senders,
            "averaged": view.averaged,
            "rng": rng_out(view.rng),
            "view": wire.view_out(view.lessons, items),
        }
        answers = _ExchangeAnswers(view, self, items, cost)
        with self._in_fresh() as process:
            reply = process.request(call, request, answers=answers, arrays=[_array(view.honest)])
            vectors = _vectors_in(reply, view.senders)
        return [None if vector is None else vector.to(view.honest.device) for vector in vectors]


class IsolatedStageAttack(_IsolatedTensorAttack, StageAttack):
    """An attack by a stage of a pipeline whose class is loaded in the sandbox, never here; see `IsolatedAttack`."""

    process = _StageProcess

    @property
    def lessons(self) -> int:  # type: ignore[override]  # of plain attacks an attribute
        """How many questions it picks to learn from."""
        return self._facts.lessons

    def learned(self, view: LessonView) -> torch.Tensor:
        """What the isolated attack learns offline; raises AttackError."""
        return self._learned("learned", view)

    def placebo_learned(self, view: LessonView) -> torch.Tensor:
        """What a clean stage in its place learns; raises AttackError."""
        return self._learned("placebo_learned", view)

    def _learned(self, call: str, view: LessonView) -> torch.Tensor:
        items = self._asked_about(view.lessons)
        request = {"stage": view.stage, "view": wire.view_out(view.lessons, items)}
        answers = _LessonAnswers(view, self, items, self._cost_of(OFFLINE))
        with self._in_fresh() as process:
            reply = process.request(call, request, answers=answers, arrays=[_array(view.start)])
            vector = _vector_in(reply["arrays"], view.start[0])
            if vector is None:
                raise Malformed("nothing where it learns")
        self.noted()
        return vector

    def added(self, view: StageAttackView) -> torch.Tensor | None:
        """What the isolated attack adds to its weights; raises AttackError."""
        lied = self._facts.lies and view.round in self.costs  # in the update, which comes first
        cost = self.costs[view.round] if lied else self._cost_of(view.round)
        request = {"round": view.round, "stage": view.stage, "stages": view.stages, "rng": rng_out(view.rng)}
        stacked = torch.stack([view.learned, view.weights, view.update])
        with self._in_fresh() as process:
            reply = process.request("added", request, arrays=[_array(stacked)])
            vector = _vector_in(reply["arrays"], view.weights)
        cost.sent += vector is not None and bool(vector.any())
        self.noted()
        return vector

    def sent(self, view: MessageView) -> object:
        """What the isolated attack sends in a pass; raises AttackError."""
        if not self._facts.lies:
            return view.computed
        tensors = {"received": view.received, "computed": view.computed}
        shapes, joined = joined_tensors({name: _array(tensor) for name, tensor in tensors.items()})
        request = {"round": view.round, "pass": view.number, "shapes": shapes}
        with self._in_fresh() as process:
            reply = process.request("sent", request, arrays=[joined])
            message = _message_in(reply)
        cost = self._cost_of(view.round) if view.number == 0 else self.costs.setdefault(view.round, Cost())
        sent = None if message is None else message.to(view.computed.device, view.computed.dtype)
        cost.sent += sent is None or not torch.equal(sent, view.computed)
        self.noted()
        return sent


_KINDS: dict[AttackKind, type[IsolatedAttack]] = {
    "attack": IsolatedAttack, "weight_attack": IsolatedWeightAttack, "stage_attack": IsolatedStageAttack,
}  # fmt: skip


def isolated_attack(spec: str, caps: Caps | None = None, hash_seed: int = 0) -> IsolatedAttack:
    """An attack of any kind, isolated; see `IsolatedAttack`."""
    return _KINDS[attack_kind(spec)](spec, caps, hash_seed)


class _TensorAnswers(ViewAnswers):
    """Questions of a round, and one more whose answer is a vector.

    Args:
        view: what the attack is given to teach with.
        attack: the attack.
        items: that it may ask about.
        cost: counts what is used.
    """

    vector_for: ClassVar[str]
    asked_of = "models"

    def __init__(self, view: AttackerView, attack: IsolatedAttack, items: Sequence[Any], cost: Cost) -> None:
        super().__init__(view, items, attack.caps, cost, 0, attack.threat.oracle)

    def _message(self, what: str, question: Mapping[str, Any]) -> list[bytes]:
        if what != self.vector_for:
            return super()._message(what, question)
        self._count()
        return packed({}, [_array(self._vector(question))])

    def _vector(self, question: Mapping[str, Any]) -> torch.Tensor:
        raise NotImplementedError


class _ExchangeAnswers(_TensorAnswers):
    """Questions in an exchange: how a model would move the receivers."""

    vector_for, period = "moved", "an exchange"

    def __init__(self, view: ExchangeView, attack: IsolatedAttack, items: Sequence[Any], cost: Cost) -> None:
        super().__init__(view.lessons, attack, items, cost)
        self._exchange = view

    def _vector(self, question: Mapping[str, Any]) -> torch.Tensor:
        return self._exchange.moved(self._sampler(question))


class _LessonAnswers(_TensorAnswers):
    """Questions before round 1: what a stage's weights become where it is taught."""

    vector_for, period = "taught stage", "the time before round 1"

    def __init__(self, view: LessonView, attack: IsolatedAttack, items: Sequence[Any], cost: Cost) -> None:
        super().__init__(view.lessons, attack, items, cost)
        self._lesson_view = view

    def _vector(self, question: Mapping[str, Any]) -> torch.Tensor:
        changed = _vector_in(question["arrays"], self._lesson_view.start[0])
        examples, steps, rate = self._lesson(question, MOST_STAGE_STEPS)
        learned = self._lesson_view.taught(examples, steps, rate, changed)
        self._cost.steps += steps
        return learned


def _array(tensor: torch.Tensor) -> Array:
    array: Array = tensor.detach().float().cpu().numpy()
    return array


def _vector_in(arrays: Sequence[Array], like: torch.Tensor) -> torch.Tensor | None:
    """The vector of a message, None where it has none; raises Malformed where it is no finite one of this size."""
    return finite_vector(arrays, len(like), "").to(like.device) if arrays else None


def _vectors_in(reply: Mapping[str, Any], senders: int) -> list[torch.Tensor | None]:
    """One vector per sender, None where it sends nothing; raises Malformed for anything else."""
    count, sizes, arrays = reply.get("count"), reply.get("sizes"), reply["arrays"]
    if type(count) is int and count != senders:
        what = f"{counted(count, 'vector')} for {counted(senders, 'malicious node')}"
        raise Malformed(f"{what}; send returns one for each, or None")
    if type(count) is not int or not isinstance(sizes, dict) or len(arrays) != 1:
        raise Malformed("something other than vectors")
    places = [str(place) for place in range(senders) if str(place) in sizes]
    lengths = [number_in(sizes[place], "a length", 0, 1 << 40, int) for place in places]
    (joined,) = arrays
    if len(places) < len(sizes) or joined.dtype != np.float32 or joined.shape != (sum(lengths),):
        raise Malformed("vectors that are not as long as it says")
    ends = pairwise(accumulate(lengths, initial=0))
    rows = [torch.from_numpy(joined[start:end].copy()) for start, end in ends]
    by_place = dict(zip(places, rows, strict=True))
    return [by_place.get(str(place)) for place in range(senders)]


def _message_in(reply: Mapping[str, Any]) -> torch.Tensor | None:
    """The activations of a message, of any shape, None where nothing is sent; raises Malformed for anything else."""
    shape, arrays = reply.get("shape"), reply["arrays"]
    if shape is None and not arrays:
        return None
    if isinstance(shape, list) and len(shape) > _MOST_DIMENSIONS:
        raise Malformed(f"activations of more than {_MOST_DIMENSIONS} dimensions")
    sizes = shape if isinstance(shape, list) else [-1]
    sound = all(type(size) is int and 0 <= size < _LONGEST for size in sizes) and len(arrays) == 1
    if sound and arrays[0].dtype == np.float32 and arrays[0].shape == (prod(sizes),):
        with suppress(RuntimeError):  # sizes whose product is 0, and that no tensor can have
            return torch.from_numpy(arrays[0]).reshape(sizes)
    raise Malformed("activations that are not of the shape that it says")
