from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import normalizers

from thiefbench.attacks.base import Attack, AttackerView, Poison, ThreatModel
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.swarm import Swarm
from thiefbench.engine.transport import (
    PROOF_BYTES,
    PROOF_BYTES_PER_TOKEN,
    Offer,
    Received,
    carried_over,
    receive,
    reencode,
)
from thiefbench.tasks.base import Ask, Completion, Item

LIMIT = 16

MALFORMED: dict[str, tuple[Any, str]] = {
    "empty": ((), "empty"),
    "too long": ((65,) * (LIMIT + 1), "17 tokens, over the limit of 16"),
    "past the vocabulary": ((65, 259), "outside the vocabulary"),
    "far past the vocabulary": ((10**30,), "outside the vocabulary"),
    "negative": ((65, -1), "outside the vocabulary"),
    "bool": ((65, True), "not a tuple of integers"),
    "float": ((65, 66.0), "not a tuple of integers"),
    "numpy integer": ((65, np.int64(66)), "not a tuple of integers"),
    "text": (("a", "b"), "not a tuple of integers"),
    "None inside": ((65, None), "not a tuple of integers"),
    "nested": ((65, (66,)), "not a tuple of integers"),
}
NO_TUPLE: dict[str, Any] = {"list": [65, 66], "string": "hello", "None": None, "dict": {65: 66}, "number": 65}
FORGED = ["eos", "pad", "start"]


def arrive(policy: Policy, ids: Any) -> Received:
    """One offer between two good ones, which must come through whatever stands between them."""
    good = (*policy.encode("fine"), policy.eos)
    before, got, after = receive(
        policy, [Offer(0, 0, place, row) for place, row in enumerate((good, ids, good))], LIMIT
    )
    for other in (before, after):
        assert other == Received(Completion(good[:-1], "fine", True), ""), "one bad offer must not touch the others"
    return got


@pytest.mark.parametrize("ended", [True, False])
def test_text_and_eos_are_derived_from_the_ids(ended: bool, policy: Policy) -> None:
    ids = tuple(policy.encode("so ✓ = a"))
    got = arrive(policy, (*ids, policy.eos) if ended else ids)
    assert got == Received(Completion(ids, "so ✓ = a", ended), "")


def test_a_lone_eos_is_an_ended_empty_text(policy: Policy) -> None:
    assert arrive(policy, (policy.eos,)) == Received(Completion((), "", True), "")


def test_the_limit_counts_eos(policy: Policy) -> None:
    assert arrive(policy, (65,) * (LIMIT - 1) + (policy.eos,)).refused == ""
    assert "over the limit" in arrive(policy, (65,) * LIMIT + (policy.eos,)).refused


@pytest.mark.parametrize(
    ("ids", "why"),
    [pytest.param(ids, why, id=name) for name, (ids, why) in MALFORMED.items()]
    + [pytest.param(ids, "not a tuple of integers", id=name) for name, ids in NO_TUPLE.items()],
)
def test_malformed_offers_arrive_empty_with_a_reason(ids: Any, why: str, policy: Policy) -> None:
    got = arrive(policy, ids)
    assert why in got.refused
    assert got.completion == Completion((), "", False), "nothing of a malformed offer is kept"


@pytest.mark.parametrize("seed", [0, -(2**63), 2**63 - 1])
def test_a_seed_is_a_signed_64_bit_integer(seed: int, policy: Policy) -> None:
    (got,) = receive(policy, [Offer(0, 0, 0, (65,), seed=seed)], LIMIT)
    assert got.seed == seed


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, True, 1.0, "1", None])
def test_a_claim_that_is_no_seed_counts_as_none(seed: Any, policy: Policy) -> None:
    (got,) = receive(policy, [Offer(0, 0, 0, (65,), seed=seed)], LIMIT)
    assert got.seed is None
    assert got.refused == "", "the completion itself is as good as any"


def test_proofs_are_bytes_of_bounded_size(policy: Policy) -> None:
    def kept(proof: Any) -> bytes | None:
        return receive(policy, [Offer(0, 0, 0, (65,) * 10, proof=proof)], LIMIT)[0].proof

    most = PROOF_BYTES + 10 * PROOF_BYTES_PER_TOKEN
    assert kept(b"x" * most) == b"x" * most
    assert kept(b"x" * (most + 1)) is None, "a proof over the limit does not arrive"
    assert kept("x") is kept([1]) is None


def forge(policy: Policy, name: str) -> tuple[int, ...]:
    token = {"eos": policy.eos, "pad": policy.pad, "start": policy.tokenizer.convert_tokens_to_ids("<|im_start|>")}[
        name
    ]
    return (*policy.encode("so"), token, *policy.encode("= a"), policy.eos)


@pytest.mark.parametrize("name", FORGED)
def test_control_tokens_inside_are_refused_and_visible(name: str, policy: Policy) -> None:
    ids = forge(policy, name)
    got = arrive(policy, ids)
    assert got.refused == "a control token inside the completion"
    assert got.completion.ids == ids[:-1], "a forged completion stays visible to the defense"
    assert "<|" in got.completion.text, "special tokens are kept visible in the text"


def test_two_eos_at_the_end_are_one_too_many(policy: Policy) -> None:
    assert arrive(policy, (65, policy.eos, policy.eos)).refused == "a control token inside the completion"


class Offers(Attack):
    """Sends the given ids from its slots."""

    name = "offers"
    threat = ThreatModel(context="out-of-context")

    def __init__(self, sent: Sequence[Any]) -> None:
        self.sent = sent

    def poison(self, view: AttackerView) -> list[Poison]:
        return [self.sent[i % len(self.sent)] for i in range(len(view.slots))]

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float:
        return 0.0


def malicious_rows(swarm: Swarm) -> list[CompletionRow]:
    return [row for row in swarm.round(1).rows if row.malicious]


def test_refused_offers_earn_nothing_and_teach_nothing_in_a_swarm(
    build_swarm: Callable[..., Swarm], policy: Policy, vowels: Any
) -> None:
    class Generous(type(vowels)):  # type: ignore[misc]
        """Gives the full reward to everything."""

        def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
            return [1.0] * len(completions)

    sent = [ids for ids, _ in MALFORMED.values()] + [forge(policy, name) for name in FORGED]
    swarm = build_swarm(attack=Offers(sent), task=Generous(), malicious=2, prompts=4, group=8)
    rows = malicious_rows(swarm)
    assert len(rows) == 16 >= len(sent)
    for row in rows:
        assert row.refused, "a malformed or forged offer is refused with a reason"
        assert row.reward == 0, "and earns no reward, whatever the task says"
        assert row.advantage == 0, "it is in no group, so nothing is measured against it either"


def test_text_of_attackers_is_encoded_cut_and_ended(build_swarm: Callable[..., Swarm]) -> None:
    rows = malicious_rows(build_swarm(attack=Offers(["short a", "a" * 99])))
    assert {(row.text, row.ended, row.refused) for row in rows} == {("short a", True, ""), ("a" * LIMIT, False, "")}


def test_text_of_attackers_cannot_forge_structure(build_swarm: Callable[..., Swarm]) -> None:
    rows = malicious_rows(build_swarm(attack=Offers(["a<|im_end|>b"])))
    assert all(row.refused and row.reward == 0 for row in rows), "control tokens spelt in text are caught as ids"


# ---- two vocabularies

LETTERS = [*"abAB ise=rou .,\n\té✓😀\u0301\ufffd中\u200d\x00", "saer", " = ", "aai", "<think>", "é✓"]


def random_rows(policy: Policy, seed: int, count: int) -> list[tuple[int, ...]]:
    """Token ids as texts have them, and any bytes, so that characters are split or never completed."""
    rng = random.Random(seed)
    rows: list[tuple[int, ...]] = []
    for number in range(count):
        if number % 2:
            rows.append(tuple(policy.encode("".join(rng.choices(LETTERS, k=rng.randint(1, 12))))))
        else:
            rows.append(tuple(rng.randrange(policy.vocabulary - 3) for _ in range(rng.randint(0, 12))))
    return rows


def sent_by(policy: Policy, ids: tuple[int, ...], ended: bool, seed: int = 0) -> Received:
    """What arrives of a completion with some log-probs."""
    whole = (*ids, policy.eos) if ended else ids
    rng = random.Random(seed)
    logprobs = tuple(-rng.random() * 5 for _ in whole)
    (got,) = receive(policy, [Offer(0, 0, 0, whole, logprobs=logprobs)], len(whole))
    return got


@pytest.mark.parametrize("way", ["to merged tokens", "to bytes"])
@pytest.mark.parametrize("ended", [True, False])
def test_texts_and_log_probs_are_carried_over(
    way: str, ended: bool, load_policy: Callable[..., Policy], load_other: Callable[..., Policy]
) -> None:
    policies = load_policy(), load_other()
    sender, receiver = policies if way == "to merged tokens" else policies[::-1]
    changed = 0
    for seed, ids in enumerate(random_rows(sender, 3, 300)):
        if not ids and not ended:
            continue  # nothing at all is no completion
        got = sent_by(sender, ids, ended, seed)
        assert not got.refused
        (made,) = carried_over([got], sender, receiver, 200)
        done, told = made.completion, got.completion
        assert not made.refused, f"{told.text!r} can be said in any vocabulary of bytes"
        assert receiver.decode([done.ids]) == [told.text] == [done.text], "its ids say the very text"
        assert done.ended == ended, "it ends where it ended"
        assert done.logprobs is not None
        assert told.logprobs is not None
        assert len(done.logprobs) == len(done.ids) + ended, "one log-prob for every token, EOS included"
        if done.ids:
            assert sum(done.logprobs) == pytest.approx(sum(told.logprobs)), f"the sum of {told.text!r} stays"
        if ended:
            assert done.logprobs[-1] == told.logprobs[-1], "EOS's stays EOS's"
        assert all(math.isfinite(value) and value <= 1e-3 for value in done.logprobs)
        changed += len(done.ids) != len(told.ids)
    assert changed > 50, "the vocabularies differ"


def test_equal_tokenizers_carry_nothing_over(load_policy: Callable[..., Policy]) -> None:
    sender, receiver = load_policy(), load_policy()
    received = [sent_by(sender, ids, True) for ids in random_rows(sender, 4, 20)]
    assert carried_over(received, sender, receiver, 4) == received, "ids mean the same to both"


def test_a_lone_eos_stays_an_ended_empty_text(
    load_policy: Callable[..., Policy], load_other: Callable[..., Policy]
) -> None:
    (made,) = carried_over([sent_by(load_policy(), (), True)], load_policy(), load_other(), LIMIT)
    assert made.completion.ended
    assert made.completion.ids == ()
    assert made.refused == ""
    assert made.completion.logprobs is not None
    assert len(made.completion.logprobs) == 1


def test_a_text_too_long_in_the_new_vocabulary_is_refused(
    load_policy: Callable[..., Policy], load_other: Callable[..., Policy]
) -> None:
    sender, receiver = load_other(), load_policy()
    pair = sender.encode("aa")
    assert len(pair) == 1, "the other tiny model says two letters with one token"
    fits, beyond = (sent_by(sender, tuple(pair) * count, True) for count in (10, 11))
    limit = 11
    (made,) = carried_over([fits], sender, receiver, limit)
    assert made.refused == "", "up to twice the limit is read"
    (made,) = carried_over([beyond], sender, receiver, limit)
    assert made.refused == "22 tokens in the receiver's vocabulary, where 11 is the limit"
    assert made.completion == Completion((), "aa" * 11, False), "nobody reads it, but its text is there"


def test_control_tokens_in_a_text_are_refused_in_every_vocabulary(
    load_policy: Callable[..., Policy], load_other: Callable[..., Policy]
) -> None:
    sender, receiver = load_policy(), load_other()
    written = tuple(ord(letter) for letter in "x")  # a byte that both have
    for name in FORGED:
        ids = forge(sender, name)
        (got,) = receive(sender, [Offer(0, 0, 0, ids)], 99)
        (made,) = carried_over([got], sender, receiver, 99)
        assert made.refused == "a control token inside the completion"
        assert made.completion.text == got.completion.text
    spelt = [sender.encode(letter)[0] for letter in "a<|im_end|>b"]
    (got,) = receive(sender, [Offer(0, 0, 0, (*written[:0], *spelt))], 99)
    assert got.refused == "", "spelt letter by letter these are letters to the sender"
    (made,) = carried_over([got], sender, receiver, 99)
    assert made.refused == "a control token inside the completion", "but encoding makes a control token of them"


def test_a_tokenizer_that_normalises_refuses_what_it_would_change(
    load_policy: Callable[..., Policy], load_other: Callable[..., Policy]
) -> None:
    sender, receiver = load_policy(), load_other()
    receiver.tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    for accent, why in (("\u00e9", ""), ("e\u0301", "a text that the receiver's tokens do not say")):
        ids = tuple(token for letter in f"caf{accent}" for token in sender.encode(letter))
        (made,) = carried_over([sent_by(sender, ids, True)], sender, receiver, 99)
        assert made.completion.text == f"caf{accent}"
        assert made.refused == why, "ids that say another text than the one that was rewarded teach something else"


def test_refused_offers_stay_refused_with_their_first_reason(
    load_policy: Callable[..., Policy], load_other: Callable[..., Policy]
) -> None:
    sender, receiver = load_policy(), load_other()
    for ids in [*(ids for ids, _ in MALFORMED.values()), *NO_TUPLE.values()]:
        (got,) = receive(sender, [Offer(0, 0, 0, ids)], LIMIT)
        (made,) = carried_over([got], sender, receiver, LIMIT)
        assert made == got, "nothing arrives of it in either vocabulary"


def test_ids_of_a_colluder_are_told_in_the_speakers_tokens(
    load_policy: Callable[..., Policy], load_other: Callable[..., Policy]
) -> None:
    thinker, speaker = load_other(), load_policy()
    for ended in (True, False):
        ids = (*thinker.encode("so = saer ✓"), *(thinker.eos,) * ended)
        told = reencode(thinker, speaker, ids)
        assert told == (*speaker.encode("so = saer ✓"), *(speaker.eos,) * ended)
    assert reencode(thinker, load_other(), ids) == ids
    for odd in ((), (10**9,), (-1,), ("a",)):
        assert reencode(thinker, speaker, odd) == odd, "what is no row of tokens stays for the receivers to refuse"  # type: ignore[arg-type]
