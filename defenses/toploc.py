"""`toploc`: a proof of the computation behind a completion (TOPLOC, arXiv:2501.16007)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Requirement, Verdict
from thiefbench.defenses.rejection import Reject, checked

CHUNK, LARGEST = 32, 128
"""How many tokens one commitment covers, and how many elements of their states it holds (at most a quarter)."""
MANTISSA = 7
"""Bits of a bfloat16's mantissa."""
ENTRY = np.dtype([("index", "<u4"), ("value", "<u2")])
"""One element: its position in the chunk's flattened states, and its value in bfloat16."""


class Toploc(Defense):
    """The sender commits to the largest elements of its last hidden states; the verifier recomputes and compares them.

    It stops senders that use other weights, another precision or another prompt than agreed. It does NOT stop poison:
    the proof binds a text to a computation but does not show how the text was chosen. Anyone who has the policy can
    compute a valid proof for any text with one forward pass, as every attacker here does. It is useful together with a
    check of the sampling, such as `seed_replay`.

    As in the source, values are compared as bfloat16 in two parts: exponents (with the sign) must agree and, if they
    do, mantissas must be close. The worst chunk of 32 tokens decides. The proof here is not compressed, with six bytes
    per element; the published one packs 128 elements into 258 bytes.

    The defaults are for float32. On 128 completions of micro-math, the mean difference was 0.00 for all of them when
    they were recomputed in other batches, and at least 0.49 with bfloat16 weights or with 1 % of noise on the weights.
    In bfloat16, honest completions reached 0.51, so use mean=0.75 there: it rejected none of the honest completions,
    127 with the noise, and 117 with float32 weights.

    Args:
        reject: "drop" or "zero".
        exponents: largest allowed share of a chunk's elements that the verifier finds elsewhere or with another
            exponent.
        mean, median: largest allowed mean and median difference of its mantissas, in steps (a mantissa has 128).
    """

    name: ClassVar[str] = "toploc"
    requires: ClassVar[frozenset[Requirement]] = frozenset({"homogeneous", "proofs"})

    def __init__(
        self, reject: Reject = "drop", exponents: float = 0.1, mean: float = 0.25, median: float = 0.5
    ) -> None:
        if not 0 <= exponents <= 1 or mean < 0 or median < 0:
            raise ValueError("toploc: exponents is a share in [0, 1], and mean and median are at least 0")
        self.reject: Reject = checked(self.name, reject)
        self.exponents, self.mean, self.median = exponents, mean, median

    def prove(self, states: NDArray[np.float32]) -> bytes:
        """The largest elements of every chunk, 6 bytes each, in the order of their positions."""
        return b"".join(chosen.tobytes() for chosen in (committed(part) for part in chunks(states)))

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject proofs that differ too much from the states; the score is the largest mean difference of mantissas."""
        return [
            self._verdict(distances(completion.proof, states))
            for completion, states in zip(view.completions, view.policy.hidden(view.completions), strict=True)
        ]

    def _verdict(self, by_chunk: list[Distance] | None) -> Verdict:
        if by_chunk is None:
            return Verdict(self.reject, reason="no proof that fits the completion")
        if all(d.exponents <= self.exponents and d.mean <= self.mean and d.median <= self.median for d in by_chunk):
            return ACCEPT
        return Verdict(self.reject, max(d.mean for d in by_chunk), reason="states differ from those committed to")


@dataclass(frozen=True)
class Distance:
    """How far the verifier's states of a chunk are from the sender's commitment.

    Attributes:
        exponents: share of the verifier's elements that are not among the sender's or have another sign or exponent.
        mean, median: of the mantissas' absolute differences, of 128 steps, where exponents agree; 0 where none do.
    """

    exponents: float
    mean: float
    median: float


def chunks(states: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """The states of every 32 tokens (fewer in the last chunk), flattened."""
    return [states[start : start + CHUNK].ravel() for start in range(0, len(states), CHUNK)]


def committed(part: NDArray[np.float32]) -> NDArray[np.void]:
    """The commitment to a chunk: its elements of largest magnitude, as `ENTRY`."""
    size = min(LARGEST, max(1, part.size // 4))
    places = np.sort(np.argsort(-np.abs(part), kind="stable")[:size])
    commitment = np.zeros(size, ENTRY)
    commitment["index"], commitment["value"] = places, bfloat16(part[places])
    return commitment


def distances(proof: bytes | None, states: NDArray[np.float32]) -> list[Distance] | None:
    """The distance of a proof from states, chunk by chunk; None where it is missing or has the wrong size."""
    computed = [committed(part) for part in chunks(states)]
    if proof is None or len(proof) != ENTRY.itemsize * sum(map(len, computed)):
        return None
    ends = np.cumsum([len(part) for part in computed])[:-1]
    claimed = np.split(np.frombuffer(proof, ENTRY), ends)
    return [_distance(claim, commitment) for claim, commitment in zip(claimed, computed, strict=False)]


def _distance(claimed: NDArray[np.void], computed: NDArray[np.void]) -> Distance:
    _, in_claimed, in_computed = np.intersect1d(claimed["index"], computed["index"], return_indices=True)
    claimed_bits = claimed["value"][in_claimed].astype(np.int64)
    computed_bits = computed["value"][in_computed].astype(np.int64)
    agree = claimed_bits >> MANTISSA == computed_bits >> MANTISSA
    apart = np.abs(claimed_bits - computed_bits)[agree] if agree.any() else np.zeros(1)
    return Distance(1 - float(agree.sum()) / len(computed), float(apart.mean()), float(np.median(apart)))


def bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of float32 values rounded to bfloat16, halves away from zero: sign, 8 of exponent, 7 of mantissa."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded: NDArray[np.uint16] = ((bits + (1 << 15)) >> 16).astype(np.uint16)
    return rounded
