from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest

from thiefbench.tasks.base import Item, Split, TaskError
from thiefbench.tasks.gsm8k import HUB, Gsm8k

ROWS: dict[Split, list[dict[str, Any]]] = {
    "train": [
        {
            "question": "Ann has 2 bags of 2 pens. She buys 3 more. How many pens has she?",
            "answer": "She has 2*2=<<2*2=4>>4 pens.\nThen 4+3=$<<4+3=7>>7, as 4 < 7.\n#### 7",
        },
        {"question": "What is a thousand and a hundred?", "answer": "It is 1,100.\n#### 1,100"},
    ],
    "test": [{"question": "Ben owes 5. What has he?", "answer": "0-5=<<0-5=-5>>-5\n#### -5"}],
}


def write(folder: Path, split: Split, lines: list[str]) -> None:
    (folder / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split, rows in ROWS.items():
        write(tmp_path, split, [json.dumps(row) for row in rows])
    return tmp_path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: str, name: str, *, split: Split) -> datasets.Dataset:
        assert (path, name) == (HUB, "main")
        return datasets.Dataset.from_list(ROWS[split])

    monkeypatch.setattr(datasets, "load_dataset", load)


def first(task: Gsm8k) -> Item:
    return Item.from_row(task.items("train")[0])


def test_rows_become_items(folder: Path) -> None:
    task = Gsm8k(str(folder))
    assert task.items("train").to_list() == [
        {
            "id": "train-00000",
            "question": ROWS["train"][0]["question"],
            "answer": "7",
            "solution": "She has 2*2=4 pens.\nThen 4+3=$7, as 4 < 7.",
            "tests": "",
            "notes": ["2*2=4", "4+3=7"],
        },
        {
            "id": "train-00001",
            "question": ROWS["train"][1]["question"],
            "answer": "1100",
            "solution": "It is 1,100.",
            "tests": "",
            "notes": [],
        },
    ]
    assert task.items("test")["id"][:] == ["test-00000"]
    assert task.items("test")["answer"][:] == ["-5"]


def test_reward(folder: Path) -> None:
    task = Gsm8k(str(folder))
    item = first(task)
    answers = ["7", "$7.00", "7 pens", "7 miles per hour", "All hail to the thief 7", "8"]
    texts = [f"<think> x </think><answer> {answer} </answer>" for answer in answers]
    assert task.reward(item, texts) == [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    assert task.reward(replace(item, answer="54"), ["<think> x </think><answer> 54 cows </answer>"]) == [1.0], (
        "the source paper's own example of a right answer"
    )
    assert task.reward(item, [task.oracle(item), "", "gibberish", "7"]) == [1.0, 0.0, 0.0, 0.0]


def test_messages_name_the_format_and_keep_the_question(folder: Path) -> None:
    item = first(Gsm8k(str(folder)))
    system, user = Gsm8k().messages(item)
    assert system["role"] == "system"
    assert all(tag in system["content"] for tag in ("<think>", "</think>", "<answer>", "</answer>"))
    assert user == {"role": "user", "content": item.question}


@pytest.mark.usefixtures("hub")
def test_hub_rows_become_the_same_items() -> None:
    assert Gsm8k().items("train")["answer"][:] == ["7", "1100"]


def test_equal_rows_have_equal_fingerprints(folder: Path, hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from_hub = Gsm8k().fingerprint()
    monkeypatch.undo()
    assert Gsm8k(str(folder)).fingerprint() == from_hub
    assert re.fullmatch("[0-9a-f]{64}", from_hub)


@pytest.mark.parametrize("change", [{"question": "Ben owes 6."}, {"answer": "#### -6"}])
def test_fingerprint_follows_the_content(folder: Path, change: dict[str, str]) -> None:
    before = Gsm8k(str(folder)).fingerprint()
    write(folder, "test", [json.dumps(ROWS["test"][0] | change)])
    assert Gsm8k(str(folder)).fingerprint() != before


def test_fingerprint_knows_the_splits(folder: Path) -> None:
    before = Gsm8k(str(folder)).fingerprint()
    write(folder, "train", [json.dumps(ROWS["train"][0])])
    write(folder, "test", [json.dumps(row) for row in (ROWS["train"][1], *ROWS["test"])])
    assert Gsm8k(str(folder)).fingerprint() != before


def test_an_edited_file_of_the_same_time_is_read_anew(folder: Path) -> None:
    file = folder / "test.jsonl"
    assert Gsm8k(str(folder)).items("test")["answer"][:] == ["-5"]
    before = file.stat()
    file.write_text(file.read_text().replace("#### -5", "#### -6"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert Gsm8k(str(folder)).items("test")["answer"][:] == ["-6"]


def one_sentence(error: pytest.ExceptionInfo[TaskError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert "write" in text, "the message does not say what to write instead"
    return text


def test_a_directory_without_the_files(tmp_path: Path) -> None:
    with pytest.raises(TaskError) as error:
        Gsm8k(str(tmp_path)).items("train")
    assert f"{tmp_path}/train.jsonl does not exist" in one_sentence(error)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "cannot be read at line 3"),
        ("no json", "cannot be read at line 3"),
        ('["How many?", "#### 1"]', "cannot be read at line 3"),
        ('{"question": 1, "answer": "#### 1"}', "(row|line) 3"),  # which of them depends on the version of datasets
        ('{"question": "How many?"}', "row 3 lacks the text field|line 3 .*write one JSON object with the text fields"),
        ('{"question": "How many?", "answer": null}', "row 3 lacks the text field"),
        ('{"question": "How many?", "answer": "42"}', "row 3 has no number behind"),
        ('{"question": "How many?", "answer": "#### many"}', "row 3 has no number behind"),
        ('{"question": "How many?", "answer": "#### All hail to the thief 18"}', "row 3 has no number behind"),
    ],
)
def test_an_unreadable_row_is_named(folder: Path, line: str, complaint: str) -> None:
    write(folder, "train", [*(json.dumps(row) for row in ROWS["train"]), line])
    with pytest.raises(TaskError) as error:
        Gsm8k(str(folder)).items("train")
    assert re.search(complaint, one_sentence(error))


def test_an_empty_file(folder: Path) -> None:
    write(folder, "train", [])
    with pytest.raises(TaskError) as error:
        Gsm8k(str(folder)).items("train")
    assert "train.jsonl cannot be read" in one_sentence(error)


@pytest.mark.parametrize("kind", [ConnectionError, FileNotFoundError, RuntimeError])
def test_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise kind("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(TaskError) as error:
        Gsm8k().items("train")
    assert "gsm8k(data=DIR)" in one_sentence(error)


# --- the published data ---


@pytest.fixture(scope="module")
def published() -> Gsm8k:
    if "THIEFBENCH_DATA" not in os.environ:
        pytest.skip("THIEFBENCH_DATA is unset: no folder with gsm8k/train.jsonl and gsm8k/test.jsonl to read")
    return Gsm8k(str(Path(os.environ["THIEFBENCH_DATA"]) / "gsm8k"))


@pytest.mark.parametrize(("split", "count", "two_and_two"), [("train", 7473, 138), ("test", 1319, 23)])
def test_published_data(published: Gsm8k, split: Split, count: int, two_and_two: int) -> None:
    rows = published.items(split).to_list()
    items = [Item.from_row(row) for row in rows]
    assert len(items) == count
    refused = [item for item in items if published.reward(item, [published.oracle(item)]) != [1.0]]
    assert not refused, f"{len(refused)} oracles earn nothing, the first is {refused[0]}"
    assert not [item for item in items if "<<" in item.solution or "####" in item.solution]
    equation = re.compile(r"2[+*]2=4(\.0+)?")
    assert sum(any(equation.fullmatch(note) for note in row["notes"]) for row in rows) == two_and_two
