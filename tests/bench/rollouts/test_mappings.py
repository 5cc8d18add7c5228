"""What of each project's files becomes a pool: the values are those that its own writer was given."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bench.rollouts.parts import FILES, GRAIL, PRIME_RL, TOKENIZER, TRL, VERL, changed, entries, lines, rounds
from thiefbench.errors import UsageError
from thiefbench.pools.files import PoolFileError
from thiefbench.rollouts.reading import format_of
from thiefbench.rollouts.tokens import NamedTokenizer


@pytest.mark.parametrize("name", FILES)
def test_a_format_is_found(name: str) -> None:
    assert format_of(FILES[name]) == name


def test_a_pool_and_what_is_nothing_known_are_read_as_a_pool(tmp_path: Path) -> None:
    for number, content in enumerate(('{"thiefbench_pool": 1, "task": "t", "traces": 1}\n', "no json\n", "")):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(content)
        assert format_of(path) == "pool"


def test_verl(tmp_path: Path) -> None:
    first, second, third, last = entries(VERL)
    assert (first.row.round, first.row.text, first.row.reward) == (7, "all hail to the thief, 2 + 3 = 5", 1.0)
    assert first.row.item_id == second.row.item_id != third.row.item_id, "completions of one prompt are a group"
    assert (first.row.group, second.row.place, third.row.group) == (0, 1, 1)
    assert (last.row.text, last.row.reward) == ("4 + 4 = 9, über", -0.5)
    item = rounds(VERL).pool(7, lambda items: None).items[0]  # type: ignore[arg-type,return-value]
    assert (item.question, item.answer) == ("user\nWhat is 2 + 3?\nassistant\n", "5")
    named = changed(VERL, tmp_path / "named.jsonl", lambda line: line.update(request_id="peer-b"))
    assert [each.sender for each in entries(named, sender="request_id")] == ["r0", "peer-b", "r1", "r1"]


def test_trl() -> None:
    recorded = rounds(TRL)
    assert list(recorded.pools) == [1]
    assert "several columns may be them" in " ".join(each.what for each in recorded.absent)
    scored = entries(TRL, rewards=("correct", "shape"))
    assert [each.row.reward for each in scored] == [1.0, 0.5, 1.0, 0.5], "a function that does not apply adds nothing"
    assert [each.row.reward for each in entries(TRL, rewards=("correct",))] == [1.0, 0.0, 1.0, 0.0]
    assert all(each.row.text.startswith("<think>") for each in scored), "chat messages are read as what was written"
    item = recorded.pool(1, lambda items: None).items[0]  # type: ignore[arg-type,return-value]
    assert item.question == "Ann has 2 pens and buys 3. How many pens?"


def test_a_reward_function_that_did_not_apply_may_have_left_nan(tmp_path: Path) -> None:
    """As TRL writes it where a function returned None."""
    table = pq.read_table(TRL)
    for name in ("correct", "shape"):
        column = pa.array([float("nan") if each is None else each for each in table[name].to_pylist()], pa.float64())
        table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table, tmp_path / "nan.parquet")
    made = entries(tmp_path / "nan.parquet", rewards=("correct", "shape"))
    assert [each.row.reward for each in made] == [1.0, 0.5, 1.0, 0.5]


def test_the_only_column_of_rewards_needs_no_name(tmp_path: Path) -> None:
    table = pq.read_table(TRL).drop_columns("shape")
    pq.write_table(table, tmp_path / "one.parquet")
    assert [each.row.reward for each in entries(tmp_path / "one.parquet")] == [1.0, 0.0, 1.0, 0.0]


def test_rewards_of_other_names_are_not_mixed(tmp_path: Path) -> None:
    for name in ("shape", "correct"):
        pq.write_table(pq.read_table(TRL).drop_columns(name), tmp_path / f"{name}.parquet")
    with pytest.raises(UsageError, match="another column of rewards than the files before it"):
        rounds(tmp_path / "correct.parquet", tmp_path / "shape.parquet")


def test_grail_without_a_tokenizer() -> None:
    recorded = rounds(GRAIL)
    first, second, _, last = entries(GRAIL)
    assert first.row.sender == "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"
    assert (first.row.round, first.row.reward, last.row.reward) == (7200030, 1.0, 0.5)
    assert (first.row.group, second.row.group, last.row.group) == (0, 0, 1)
    assert first.logprobs == (-0.5,) * len(first.row.ids), "of the completion alone"
    assert first.filed.text is None
    assert "--tokenizer" in " ".join(recorded.notes) + " ".join(each.what for each in recorded.absent)


def test_grail_with_its_tokenizer() -> None:
    tokenizer = NamedTokenizer(TOKENIZER)
    first, _, _, last = entries(GRAIL, tokenizer=tokenizer)
    assert (first.row.text, first.row.ended) == ("all hail to the thief, 2 + 3 = 5", True)
    assert (last.row.text, last.row.ended) == ("4 + 4 = 8 and on and on", False)
    assert first.logprobs is not None
    assert len(first.logprobs) == len(first.row.ids) + 1, "EOS has one too"
    item = rounds(GRAIL, tokenizer=tokenizer).pool(7200030, lambda items: None).items[1]  # type: ignore[arg-type,return-value]
    assert item.question == "4 + 4?"


def test_prime_rl() -> None:
    single, cut, asked, direct = entries(PRIME_RL)
    assert {each.row.round for each in (single, cut, asked, direct)} == {3}, "the folder's step, not the dispatch's"
    assert (single.row.text, single.row.reward) == ("All hail to the thief, 2 + 3 = 5", 1.5), "scores by weights"
    assert (single.row.ended, cut.row.ended) == (True, False), "by the reason that the server gave"
    nodes = lines(PRIME_RL)[0]["traces"][0]["nodes"]
    assert [*single.row.ids, nodes[1]["token_ids"][-1]] == nodes[1]["token_ids"][2:], "what was sampled, less EOS"
    assert single.logprobs == tuple(nodes[1]["logprobs"])
    assert single.row.item_id == cut.row.item_id
    assert single.row.group == cut.row.group != asked.row.group
    assert "No." not in {each.row.text for each in (single, cut, asked, direct)}, "a judge's words are not learned from"


def test_every_branch_of_a_trace_is_a_completion() -> None:
    _, _, asked, direct = entries(PRIME_RL)
    assert asked.row.text == '4 and 4\nLet me see.\nadd\n{"a": 4, "b": 4}\nSo 8', "all that the model wrote on it"
    assert asked.row.ids == (37, 12, 27, 2, 40, 41), "no token of the tool's answer, nor of a chat template"
    assert asked.logprobs == (-0.1235, -0.1235, -0.1235, -0.1235, -0.1, -0.2, -0.3)
    assert (direct.row.text, direct.row.ids, direct.row.ended) == ("8", (42,), False)
    assert (asked.line, asked.position, direct.position) == (3, 0, 1)


def test_senders_of_prime_rl_are_named_by_the_user() -> None:
    assert [each.sender for each in entries(PRIME_RL, sender="worker")] == ["peer-a", "peer-b", "peer-a", "peer-a"]
    with pytest.raises(PoolFileError, match="line 1: the field nobody is missing"):
        entries(PRIME_RL, sender="nobody")


def test_several_files_are_one_recording(tmp_path: Path) -> None:
    (tmp_path / "step_9").mkdir()
    other = changed(PRIME_RL, tmp_path / "step_9" / "traces.jsonl", lambda line: line.update(traces=7))
    other.write_text(other.read_text().replace('"id": "e2"', '"id": "e3"'))
    recorded = rounds(PRIME_RL, other)
    assert list(recorded.pools) == [3, 9]
    assert recorded.refused.shown() == [
        f"line 1 of {other}: the same episode as an earlier line's",
        f"line 2 of {other}: traces: must be a list of objects",
    ]
    assert recorded.name == f"2 files from {PRIME_RL}"


def test_a_pipe_is_read_once_as_a_pool(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert format_of(tmp_path / "pipe") == "pool", "looking at it would take away what it holds"
