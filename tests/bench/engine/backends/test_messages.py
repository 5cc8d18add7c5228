"""Messages between ranks: what is sound arrives as it was, and nothing else is taken for it."""

from __future__ import annotations

import json
import random
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from thiefbench.engine.answer_keys import MOST_CHARACTERS
from thiefbench.engine.backends.messages import (
    LONGEST_SENT,
    MessageError,
    NodeMessage,
    decode,
    encode,
    halt,
    halted,
    items_message,
    most_bytes,
    offers_message,
    read_items,
    read_offers,
)
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.topology import Assignment
from thiefbench.engine.transport import Offer
from thiefbench.tasks.answer_keys import AnswerKey
from thiefbench.tasks.base import Sampling

LIMIT = 20
SPEC = SwarmSpec(nodes=2, malicious=1, prompts=4, group=4, sampling=Sampling(max_new_tokens=LIMIT))
DIGEST = "0123456789abcdef" * 2
NODE, ROUND = 1, 3
OWED = [Assignment(NODE, group, place, group, place // 2) for group in range(4) for place in (1, 3)]
OFFERS = [Offer(NODE, d.group, d.index, tuple(range(d.group, d.group + 9)), -(2**63) + d.index, b"p\xff") for d in OWED]
PAYLOAD = {(0, 1), (3, 3)}


def message() -> dict[str, Any]:
    """A sound message's fields."""
    made: dict[str, Any] = json.loads(offers_message(ROUND, DIGEST, OFFERS, PAYLOAD, LIMIT))
    return made


def read(data: bytes | None) -> NodeMessage:
    return read_offers(data, ROUND, OWED, SPEC)


def test_a_sound_message_arrives_as_it_was() -> None:
    got = read(offers_message(ROUND, DIGEST, OFFERS, PAYLOAD, LIMIT))
    assert got == NodeMessage(OFFERS, PAYLOAD, DIGEST), (
        "ids, 64-bit seeds, proofs, payload and digest arrive bit by bit"
    )


def test_the_longest_message_that_a_round_needs_is_let_through() -> None:
    ids, proof = (-(2**31),) * (LONGEST_SENT * LIMIT), bytes(1024 + 64 * LONGEST_SENT * LIMIT)
    offers = [Offer(NODE, assignment.group, assignment.index, ids, -(2**63), proof) for assignment in OWED]
    assert len(offers_message(ROUND, DIGEST, offers, PAYLOAD, LIMIT)) <= most_bytes(SPEC)


SENDER = replace(SPEC, topology="vertical", truth="sender")
KEYS = {0: AnswerKey("5", "tests"), 1: AnswerKey("", ""), 2: AnswerKey("\U0001f600" * MOST_CHARACTERS, "")}


def keyed(answer_keys: object = None) -> NodeMessage:
    """A message of a swarm in which answers and tests travel, as it arrives; with other entries for them, if given."""
    offers = [replace(offer, answer_key=KEYS.get(offer.group)) for offer in OFFERS]
    data = offers_message(ROUND, DIGEST, offers, PAYLOAD, LIMIT, keyed=True)
    if answer_keys is not None:
        data = encode(json.loads(data) | {"answer_keys": answer_keys})
    return read_offers(data, ROUND, OWED, SENDER)


def test_answers_and_tests_arrive_with_their_group() -> None:
    message = keyed()
    assert {offer.group: offer.answer_key for offer in message.offers} == KEYS | {3: None}
    assert [replace(offer, answer_key=None) for offer in message.offers] == OFFERS
    assert all(offer.answer_key is None for offer in read(offers_message(ROUND, DIGEST, OFFERS, PAYLOAD, LIMIT)).offers)
    longest = [replace(offer, answer_key=AnswerKey("", "\U0001f600" * MOST_CHARACTERS)) for offer in OFFERS]
    whole = [replace(offer, ids=(-(2**31),) * (LONGEST_SENT * LIMIT), proof=bytes(1024)) for offer in longest]
    two = [offer for offer in whole if offer.group < SENDER.prompts // SENDER.nodes]
    assert len(offers_message(ROUND, DIGEST, two, PAYLOAD, LIMIT, keyed=True)) <= most_bytes(SENDER)


@pytest.mark.parametrize(
    "entries",
    [{}, 3, [[0, "5", ""]] * 5, [[4, "5", ""]], [[0, "5"]], [["0", "5", ""]], [None], [[True, "5", ""]]],
)
def test_entries_that_are_no_answer_keys_make_the_message_unreadable(entries: object) -> None:
    message = keyed(entries)
    assert len(message.refused) == 1
    assert all(offer.missing for offer in message.offers)


def test_an_answer_key_that_cannot_be_read_is_none() -> None:
    entries = [[0, 5, ""], [1, "5", None], [2, "\ud800", ""], [3, "x" * (MOST_CHARACTERS + 1), ""]]
    message = keyed(entries)
    assert not message.refused
    assert {offer.answer_key for offer in message.offers} == {None}, "receivers then refuse the group by name"


def test_a_message_with_answer_keys_is_of_no_other_swarm() -> None:
    plain = offers_message(ROUND, DIGEST, OFFERS, PAYLOAD, LIMIT)
    assert read_offers(plain, ROUND, OWED, SENDER).refused == ("not the fields of this message",)
    sent = offers_message(ROUND, DIGEST, OFFERS, PAYLOAD, LIMIT, keyed=True)
    assert read(sent).refused == ("not the fields of this message",)


@pytest.mark.parametrize(
    ("change", "at", "why"),
    [
        (lambda rows: rows[0].__setitem__(1, 0), (0, 1), "no offer for this slot"),
        (lambda rows: rows.append(rows[0]), None, "9 offers, where 8 are owed"),
        (lambda rows: rows.__setitem__(1, rows[0]), (0, 1), "two offers for one slot"),
        (lambda rows: rows.pop(2), (1, 1), "no offer for this slot"),
        (lambda rows: rows[0].__setitem__(2, [1] * (LONGEST_SENT * LIMIT + 1)), (0, 1), "41 tokens, over the limit"),
        (lambda rows: rows[0].__setitem__(2, [1, True]), (0, 1), "ids are not a list of integers"),
        (lambda rows: rows[0].__setitem__(4, "*"), (0, 1), "the proof is not base64"),
    ],
)
def test_an_entry_counts_for_an_own_slot_that_is_named_once(
    change: Callable[[list[Any]], object], at: tuple[int, int] | None, why: str
) -> None:
    fields = message()
    change(fields["offers"])
    got = read(encode(fields))
    assert [(offer.group, offer.index) for offer in got.offers] == [
        (assignment.group, assignment.index) for assignment in OWED
    ]
    assert {offer.node for offer in got.offers} == {NODE}, "a message speaks for its sender alone"
    if at is None:
        assert why in got.refused[0], "what is too much is refused, with a reason"
        assert got.offers == OFFERS, "and costs the other entries nothing"
        return
    (lost,) = [offer for offer in got.offers if (offer.group, offer.index) == at]
    assert why in lost.missing, "the slot says why nothing came"
    assert lost.ids == ()
    others = [offer for offer in got.offers if not offer.missing]
    assert all(offer in OFFERS for offer in others), "every other entry arrives as it was"


WRONG: list[object] = ["x", None, True, [], {}, [[1]], [True], ["1"], 2**62]


def malformed(rng: random.Random) -> bytes | None:
    """A message that is wrong somewhere."""
    whole, fields = offers_message(ROUND, DIGEST, OFFERS, PAYLOAD, LIMIT), message()
    rows = fields["offers"]
    row = rng.choice(rows)
    kind = rng.randrange(16)
    if kind == 0:
        return whole[: rng.randrange(len(whole))]
    if kind == 1:
        at = rng.randrange(len(whole) + 1)
        return whole[:at] + bytes([rng.choice([0x80, 0xC0, 0xF8, 0xFF])]) + whole[at:]
    if kind == 2:
        return whole[:-1] + f',"{rng.choice(list(fields))}":{rng.choice(["1", "[]", "null"])}}}'.encode()
    if kind == 3:
        number = rng.choice(["NaN", "-Infinity", "1.5", "1e3", "9" * rng.randrange(20, 9000), str(2**63)])
        return whole.replace(b'"round":3', f'"round":{number}'.encode()).replace(
            b"[0,1,[0,", f"[0,1,[{number},".encode()
        )
    if kind == 4:
        return rng.choice([b"[", b'{"what":', b"[[1],"]) * rng.randrange(1, 20_000)
    if kind == 5:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(200)))
    if kind == 6:
        return None
    if kind == 7:
        del fields[rng.choice(list(fields))]
    elif kind == 8:
        fields[rng.choice(["", "more", "What", "offers "])] = 1
    elif kind == 9:
        fields[rng.choice(["what", "weights"])] = rng.choice([*WRONG, DIGEST.upper(), DIGEST[:-1], "items"])
    elif kind == 10:
        fields["round"] = rng.choice([*WRONG, 2, 4, -3])
    elif kind == 11:
        fields["offers"] = rng.choice(["x", None, 3, {}, {"0": row}])
    elif kind == 12:
        rows += [[group, place, [1], None, None, 0] for group in range(9) for place in range(rng.randrange(1, 99))]
    elif kind == 13:
        row[:2] = rng.choice([[0, 0], [-1, 1], [4, 1], [2**62, 1], ["0", 1], [0, None], [True, 1]])
    elif kind == 14:
        rows[rng.randrange(len(rows))] = rng.choice(["x", None, 3, {}, row[:5], [*row, 0], []])
    else:
        at, wrong = rng.choice([
            (2, ["x", None, 3, {}, [None], [[1]], ["1"], [True], [1] * 41]), (3, ["x", True, [], {}]),
            (4, [7, True, [], "*", "é", "abc"]), (5, ["1", None, True, 2, -1, []]),
        ])  # fmt: skip
        row[at] = rng.choice(wrong)
    return encode(fields)


@pytest.mark.slow
def test_ten_thousand_malformed_messages_are_refused_with_reasons() -> None:
    rng = random.Random(0)
    for number in range(10_000):
        data = malformed(rng)
        got = read(data)
        assert all(got.refused), "a refusal gives its reason"
        assert got.refused, f"refused: {data!r}"
        assert len(got.offers) == len(OWED), "every slot is answered for"
        assert all(offer.missing or offer in OFFERS for offer in got.offers), f"nothing else gets in: {data!r}"
        assert got.payload <= PAYLOAD
        if number == 1_000:
            before = resident()
    assert resident() - before < 10_000_000, "nothing of nine thousand messages stays in memory"


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize(
    "data",
    [None, b"", b"[]", b'{"what":"items","round":3,"items":["a"]}', b'{"what":"items","round":3,"items":["a",1]}',
     b'{"what":"items","round":2,"items":["a","b"]}', b'{"what":"items","round":3,"items":["a","b"],"items":[]}'],
)  # fmt: skip
def test_picked_items_are_as_many_ids_as_are_owed(data: bytes | None) -> None:
    assert read_items(items_message(ROUND, ["a", "b"]), ROUND, 2) == ["a", "b"]
    with pytest.raises(MessageError):
        read_items(data, ROUND, 2)


def test_a_halt_is_read_and_its_reason_bounded() -> None:
    found = halted(decode(halt("stopped", "é" * 9999)))
    assert found is not None
    assert (found.why, len(found.reason)) == ("stopped", 400)
    odd = halted({"what": "halt", "why": ["x"], "reason": 3})
    assert odd is not None, "whoever says halt halts, in whatever words"
    assert (odd.why, odd.reason) == ("failed", "")
    assert halted(message()) is None
