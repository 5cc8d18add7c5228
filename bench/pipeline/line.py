"""What the stages of a pipeline send each other in an update: a model's layers with checked boundaries between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from thiefbench.defenses.stages.base import Signal

Sent = Callable[[int, torch.Tensor, torch.Tensor], object]
"""(pass, received, computed) -> what the malicious stage sends."""


class Sending:
    """What a malicious stage sends in a round. It decides once for each pass; when its work is repeated, it sends this.

    Otherwise a stage could notice the repetition, then send what it computed, and pass for honest, while the gradients
    of the repetition would no longer be those of the honest stages.

    Args:
        decide: see `Sent`.
    """

    def __init__(self, decide: Sent) -> None:
        self._decide = decide
        self._lies: dict[int, object] = {}
        self._honest: set[int] = set()

    def __call__(self, count: int, received: torch.Tensor, computed: torch.Tensor) -> object:
        """What is sent in pass `count`; the stage is given copies, and `computed` itself is returned if it is sent."""
        if count not in self._lies and count not in self._honest:
            message = self._decide(count, received.clone(), computed.clone())
            if not problem(message, computed) and isinstance(message, torch.Tensor) and torch.equal(message, computed):
                self._honest.add(count)
            else:
                self._lies[count] = message
        return self._lies.get(count, computed)


def problem(message: object, like: torch.Tensor) -> str:
    """Why activations are refused: missing, of another type or shape, or not finite; empty if they are sound."""
    if message is None:
        return "missing"
    if not isinstance(message, torch.Tensor) or message.dtype != like.dtype:
        kind = (
            str(message.dtype).removeprefix("torch.") if isinstance(message, torch.Tensor) else type(message).__name__
        )
        return f"not {str(like.dtype).removeprefix('torch.')} activations but {kind}"
    if message.shape != like.shape:
        return f"wrong shape {tuple(message.shape)}, not {tuple(like.shape)}"
    return "" if bool(message.isfinite().all()) else "not finite"


@dataclass
class Tally:
    """Sums over what passed a boundary: of vectors, of squares, of tokens."""

    total: torch.Tensor | None = None
    squares: float = 0.0
    tokens: int = 0

    def add(self, values: torch.Tensor, real: torch.Tensor) -> None:
        """Count activations or gradients, shape (rows, length, hidden), where `real` is True."""
        rows = values.detach()[real].double()
        summed = rows.sum(0)
        self.total = summed if self.total is None else self.total + summed
        self.squares += float(rows.square().sum())
        self.tokens += len(rows)

    def signal(self) -> Signal | None:
        """The sums as means; None if nothing passed."""
        if self.total is None or not self.tokens:
            return None
        rms = (self.squares / (self.tokens * len(self.total))) ** 0.5
        return Signal((self.total / self.tokens).float(), rms, self.tokens)


@dataclass
class Traffic:
    """What one stage received and sent in an update.

    Attributes:
        received, sent: activations.
        gradient: with respect to what it received.
        passes: forward passes that reached it.
        skipped: those that went past it.
        refused: why its activations were refused, once for every pass.
        bytes: of the activations that it sent.
        sent_error: see `thiefbench.defenses.stages.base.Recomputed`.
    """

    received: Tally = field(default_factory=Tally)
    sent: Tally = field(default_factory=Tally)
    gradient: Tally = field(default_factory=Tally)
    passes: int = 0
    skipped: int = 0
    refused: list[str] = field(default_factory=list)
    bytes: int = 0
    sent_error: float = 0.0


class Line:
    """A model as a line of stages. While it is open, every pass goes from stage to stage over checked boundaries.

    A stage that is skipped, or whose activations are refused, is passed by: the next stage receives what it received,
    as in a partial pipeline. Its layers are run all the same, because the model's cache needs them, and learn nothing.

    Args:
        model: a transformers model whose `base_model.layers` are its layers.
        stages: the layers of every stage.
        pad: the token that is no token.

    Attributes:
        traffic: by stage, since the line was opened.
        skipping: the stages that the next passes skip.
    """

    def __init__(self, model: Any, stages: Sequence[range], pad: int) -> None:
        self._base, self._stages, self._pad = model.base_model, stages, pad
        self.traffic: list[Traffic] = []
        self.skipping: frozenset[int] = frozenset()
        self._real = torch.zeros(0, dtype=torch.bool)
        self._received = torch.zeros(0)
        self._passes = 0

    @contextmanager
    def open(self, malicious: int | None = None, sent: Sent | None = None) -> Iterator[None]:
        """Send activations from stage to stage until the context ends.

        Args:
            malicious: the stage that sends what `sent` says; None if all send what they computed.
            sent: see `Sent`.
        """
        self.traffic, self._passes = [Traffic() for _ in self._stages], 0
        handles = [self._base.register_forward_pre_hook(self._begin, with_kwargs=True)]
        for number, layers in enumerate(self._stages):
            first, last = self._base.layers[layers[0]], self._base.layers[layers[-1]]
            handles.append(first.register_forward_pre_hook(self._arrives(number)))
            handles.append(last.register_forward_hook(self._leaves(number, sent if number == malicious else None)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _begin(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """A pass begins: padding does not count."""
        self._real = kwargs["input_ids"] != self._pad
        self._passes += 1

    def _arrives(self, number: int) -> Callable[[Any, Any], None]:
        def arrives(module: Any, args: Any) -> None:
            self._received = args[0]
            if number in self.skipping:
                return
            traffic, real = self.traffic[number], self._real
            traffic.received.add(args[0], real)
            if args[0].requires_grad:
                args[0].register_hook(lambda gradient: traffic.gradient.add(gradient, real))

        return arrives

    def _leaves(self, number: int, sent: Sent | None) -> Callable[[Any, Any, Any], torch.Tensor]:
        def leaves(module: Any, args: Any, computed: torch.Tensor) -> torch.Tensor:
            traffic, received = self.traffic[number], self._received
            if number in self.skipping:
                traffic.skipped += 1
                return received
            traffic.passes += 1
            message = computed if sent is None else sent(self._passes - 1, received.detach(), computed.detach())
            wrong = problem(message, computed)
            if wrong:
                traffic.refused.append(wrong)
                traffic.sent_error = float("inf")
                return received
            assert isinstance(message, torch.Tensor), "problem said so"
            traffic.sent.add(message, self._real)
            traffic.bytes += message.numel() * message.element_size()
            if sent is None or torch.equal(message, computed):
                return computed
            changed = message.detach() - computed.detach()
            largest = max(float(computed.detach().abs().max()), 1e-30)
            traffic.sent_error = max(traffic.sent_error, float(changed.abs().max()) / largest)
            return computed + changed  # gradients pass as if nothing had been changed: only the stage knows

        return leaves
