"""Lines and rows that are wrong, damaged or made to fill memory: refused by their number, and the rest is used."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bench.rollouts.parts import FILES, GRAIL, PRIME_RL, TRL, VERL, changed, entries, lines, rounds
from thiefbench.pools.files import PoolFileError
from thiefbench.rollouts import reading, rows

Change = Callable[[dict[str, Any]], object]


def trace(line: dict[str, Any]) -> dict[str, Any]:
    return line["traces"][0]  # type: ignore[no-any-return]


def answer(line: dict[str, Any]) -> dict[str, Any]:
    return trace(line)["nodes"][1]  # type: ignore[no-any-return]


MALFORMED: dict[str, tuple[str, Change, str]] = {
    "a reward of NaN": ("verl", lambda line: line.update(score=float("nan")), "score: must be a finite number"),
    "a reward of infinity": ("verl", lambda line: line.update(score=float("inf")), "score: must be a finite number"),
    "a reward beyond sums": ("verl", lambda line: line.update(score=1e300), "score: must be a finite number"),
    "a reward of many digits": ("verl", lambda line: line.update(score=10**400), "score: must be a finite number"),
    "a reward as a text": ("verl", lambda line: line.update(score="1.0"), "score: must be a number"),
    "a truth value for a reward": ("verl", lambda line: line.update(score=True), "score: must be a number"),
    "no reward": ("verl", lambda line: line.pop("score"), "the field score is missing"),
    "a list for a text": ("verl", lambda line: line.update(output=["x"]), "output: must be a text"),
    "nested lists": ("verl", lambda line: line.update(gts=json.loads("[" * 300 + "]" * 300)), "nested too deeply"),
    "half a surrogate": ("verl", lambda line: line.update(output="\ud800"), "half of a surrogate pair"),
    "half a surrogate in the truth": ("verl", lambda line: line.update(gts="\udfff"), "half of a surrogate pair"),
    "a negative step": ("verl", lambda line: line.update(step=-1), "step: must be a whole number"),
    "a step of a fraction": ("verl", lambda line: line.update(step=1.5), "step: must be a whole number"),
    "a huge step": ("verl", lambda line: line.update(step=2**31), "step: must be a whole number"),
    "many fields": ("verl", lambda line: line.update({str(n): 0 for n in range(10_001)}), "too many fields"),
    "traces of texts": ("prime-rl", lambda line: line.update(traces=["x"]), "traces: must be a list of objects"),
    "no trace": ("prime-rl", lambda line: line.update(traces=[]), "an episode without a completion"),
    "a task as a text": ("prime-rl", lambda line: trace(line).update(task="x"), "task: must be an object"),
    "a group that is a list": ("prime-rl", lambda line: line.update(group=[]), "group: must be an object"),
    "a circle of messages": ("prime-rl", lambda line: answer(line).update(parent=1), "whose parent does not come"),
    "a parent that is not there": ("prime-rl", lambda line: answer(line).update(parent=10**9), "whose parent does not"),
    "a parent from behind": ("prime-rl", lambda line: answer(line).update(parent=-1), "whose parent does not"),
    "a mask of another length": ("prime-rl", lambda line: answer(line).update(mask=[True]), "mask has not one truth"),
    "a mask of numbers": ("prime-rl", lambda line: answer(line).update(mask=[1] * 5), "mask has not one truth"),
    "log-probs of another length": ("prime-rl", lambda line: answer(line)["logprobs"].append(0.0), "logprobs has not"),
    "a log-prob of NaN": ("prime-rl", lambda line: answer(line).update(logprobs=[float("nan")] * 3), "finite numbers"),
    "a log-prob of many digits": ("prime-rl", lambda line: answer(line).update(logprobs=[10**400]), "finite numbers"),
    "a token id of a fraction": ("prime-rl", lambda line: answer(line).update(token_ids=[0.5] * 5), "whole numbers"),
    "a negative token id": ("prime-rl", lambda line: answer(line).update(token_ids=[-1] * 5), "whole numbers"),
    "content of numbers": ("prime-rl", lambda line: answer(line)["message"].update(content=5), "content: must be"),
    "a score of NaN": (
        "prime-rl", lambda line: trace(line).update(rewards={"a": {"score": float("nan")}}), "score: must be a finite",
    ),
    "a weight of infinity": (
        "prime-rl",
        lambda line: trace(line).update(rewards={"a": {"score": 1, "weight": float("inf")}}),
        "weight: must be a finite",
    ),
    "lengths that do not add up": (
        "grail", lambda row: row["commit"]["rollout"].update(prompt_length=1), "do not add up to the tokens",
    ),
    "a negative length": (
        "grail", lambda row: row["commit"]["rollout"].update(completion_length=-3), "completion_length: must be",
    ),
    "a hotkey that moves the cursor": ("grail", lambda row: row.update(hotkey="\x1b[2J"), "hotkey: must be 1 to 200"),
    "no hotkey": ("grail", lambda row: row.update(hotkey=None), "the field hotkey is missing"),
    "a window before the first": ("grail", lambda row: row.update(window_start=-1), "window_start: must be a whole"),
    "no commit": ("grail", lambda row: row.update(commit=None), "the field commit is missing"),
    "no group": ("grail", lambda row: row.update(rollout_group=None), "the field rollout_group is missing"),
    "a reward of NaN in Parquet": (
        "grail",
        lambda row: row["commit"]["rollout"].update(total_reward=float("nan")),
        "total_reward: must be a finite",
    ),
    "log-probs that lack some": (
        "grail", lambda row: row["commit"]["rollout"].update(token_logprobs=[0.0]), "not one number per token",
    ),
    "a negative token id in Parquet": (
        "grail", lambda row: row["commit"]["tokens"].__setitem__(0, -5), "tokens: must hold whole numbers",
    ),
    "nobody's score": ("trl", lambda row: row.update(correct=None, shape=None), "that no reward function scored"),
    "a score of NaN in Parquet": ("trl", lambda row: row.update(shape=float("inf")), "shape: must be a finite"),
    "no completion": ("trl", lambda row: row.update(completion=None), "the field completion is missing"),
    "a negative step in Parquet": ("trl", lambda row: row.update(step=-1), "step: must be a whole number"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MALFORMED)
def test_every_mistake_is_named_and_the_rest_is_used(tmp_path: Path, kind: str) -> None:
    name, change, reason = MALFORMED[kind]
    source = FILES[name]
    path = changed(source, tmp_path / f"changed{source.suffix}", change)
    options: dict[str, Any] = {"rewards": ("correct", "shape")} if name == "trl" else {}
    recorded = reading.read_rollouts([path], reading.SOURCES[name], reading.Reading(**options))
    unit = "row" if source.suffix == ".parquet" else "line"
    assert recorded.refused.count == 1
    [said] = recorded.refused.shown()
    assert said.startswith(f"{unit} 2: ")
    assert reason in said
    assert said.isprintable()
    assert len(said) < 200
    whole = reading.read_rollouts([source], reading.SOURCES[name], reading.Reading(**options)).all_entries
    assert {each.line for each in whole} - {each.line for each in recorded.all_entries} == {2}


@pytest.mark.parametrize("name", ["verl", "prime-rl"])
def test_a_truncated_last_line_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_bytes(FILES[name].read_bytes()[:-40])
    recorded = rounds(path)
    count = len(lines(FILES[name]))
    [said] = recorded.refused.shown()
    assert said.startswith(f"line {count}: not JSON")
    assert {each.line for each in recorded.all_entries} == set(range(1, count))


def test_a_huge_field_is_passed_over_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "ROW_BYTES", 100_000)
    path = tmp_path / "huge.jsonl"
    whole = VERL.read_bytes().splitlines(keepends=True)
    path.write_bytes(whole[0] + b'{"input": "' + b"x" * 20_000_000 + b'"}\n' + whole[1])
    tracemalloc.start()
    recorded = rounds(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [each.line for each in recorded.all_entries] == [1, 3]
    assert recorded.refused.shown() == ["line 2: longer than 0 MiB"]
    assert peak < 2_000_000, "of a line of 20 MB only the limit is ever held"


def test_branches_that_repeat_one_another_are_not_unfolded(tmp_path: Path) -> None:
    def change(line: dict[str, Any]) -> None:
        nodes = trace(line)["nodes"]
        nodes[1]["message"]["content"] = "x" * 10_000
        nodes += [{"parent": 1, "message": {"role": "assistant", "content": "y"}, "sampled": True} for _ in range(500)]

    recorded = rounds(changed(PRIME_RL, tmp_path / "many.jsonl", change))
    assert recorded.refused.shown() == ["line 2: branches that hold more than 16 times what its messages do"]


def trl_rows(path: Path, completions: pa.Array, group: int | None = None) -> Path:
    """A file as TRL's with some completions; a row group of its own for every `group` rows."""
    count = len(completions)
    columns = {"step": [1] * count, "prompt": ["?"] * count, "completion": completions, "right": [1.0] * count}
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=False, row_group_size=group or count)
    return path


def test_half_a_kilobyte_that_unfolds_to_400_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LEAST_UNFOLDED", 16 << 20)
    folded = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), pa.array(["x" * 4_000_000]))
    path = trl_rows(tmp_path / "bomb.parquet", folded)
    assert path.stat().st_size < 6000
    tracemalloc.start()
    recorded = rounds(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    [said] = recorded.refused.shown()
    assert said == "row 5: unfolds to more than is read of a file of its size, and the rest is left out"
    assert len(recorded.all_entries) == 4
    assert peak < 60_000_000


def test_an_honest_file_of_many_megabytes_is_read_whole(tmp_path: Path) -> None:
    rng = random.Random(0)
    texts = [rng.randbytes(20_000).hex() for _ in range(400)]
    recorded = rounds(trl_rows(tmp_path / "large.parquet", pa.array(texts)))
    assert (len(recorded.all_entries), recorded.refused.count) == (400, 0)


def test_rows_of_nothing_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LEAST_UNFOLDED", 256 * 1000)
    monkeypatch.setattr(rows, "MOST_FOLDED", 1)
    path = tmp_path / "nothing.parquet"
    pq.write_table(pa.table({"step": pa.nulls(1_000_000, pa.int64())}), path)
    found = list(rows.parquet_rows(path, ["step"]))
    assert len(found) == 1001
    assert "the rest is left out" in str(found[-1].mistake)


@pytest.mark.slow
def test_a_row_of_a_hundred_million_tokens_is_refused_alone(tmp_path: Path) -> None:
    table = pq.read_table(GRAIL)
    path = tmp_path / "long.parquet"
    tokens = pa.ListArray.from_arrays(pa.array([0, 100_000_000], pa.int32()), np.zeros(100_000_000, np.int32))
    rollout = table["commit"].combine_chunks().field("rollout").slice(0, 1)
    long = pa.table(
        {
            "window_start": [1], "rollout_group": [1], "hotkey": ["a"],
            "commit": pa.StructArray.from_arrays([tokens, rollout], ["tokens", "rollout"]),
        }
    )  # fmt: skip
    with pq.ParquetWriter(path, long.schema, compression="zstd") as writer:
        sound = table.select(["window_start", "rollout_group", "hotkey"])
        parts = [table["commit"].combine_chunks().field(name) for name in ("tokens", "rollout")]
        sound = sound.append_column("commit", pa.StructArray.from_arrays(parts, ["tokens", "rollout"]))
        writer.write_table(sound)
        writer.write_table(long)
        writer.write_table(sound)
    assert path.stat().st_size < 30_000
    recorded = rounds(path)
    assert sorted(each.line for each in recorded.all_entries) == [1, 2, 3, 4, 6, 7, 8, 9]
    [said] = recorded.refused.shown()
    assert said in ("row 5: longer than 16 MiB", "row 5: unfolds to more memory than it may take")


def test_a_damaged_group_of_rows_is_refused_and_the_next_ones_are_read(tmp_path: Path) -> None:
    path = trl_rows(tmp_path / "damaged.parquet", pa.array([f"answer {n} " * 30 for n in range(30)]), group=10)
    column = pq.ParquetFile(path).metadata.row_group(1).column(2)
    data = bytearray(path.read_bytes())
    first = column.dictionary_page_offset or column.data_page_offset
    for place in range(first, first + column.total_compressed_size):
        data[place] ^= 0x5A
    path.write_bytes(data)
    recorded = rounds(path)
    assert [each.line for each in recorded.all_entries] == [*range(1, 11), *range(21, 31)]
    assert recorded.refused.shown() == ["rows 11 to 20: damaged Parquet"]


def test_parquet_without_its_end_is_no_parquet(tmp_path: Path) -> None:
    path = tmp_path / "cut.parquet"
    path.write_bytes(TRL.read_bytes()[:-100])
    with pytest.raises(PoolFileError, match="none that can be read"):
        rounds(path)
    recorded = reading.read_rollouts([TRL, path], reading.SOURCES["trl"], reading.Reading())
    assert recorded.refused.shown() == [f"row 1 of {path}: not a readable Parquet file"]
    assert len(recorded.all_entries) == 4


def test_a_process_that_dies_is_told_from_the_end_of_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "parquet_child.py"
    script.write_text(
        'print(\'1\\t1\\t{"step": 1, "prompt": "?", "completion": "!"}\', flush=True)\nraise SystemExit(9)\n'
    )
    monkeypatch.setattr(rows, "__file__", str(tmp_path / "rows.py"))
    first, second = list(rows.parquet_rows(TRL, ["step"]))
    assert first.fields == {"step": 1, "prompt": "?", "completion": "!"}
    assert (second.first, str(second.mistake)) == (2, "Parquet that cannot be read on from here")


def test_values_that_are_no_json_are_refused(tmp_path: Path) -> None:
    path = trl_rows(tmp_path / "bytes.parquet", pa.array([b"\xff\xfe", None, b"x"]))
    recorded = reading.Refused()
    for row in rows.parquet_rows(path, ["step", "prompt", "completion"]):
        if row.mistake:
            recorded.add(row.first, row.mistake)
    assert recorded.reasons == {"a value that is not text, number, truth value or list of such": 2}


def test_no_more_is_kept_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_COMPLETIONS", 3)
    with pytest.raises(PoolFileError, match="replay fewer files at a time"):
        rounds(VERL)


def test_random_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    rng, whole = random.Random(3), [one for path in (VERL, PRIME_RL) for one in path.read_bytes().splitlines()]
    for source in (reading.SOURCES["verl"], reading.SOURCES["prime-rl"]):
        path = tmp_path / f"{source.name}.jsonl"
        with path.open("wb") as file:
            for _ in range(400):
                data = bytearray(rng.choice(whole))
                for _ in range(rng.randrange(1, 4)):
                    place = rng.randrange(len(data))
                    data[place : place + rng.randrange(3)] = rng.choice([b"", b"[", b"null", b"9" * 30, b"\x00", b'"'])
                file.write(bytes(data).replace(b"\n", b"") + b"\n")
            file.write(whole[0] + b"\n" + whole[-1] + b"\n")
        recorded = reading.read_rollouts([path], source, reading.Reading())
        used = {each.line for each in recorded.all_entries}
        assert len(used) + recorded.refused.count == 402, "every line is used or counted"
        assert all(one.isprintable() for one in recorded.refused.shown())
    assert entries(VERL)
