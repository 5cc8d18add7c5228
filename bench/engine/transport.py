"""The messages between nodes. A received offer is data from a stranger: checked, bounded, never unpickled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from thiefbench.engine.model.policy import Policy
from thiefbench.engine.model.spans import token_spans
from thiefbench.engine.topology import PoolPosition
from thiefbench.tasks.answer_keys import AnswerKey
from thiefbench.tasks.base import Completion

# The longest accepted proof: this many bytes, plus this many per token.
PROOF_BYTES, PROOF_BYTES_PER_TOKEN = 1024, 64
# The least log-prob that a sender may report of a token; a softmax in float32 gives nothing near it.
LEAST_LOGPROB = -1e4
# Rounding lets a certain token's log-prob come out a little above 0.
MOST_LOGPROB = 1e-3
# In another vocabulary a completion may need more tokens; beyond this multiple of the limit it is refused.
LONGEST_REENCODED = 2


@dataclass(frozen=True)
class Offer:
    """One completion on the wire: the sender's token ids, the closing EOS included, and claims about them.

    The sender's tokenizer is public, so every receiver derives the text from the ids. A receiver with another tokenizer
    encodes that text again (`carried_over`). So all receivers get the same text, which would not be certain if ids and
    text were sent separately.

    Attributes:
        node: who sends it.
        group, index: the slot that it fills.
        ids: its token ids.
        seed: the key that the sender claims for its noise, a signed 64-bit integer.
        proof: the sender's proof of its computation (`Defense.prove`).
        logprobs: the natural log-prob of each token under the sender's weights, as claimed.
        version: the number of updates of the weights from which it claims to have sampled; None in swarms without
            delay.
        missing: why the sender's message has no offer for this slot, which then has no ids; empty if it has one.
        answer_key: the answer and tests that the sender sends with the group; None where none are sent.
    """

    node: int
    group: int
    index: int
    ids: tuple[int, ...]
    seed: int | None = None
    proof: bytes | None = None
    logprobs: tuple[float, ...] | None = None
    version: int | None = None
    missing: str = ""
    answer_key: AnswerKey | None = None

    @property
    def at(self) -> PoolPosition:
        """Where the completion stands in the pool."""
        return self.group, self.index


@dataclass(frozen=True)
class Received:
    """An offer after the receiver's checks.

    Attributes:
        completion: text and EOS, derived from the ids by the receiver; empty if the offer was refused.
        refused: why it leaves its group, whatever task and defense decide, or an empty string.
        seed, proof, version: the claims; None if the sender made none, or an unreadable one. The same holds for the
            completion's log-probs.
        answer_key: the answer and tests by which the receiver scores it; None for the task's own.
    """

    completion: Completion
    refused: str
    seed: int | None = None
    proof: bytes | None = None
    version: int | None = None
    answer_key: AnswerKey | None = None


def receive(policy: Policy, offers: Sequence[Offer], max_new_tokens: int) -> list[Received]:
    """Check every offer and derive its text from its ids.

    A malformed offer becomes an empty completion. A completion with a pad, EOS or chat-control token inside is refused
    too, because such tokens forge structure, but its text stays visible. Refused completions leave their groups: if
    they counted with a reward of 0, an empty message would be a decoy that no defense could reject.
    """
    reasons = [offer.missing or malformed(policy, offer.ids, max_new_tokens) for offer in offers]
    rows = [() if reason else offer.ids for offer, reason in zip(offers, reasons, strict=True)]
    ended = [bool(row) and row[-1] == policy.eos for row in rows]
    bodies = [row[:-1] if has_ended else row for row, has_ended in zip(rows, ended, strict=True)]
    texts = policy.decode(bodies)
    received = []
    for offer, body, text, has_ended, reason in zip(offers, bodies, texts, ended, reasons, strict=True):
        forged = "" if policy.special.isdisjoint(body) else "a control token inside the completion"
        seed = offer.seed if type(offer.seed) is int and -(2**63) <= offer.seed < 2**63 else None
        proof = carried(offer.proof, len(body))
        logprobs = None if reason else _logprobs(offer)
        completion = Completion(tuple(body), text, has_ended, logprobs)
        received.append(Received(completion, reason or forged, seed, proof, stated_version(offer)))
    return received


def carried_over(received: Sequence[Received], sender: Policy, receiver: Policy, max_new_tokens: int) -> list[Received]:
    """The completions in the tokens of a receiver with another tokenizer.

    Log-probs are carried over by characters: a token's log-prob is divided evenly among its characters, and each new
    token gets the sum over its own characters, so that a completion's sum does not change.

    Args:
        received: the completions in the sender's tokens.
        sender, receiver: the policies whose tokenizers are used.
        max_new_tokens: the sampler's limit; a text of more than `LONGEST_REENCODED` times as many new tokens is refused
            and has no ids, as is a text that the receiver's tokenizer does not reproduce.
    """
    same = sender.shares_tokens(receiver)
    if same and sender.vocabulary <= receiver.vocabulary:
        return list(received)
    carried_over_rows = []
    for arrival in received:
        completion = arrival.completion
        ids = completion.ids if same else tuple(receiver.encode(completion.text))
        if reason := _unreadable(completion, ids, receiver, max_new_tokens, same):
            carried_over_rows.append(
                replace(arrival, completion=Completion((), completion.text, False), refused=arrival.refused or reason)
            )
            continue
        forged = "" if receiver.special.isdisjoint(ids) else "a control token inside the completion"
        logprobs = completion.logprobs
        if logprobs is not None and not same:
            spread = _respread(
                logprobs, _spans(sender, completion.ids, completion.text), _spans(receiver, ids, completion.text)
            )
            logprobs = spread + logprobs[len(completion.ids) :]
        in_own_tokens = Completion(ids, completion.text, completion.ended, logprobs)
        carried_over_rows.append(replace(arrival, completion=in_own_tokens, refused=arrival.refused or forged))
    return carried_over_rows


def reencode(source: Policy, target: Policy, ids: tuple[int, ...]) -> tuple[int, ...]:
    """Token ids of one model, the closing EOS included, in the tokens of a model with another tokenizer.

    Ids that are malformed in the source model are unchanged.
    """
    if source.shares_tokens(target) or malformed(source, ids, len(ids)):
        return ids
    ended = ids[-1:] == (source.eos,)
    (text,) = source.decode([ids[: len(ids) - ended]])
    return (*target.encode(text), *(target.eos,) * ended)


def _unreadable(completion: Completion, ids: tuple[int, ...], receiver: Policy, max_new_tokens: int, same: bool) -> str:
    """Why a receiver has no tokens for a completion that it encodes as `ids`, or an empty string."""
    if not all(0 <= token < receiver.vocabulary for token in ids):  # of one tokenizer, models differ in their padding
        return "a token id outside the receiver's vocabulary"
    if same:
        return ""
    if len(ids) + completion.ended > LONGEST_REENCODED * max_new_tokens:
        return f"{len(ids)} tokens in the receiver's vocabulary, where {max_new_tokens} is the limit"
    if receiver.decode([ids])[0] != completion.text:  # a tokenizer may normalise texts
        return "a text that the receiver's tokens do not say"
    return ""


def _spans(policy: Policy, ids: tuple[int, ...], text: str) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in token_spans(ids, text, policy.pieces(ids), policy.decode)]


def _respread(
    logprobs: Sequence[float], old: Sequence[tuple[int, int]], new: Sequence[tuple[int, int]]
) -> tuple[float, ...]:
    """Log-probs of tokens that stand at `old`, carried over to tokens that stand at `new` in the same text."""
    size = max([end for _, end in (*old, *new)], default=0) + 1
    mass, readers = np.zeros(size), np.zeros(size)
    for value, (start, end) in zip(logprobs, old, strict=False):
        mass[start : max(end, start + 1)] += value / max(end - start, 1)
    for start, end in new:
        readers[start : max(end, start + 1)] += 1
    shared = mass / np.maximum(readers, 1)
    unread = float(mass[readers == 0].sum()) / max(len(new), 1)  # of tokens that stand for no character
    return tuple(float(shared[start : max(end, start + 1)].sum()) + unread for start, end in new)


def carried(proof: object, tokens: int) -> bytes | None:
    """A received proof for a completion of this many tokens; None if it is not a proof, or too large."""
    if not isinstance(proof, bytes) or len(proof) > PROOF_BYTES + PROOF_BYTES_PER_TOKEN * tokens:
        return None
    return proof


def stated_version(offer: Offer) -> int | None:
    """The version that a sender claims; None if it is not a valid version."""
    return offer.version if type(offer.version) is int and 0 <= offer.version < 2**31 else None


def _logprobs(offer: Offer) -> tuple[float, ...] | None:
    """The log-probs that a sender reports, one for each of its tokens; None if they are invalid."""
    logprobs = offer.logprobs
    if not isinstance(logprobs, tuple) or len(logprobs) != len(offer.ids):
        return None
    sound = all(type(v) is float and math.isfinite(v) and LEAST_LOGPROB <= v <= MOST_LOGPROB for v in logprobs)
    return logprobs if sound else None


def malformed(policy: Policy, ids: object, max_new_tokens: int) -> str:
    """What is wrong with the token ids of an offer, or an empty string."""
    if not isinstance(ids, tuple) or not all(type(token) is int for token in ids):
        return "ids are not a tuple of integers"
    if len(ids) > max_new_tokens:
        return f"{len(ids)} tokens, over the limit of {max_new_tokens}"
    if not ids:
        return "empty"
    if not all(0 <= token < policy.vocabulary for token in ids):
        return "a token id outside the vocabulary"
    return ""
