"""Messages of a distributed swarm. What arrives is data from strangers: JSON with exact fields, checked and bounded.

Messages contain no fractions, so nothing is rounded and NaN cannot be sent; nothing is ever unpickled.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from thiefbench import strict_json
from thiefbench.engine.answer_keys import MOST_CHARACTERS, readable
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.topology import Assignment, PoolPosition
from thiefbench.engine.transport import PROOF_BYTES, PROOF_BYTES_PER_TOKEN, Offer
from thiefbench.tasks.answer_keys import AnswerKey

# Ids over the sampler's limit are sent, so that receivers can say why they refuse them; not beyond this multiple.
LONGEST_SENT = 2
ITEM_ID_BYTES, ID_BYTES, OFFER_BYTES, HEAD_BYTES = 1024, 12, 128, 8192
KEY_BYTES = 12 * MOST_CHARACTERS  # a character beyond 16 bits is escaped as two of six bytes
REASON_CHARACTERS = 400
_DIGEST = 32
_HALTS = ("stopped", "failed")


class MessageError(ValueError):
    """The reason why a message is refused, in one sentence."""


@dataclass(frozen=True)
class NodeMessage:
    """The content of a node's message about its slots.

    Attributes:
        offers: one for every assignment, in order; without ids, and with a reason, if the message has no valid offer.
        payload: places in the pool of its completions with the payload: the labels, which no defense sees.
        weights: digest of the sender's weights; empty if unreadable.
        refused: why entries, or the whole message, are not valid.
    """

    offers: list[Offer]
    payload: set[PoolPosition]
    weights: str
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Halt:
    """A rank stops: the user stopped it, or it failed."""

    why: str
    reason: str


def most_bytes(spec: SwarmSpec) -> int:
    """The maximum length in bytes of a message in a round."""
    owed = spec.prompts * spec.group // spec.nodes
    tokens = spec.sampling.max_new_tokens
    proof = (PROOF_BYTES + PROOF_BYTES_PER_TOKEN * LONGEST_SENT * tokens) * 4 // 3
    offers = owed * (OFFER_BYTES + LONGEST_SENT * tokens * ID_BYTES + proof)
    if spec.truth == "sender":
        offers += spec.prompts // spec.nodes * (KEY_BYTES + OFFER_BYTES)
    return HEAD_BYTES + max(offers, spec.prompts * ITEM_ID_BYTES)


def encode(fields: Mapping[str, Any]) -> bytes:
    """A message's bytes."""
    return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()


def decode(data: bytes) -> dict[str, Any]:
    """A message's fields, none of them checked yet.

    Raises:
        MessageError: it is not a JSON object in UTF-8, has a duplicate key, or contains a number that is not a 64-bit
            integer.
    """
    try:
        fields = strict_json.loads(data, only_int64=True)
    except strict_json.JsonError as error:
        raise MessageError(error.reason) from error
    if type(fields) is not dict:
        raise MessageError("not a JSON object")
    return fields


def halted(fields: Mapping[str, Any]) -> Halt | None:
    """The halt that a message announces; None where it is another message."""
    if fields.get("what") != "halt":
        return None
    why, reason = fields.get("why"), fields.get("reason")
    known = why if type(why) is str and why in _HALTS else "failed"
    return Halt(known, reason[:REASON_CHARACTERS] if type(reason) is str else "")


def halt(why: str, reason: str) -> bytes:
    """A message that announces a halt."""
    return encode({"what": "halt", "why": why, "reason": reason[:REASON_CHARACTERS]})


def offers_message(
    number: int,
    weights: str,
    offers: Sequence[Offer],
    payload: set[PoolPosition],
    max_new_tokens: int,
    keyed: bool = False,
) -> bytes:
    """A node's offers as a message; if `keyed`, with the answer key of every group."""
    rows = [
        [
            offer.group,
            offer.index,
            _sendable(offer.ids, max_new_tokens),
            offer.seed if _is_whole(offer.seed) else None,
            None if offer.proof is None else base64.b64encode(offer.proof).decode(),
            int(offer.at in payload),
        ]
        for offer in offers
    ]
    fields = {"what": "offers", "round": number, "weights": weights, "offers": rows}
    if keyed:
        sent = {offer.group: offer.answer_key for offer in offers if offer.answer_key is not None}
        sound = {group: readable(key.answer, key.tests) for group, key in sent.items()}
        fields["answer_keys"] = [[group, key.answer, key.tests] for group, key in sound.items() if key is not None]
    return encode(fields)


def read_offers(data: bytes | None, number: int, owed: Sequence[Assignment], spec: SwarmSpec) -> NodeMessage:
    """The offers in a node's message for the slots that it owes.

    An entry counts only if its slot is the node's own and named once in the message. Entries beyond the number of owed
    slots are not read.

    Args:
        data: the message; None if it is missing or too long.
        number: of the round.
        owed: what the node owes that has sent it, as the process group identifies it.
        spec: the swarm.
    """
    try:
        keyed = {"answer_keys"} if spec.truth == "sender" else set()
        fields = _fields(data, "offers", number, {"weights", "offers"} | keyed)
        weights, rows = fields["weights"], fields["offers"]
        if not _is_digest(weights):
            raise MessageError("weights are not a digest")
        if type(rows) is not list:
            raise MessageError("offers are not a list")
        keys = _answer_keys(fields["answer_keys"], owed) if keyed else {}
    except MessageError as error:
        return NodeMessage([_missing(assignment, str(error)) for assignment in owed], set(), "", (str(error),))
    assignments = {assignment.at: assignment for assignment in owed}
    refused = [f"{len(rows)} offers, where {len(owed)} are owed"] if len(rows) > len(owed) else []
    offered: dict[PoolPosition, tuple[Offer, bool]] = {}
    wrong: dict[PoolPosition, str] = {}
    named: Counter[PoolPosition] = Counter()
    for row in rows[: len(owed)]:
        position = _position(row)
        if position is None:
            refused.append("an offer that names no slot")
        elif position not in assignments:
            refused.append(f"an offer for the slot {position}, which is another node's")
        else:
            named[position] += 1
            try:
                offered[position] = _offer(row, assignments[position], spec.sampling.max_new_tokens)
            except MessageError as error:
                wrong[position] = str(error)
    wrong |= dict.fromkeys((position for position, times in named.items() if times > 1), "two offers for one slot")
    refused += [f"the slot {position}: {why}" for position, why in wrong.items()]
    offers, payload = [], set()
    for position, assignment in assignments.items():
        if position in wrong or position not in offered:
            offers.append(_missing(assignment, wrong.get(position, "no offer for this slot")))
            continue
        offer, carries = offered[position]
        offers.append(replace(offer, answer_key=keys.get(assignment.group)))
        if carries:
            payload.add(position)
    return NodeMessage(offers, payload, weights, tuple(refused))


def items_message(number: int, items: Sequence[str]) -> bytes:
    """The items that a node has picked, by id, as a message."""
    return encode({"what": "items", "round": number, "items": list(items)})


def read_items(data: bytes | None, number: int, count: int) -> list[str]:
    """The ids of the `count` items that a node says it picked; whether they exist is not checked.

    Raises:
        MessageError: it is not such a message.
    """
    items = _fields(data, "items", number, {"items"})["items"]
    if type(items) is not list or len(items) != count or not all(type(item) is str for item in items):
        raise MessageError(f"items are not {count} ids")
    return items


def _fields(data: bytes | None, what: str, number: int, names: set[str]) -> dict[str, Any]:
    """The fields of a message of a kind and round."""
    if data is None:
        raise MessageError("no message of a sound size")
    fields = decode(data)
    if fields.keys() != names | {"what", "round"}:
        raise MessageError("not the fields of this message")
    if fields["what"] != what or type(fields["round"]) is not int or fields["round"] != number:
        raise MessageError(f"not the {what} of round {number}")
    return fields


def _offer(row: list[Any], assignment: Assignment, max_new_tokens: int) -> tuple[Offer, bool]:
    """An entry of a message as an offer, and whether it carries the payload."""
    _, _, ids, seed, proof, payload = row
    if type(ids) is not list or not all(type(token) is int for token in ids):
        raise MessageError("ids are not a list of integers")
    if len(ids) > LONGEST_SENT * max_new_tokens:
        raise MessageError(f"{len(ids)} tokens, over the limit of {max_new_tokens}")
    if seed is not None and type(seed) is not int:
        raise MessageError("the seed is no integer")
    if type(payload) is not int or payload not in (0, 1):
        raise MessageError("payload is neither 0 nor 1")
    if proof is not None:
        try:
            proof = base64.b64decode(proof, validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise MessageError("the proof is not base64") from error
    return Offer(assignment.node, assignment.group, assignment.index, tuple(ids), seed, proof), payload == 1


def _answer_keys(rows: object, owed: Sequence[Assignment]) -> dict[int, AnswerKey]:
    """The readable answer keys in a message, by group; of groups that the sender owes, the first for each."""
    groups = {assignment.group for assignment in owed}
    if type(rows) is not list or len(rows) > len(groups):
        raise MessageError("answer_keys are not a list of at most one for each group")
    keys: dict[int, AnswerKey] = {}
    for row in rows:
        if type(row) is not list or len(row) != 3 or type(row[0]) is not int or row[0] not in groups:
            raise MessageError("an answer key for no group of the sender")
        key = readable(row[1], row[2])
        if key is not None:
            keys.setdefault(row[0], key)
    return keys


def _position(row: object) -> PoolPosition | None:
    if type(row) is not list or len(row) != 6 or type(row[0]) is not int or type(row[1]) is not int:
        return None
    return row[0], row[1]


def _missing(assignment: Assignment, why: str) -> Offer:
    return Offer(assignment.node, assignment.group, assignment.index, (), missing=why)


def _sendable(ids: object, max_new_tokens: int) -> list[int]:
    """Ids as a list; an empty one, which receivers refuse, where they are nothing that can be sent."""
    sound = isinstance(ids, tuple) and len(ids) <= LONGEST_SENT * max_new_tokens
    return list(ids) if sound and all(-(2**31) <= i < 2**31 if type(i) is int else False for i in ids) else []  # type: ignore[call-overload,attr-defined]


def _is_whole(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_digest(value: object) -> bool:
    return type(value) is str and len(value) == _DIGEST and set(value) <= set("0123456789abcdef")
