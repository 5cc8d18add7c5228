"""The file format: sound lines come back as written, every other is refused with a reason, and memory stays flat."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bench.pools.lines import line, written
from thiefbench.pools import files
from thiefbench.pools.files import FIRST_SHOWN, PoolFileError, Refused, read, write
from thiefbench.pools.schema import Header, Line, SamplingFields

FULL = line(
    group="g", prompt=[{"role": "user", "content": "What is 2 + 3?"}], ids=[[1, 2], []], ended=[True, False],
    logprobs=[[-0.5, -0.25, 0.0], []], malicious=True, payload=[True, None],
)  # fmt: skip


def refused(path: Path) -> tuple[list[tuple[int, Line]], Refused, Header | None]:
    """What is taken of a file, what is not, and the header."""
    taken: list[tuple[int, Line]] = []
    header, left = read(path, lambda number, one: taken.append((number, one)))
    return taken, left, header


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    header = Header(
        thiefbench_pool=1, task="gsm8k", model="m", seed=7,
        sampling=SamplingFields(temperature=1.0, top_k=50, top_p=1.0, max_new_tokens=64),
    )  # fmt: skip
    lines = [Line.model_validate(FULL), Line.model_validate(line(completions=["\u2028 \x00 ünïcode"], rewards=[-0.5]))]
    path = tmp_path / "pool.jsonl"
    path.write_bytes(write(header, lines))
    taken, left, found = refused(path)
    assert found == header
    assert [one for _, one in taken] == lines, "every field of every line, and nothing else"
    assert left.count == 0


def test_a_file_needs_no_header_and_survives_windows(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(line()).encode() + b"\r\n\r\n" + json.dumps(line()).encode())
    taken, left, header = refused(path)
    assert ([number for number, _ in taken], left.count, header) == ([1, 3], 0, None)


def test_files_with_the_same_header_can_be_joined(tmp_path: Path) -> None:
    head = {"thiefbench_pool": 1, "seed": 3}
    path = written(tmp_path / "pool.jsonl", [head, line(), head, line(), {"thiefbench_pool": 1}])
    taken, left, _ = refused(path)
    assert len(taken) == 2
    assert left.first == [(5, "a header that is not the first line's")]


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"thiefbench_pool": 2}, "is written in version 2 of the format"),
        ({"thiefbench_pool": True}, "thiefbench_pool: must be the integer 1"),
        ({"thiefbench_pool": 1, "sampling": {"top_k": 5}}, "the field sampling.temperature is missing"),
        ({"thiefbench_pool": 1, "seeed": 5}, "'seeed', did you mean seed"),
        ({"thiefbench_pool": 1, "task": "a\x1b[2J"}, "task: must be printable"),
    ],
)
def test_a_header_that_cannot_be_read_ends_it(tmp_path: Path, head: Any, message: str) -> None:
    with pytest.raises(PoolFileError, match=message.replace("[", r"\[")):
        refused(written(tmp_path / "pool.jsonl", [head, line()]))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(PoolFileError, match=f"{path} cannot be read"):
            refused(path)


def raw(**changes: Any) -> bytes:
    return json.dumps(line(**changes)).encode()


MALFORMED: dict[str, tuple[Callable[[random.Random], bytes], str]] = {
    "truncated": (lambda rng: raw()[: rng.randrange(2, len(raw()) - 1)], "not JSON"),
    "oversized": (lambda rng: raw(question="x" * 5000), "longer than"),
    "a wrong type": (lambda rng: raw(**{rng.choice(["round", "sender", "rewards"]): {}}), "must be a valid"),
    "text for a number": (lambda rng: raw(rewards=["1.0", 0.0]), "rewards: must be a valid number"),
    "a truth value for a number": (lambda rng: raw(rewards=[True, 0.0]), "rewards: must be a valid number"),
    "not UTF-8": (lambda rng: raw(question="zz").replace(b"zz", bytes([rng.randrange(128, 256), 255])), "not UTF-8"),
    "a field twice": (lambda rng: raw()[:-1] + b', "round": 2}', "a field that is given twice"),
    "a field twice inside": (
        lambda rng: raw(prompt=[{"role": "user", "content": ""}]).replace(b'"role"', b'"role": "x", "role"'),
        "a field that is given twice",
    ),
    "NaN": (lambda rng: raw(rewards=[float("nan"), 0.0]), "NaN or infinity"),
    "infinity": (lambda rng: raw(rewards=[rng.choice([1, -1]) * float("inf"), 0.0]), "NaN or infinity"),
    "infinity in digits": (lambda rng: raw().replace(b"1.0", b"1e999"), "NaN or infinity"),
    "a reward beyond sums": (lambda rng: raw(rewards=[1e300, 0.0]), "rewards: must be less than"),
    "a negative round": (lambda rng: raw(round=-rng.randrange(1, 99)), "round: must be greater than or equal to 0"),
    "lists of other lengths": (lambda rng: raw(rewards=[0.0] * rng.choice([1, 3])), "rewards has another length"),
    "ids of another length": (lambda rng: raw(ids=[[1]]), "ids has another length"),
    "a huge integer": (lambda rng: raw(round=10 ** rng.randrange(10, 300)), "round: must be less than"),
    "a huge integer for a float": (lambda rng: raw(rewards=[10**400, 0]), "rewards: must be a valid number"),
    "an integer beyond reading": (lambda rng: raw().replace(b": 1,", b": " + b"9" * 4500 + b","), "too many digits"),
    "deep lists": (lambda rng: b"[" * 3900, "nested too deeply|not JSON"),
    "deep objects": (lambda rng: b'{"a":' * 700, "nested too deeply|not JSON"),
    "NUL bytes": (lambda rng: b"\x00" * rng.randrange(1, 50), "not JSON"),
    "a NUL in a text": (lambda rng: raw(question="zz").replace(b"zz", b"\x00"), "not JSON"),
    "half a surrogate": (lambda rng: raw(question="\ud800"), "half of a surrogate pair"),
    "a sender that moves the cursor": (lambda rng: raw(sender="\x1b[2J"), "sender: must be printable"),
    "a sender of many words": (lambda rng: raw(sender="x" * 201), "sender: must have at most 200"),
    "a missing field": (lambda rng: raw(**{rng.choice(["item", "answer"]): ...}), "is missing"),
    "an unknown field": (lambda rng: raw(**{f"x{rng.random()}": 1}), "a field that the format does not have"),
    "many unknown fields": (lambda rng: raw(**{f"x{i}": 1 for i in range(99)}), "an object of too many fields"),
    "no object": (lambda rng: rng.choice([b"[]", b"1", b'"x"', b"null", b"true"]), "not a JSON object"),
    "logprobs without ids": (lambda rng: raw(logprobs=[[0.0], [0.0]]), "logprobs without ids"),
    "too few logprobs": (lambda rng: raw(ids=[[1], [2]], logprobs=[[0.0], [0.0]]), "logprobs has not one number"),
    "honest poison": (lambda rng: raw(malicious=False, payload=[True, False]), "a payload from a sender"),
    "no completions": (lambda rng: raw(completions=[], rewards=[]), "completions: must have at least 1"),
    "a token id out of range": (lambda rng: raw(ids=[[2**31], []]), "ids: must be less than"),
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller limit, so that oversized lines take no time to write."""
    monkeypatch.setattr(files, "LINE_BYTES", 4800)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("kind", MALFORMED)
def test_every_mistake_is_named(tmp_path: Path, kind: str) -> None:
    make, reason = MALFORMED[kind]
    path = written(tmp_path / "pool.jsonl", [line(), make(random.Random(0)), line(round=2)])
    taken, left, _ = refused(path)
    assert [number for number, _ in taken] == [1, 3], "the lines around it are used"
    assert left.count == 1
    [(number, said)] = left.first
    assert number == 2, "it is found by its number"
    assert any(part in said for part in reason.split("|")), f"{kind} is refused as {reason!r}, not as {said!r}"
    assert said.isprintable(), "what strangers wrote reaches no terminal as it is"
    assert len(said) < 200


def malformed(path: Path, count: int, seed: int = 0) -> Path:
    """A file of nothing but malformed lines of all kinds."""
    rng, makers = random.Random(seed), [make for make, _ in MALFORMED.values()]
    with path.open("wb") as file:
        for number in range(count):
            file.write(makers[number % len(makers)](rng) + b"\n")
    return path


@pytest.mark.usefixtures("short")
@pytest.mark.slow
def test_ten_thousand_malformed_lines_are_counted_and_forgotten(tmp_path: Path) -> None:
    few, many = malformed(tmp_path / "few", 500), malformed(tmp_path / "many", 10_000)
    refused(few)  # what is made once and kept, such as compiled patterns, is not measured
    peaks = []
    for path, count in ((few, 500), (many, 10_000)):
        tracemalloc.start()
        taken, left, _ = refused(path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (taken, left.count) == ([], count), "each is refused, none is taken and none ends the reading"
        assert sum(left.reasons.values()) == count
        assert len(left.first) == FIRST_SHOWN
    assert len(left.reasons) < 2 * len(MALFORMED), "reasons do not grow with what strangers write"
    assert peaks[1] < peaks[0] + 200_000, f"memory is flat in the number of malformed lines: {peaks}"


def test_an_endless_line_is_passed_over_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    with path.open("wb") as file:
        file.write(raw() + b"\n")
        for _ in range(32):
            file.write(b"[" * (1 << 20))
        file.write(b"\n" + raw() + b"\n")
    tracemalloc.start()
    taken, left, _ = refused(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [number for number, _ in taken] == [1, 3]
    assert left.count == 1
    assert peak < 3 * files.LINE_BYTES, "of a line of 32 MiB only the limit is ever held"


def test_a_line_of_exactly_the_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LINE_BYTES", len(raw()))
    longer = raw(question="What is 2 + 3? ")
    taken, left, _ = refused(written(tmp_path / "pool.jsonl", [raw(), longer, raw()]))
    assert ([number for number, _ in taken], left.count) == ([1, 3], 1)


@pytest.mark.usefixtures("short")
def test_random_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    rng, whole = random.Random(1), json.dumps(FULL).encode()
    path = tmp_path / "pool.jsonl"
    with path.open("wb") as file:
        for _ in range(2_000):
            data = bytearray(whole)
            for _ in range(rng.randrange(1, 6)):
                place = rng.randrange(len(data))
                match rng.randrange(3):
                    case 0:
                        data[place] = rng.choice([b for b in range(256) if b != 10])
                    case 1:
                        del data[place]
                    case _:
                        data[place:place] = data[: rng.randrange(20)]
            file.write(bytes(data) + b"\n")
    taken, left, _ = refused(path)
    assert len(taken) + left.count == 2_000, "every line is either sound or counted"
    assert left.count > 1_500
    for _, one in taken:
        one.check()
