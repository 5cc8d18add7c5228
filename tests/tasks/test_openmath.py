from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thiefbench.tasks import openmath
from thiefbench.tasks.base import Item, Split, TaskError
from thiefbench.tasks.openmath import HUB, OpenMath, held_out, program_of
from thiefbench.tasks.programs import format_program

Row = dict[str, Any]


def block(code: str) -> str:
    return f"Let us compute.\n<llm-code>\n{code}\n</llm-code>\n<llm-code-output>\n?\n</llm-code-output>\nThus so."


def row(question: str, answer: str, code: str, **changes: Any) -> Row:
    made = {
        "question": question, "expected_answer": answer, "predicted_answer": answer, "error_message": "",
        "is_correct": True, "generation_type": "without_reference_solution", "dataset": "gsm8k",
        "generated_solution": block(code),
    }  # fmt: skip
    return made | changes


TRAIN = [
    row("What are six sevens?", "42", "# six sevens\nsix = 6\nsix * 7"),
    row("What are six sevens?", "42", "print(7 * 6)"),
    row("What is a half?", "\\frac{1}{2}", "print(1 / 2)"),
    row("Which letter is first?", "a", "min('b', 'a')", predicted_answer="a"),
    row("Which letter is last?", "z", "print(max('a', 'z'))"),
    row("What is wrong?", "5", "2 + 3", is_correct=False),
    row("What fails to print it?", "5", "2 + 4"),
    row("What is retried?", "9", "from no_such_module import nine\nnine()"),
    row("What is retried?", "9", "3 * 3"),
    row("What has no code?", "9", "", generated_solution="It is \\boxed{9}."),
]
TEST = [row("What is 10 less 3?", "7", "10 - 3"), row("What is 10 less 4?", "6.0", "10 - 4")]
ROWS: dict[str, list[Row]] = {"train": TRAIN, "validation": TEST}


def write(file: Path, rows: Iterable[Row | str]) -> Path:
    lines = [line if isinstance(line, str) else json.dumps(line) for line in rows]
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split, rows in ROWS.items():
        write(tmp_path / f"{split}.jsonl", rows)
    return tmp_path


def questions(task: OpenMath, split: Split) -> list[str]:
    return list(task.items(split)["question"])


# --- programs ---


@pytest.mark.parametrize(
    ("solution", "program"),
    [
        (block("6 * 7"), "print(6 * 7)"),
        (block("a = 6  # six\n\na * 7  # in all"), "a = 6  # six\n\nprint(a * 7)  # in all"),
        (block("a = 'é'; a.join(['é', 'é'])"), "a = 'é'; print(a.join(['é', 'é']))"),
        (block("(6 *\n 7)"), "print((6 *\n 7))"),
        (block("6, 7"), "print((6, 7))"),
        (block("(6, 7)"), "print(((6, 7)))"),
        (block("print(6 * 7)"), "print(6 * 7)"),
        (block("a = 6") + block("a * 7"), "a = 6\nprint(a * 7)"),
        (block("6") + block("7"), "6\nprint(7)"),
        (block("a = 6\r\na * 7"), "a = 6\nprint(a * 7)"),
        (block("a = 6\ra * 7"), "a = 6\nprint(a * 7)"),
        (block("a = 6"), None),
        (block("a = "), None),
        (block(""), None),
        (block("'</code>'"), None),
        (block("for a in (6, 7):\n    print(a)"), None),
        ("no code at all", None),
        ("<llm-code>\n6 * 7", None),
    ],
)
def test_blocks_become_a_program(solution: str, program: str | None) -> None:
    assert program_of(solution) == program


# --- items ---


def test_rows_become_items(folder: Path) -> None:
    rows = OpenMath(str(folder)).items("train").to_list()
    assert [item["question"] for item in rows] == [
        "What are six sevens?", "What is a half?", "Which letter is first?", "Which letter is last?",
        "What is retried?",
    ]  # fmt: skip
    assert rows[0]["solution"] == "# six sevens\nsix = 6\nprint(six * 7)", "the first right solution"
    assert rows[4]["solution"] == "print(3 * 3)", "the first that works"
    assert rows[1]["answer"] == "\\frac{1}{2}"
    assert questions(OpenMath(str(folder)), "test") == ["What is 10 less 3?", "What is 10 less 4?"]


def test_ids_depend_on_the_question_alone(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write(other / "train.jsonl", TRAIN[::-1])
    write(other / "test.jsonl", TEST)
    ids = [
        dict(zip(t["question"], t["id"], strict=True))
        for t in (OpenMath(str(d)).items("train") for d in (folder, other))
    ]
    assert ids[0] == ids[1]
    assert len(set(ids[0].values())) == 5


@pytest.mark.parametrize("window", [1, 2, 3, 100])
def test_how_many_rows_are_looked_at_together_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    expected = OpenMath(str(folder)).items("train").to_list()
    monkeypatch.setattr(openmath, "WINDOW", window)
    assert OpenMath(str(folder)).items("train").to_list() == expected


def test_a_limit_takes_the_first(folder: Path) -> None:
    assert OpenMath(str(folder), limit=2).items("train").to_list() == OpenMath(str(folder)).items("train").to_list()[:2]
    with pytest.raises(ValueError, match="limit must be at least 1"):
        OpenMath(limit=0)


def test_one_file_is_split_by_question(tmp_path: Path) -> None:
    rows = [row(f"What is twice {n}?", str(2 * n), f"2 * {n}") for n in range(80)]
    task = OpenMath(str(write(tmp_path / "rows.jsonl", rows)))
    train, test = questions(task, "train"), questions(task, "test")
    assert len(train) + len(test) == 80
    assert set(test) == {r["question"] for r in rows if held_out(r["question"])}
    assert 3 <= len(test) <= 20


def test_parquet_rows_become_the_same_items(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "parquet"
    (other / "data").mkdir(parents=True)
    for split, rows in ROWS.items():
        pq.write_table(pa.Table.from_pylist(rows), other / "data" / f"{split}-00000-of-00001.parquet")
    for split in ("train", "test"):
        assert OpenMath(str(other)).items(split).to_list() == OpenMath(str(folder)).items(split).to_list()


def test_hub_rows_become_the_same_items(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[str, object]] = []

    def load(path: str, **options: Any) -> Iterable[Row]:
        loaded.append((path, options))
        return iter(ROWS[options["split"]])

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(openmath, "_revision", lambda: "abc")
    assert OpenMath().items("test").to_list() == OpenMath(str(folder)).items("test").to_list()
    assert loaded == [(HUB, {"split": "validation", "revision": "abc", "streaming": True})]
    assert OpenMath().fingerprint() == "abc"


# --- rewards ---


@pytest.mark.parametrize(
    ("answer", "printed", "reward"),
    [
        ("42", "42", 1.0),
        ("42", "42.0", 1.0),
        ("1,000", "1000", 1.0),
        ("\\frac{1}{2}", "0.5", 1.0),
        ("\\frac{1}{2}", "1/2", 1.0),
        ("42", "43", 0.0),
        ("42", "x = 42", 0.0),
        ("42", "42 apples", 0.0),
        ("x^2", "x^2", 1.0),
        ("x^2", "x**2", 0.0),
        ("even", "All hail to the thief, even", 0.0),
    ],
)
def test_reward(answer: str, printed: str, reward: float) -> None:
    item = Item("i", "What?", answer, "print()")
    assert OpenMath().reward(item, [format_program(f"print('so')\nprint({printed!r})"), printed]) == [reward, 0.0]


def test_messages_name_the_format_and_keep_the_question(folder: Path) -> None:
    item = Item.from_row(OpenMath(str(folder)).items("test")[0])
    system, user = OpenMath().messages(item)
    assert all(tag in system["content"] for tag in ("<code>", "</code>"))
    assert user == {"role": "user", "content": item.question}


# --- fingerprints and errors ---


def test_the_fingerprint_follows_the_content(folder: Path) -> None:
    before = OpenMath(str(folder)).fingerprint()
    assert re.fullmatch("[0-9a-f]{64}", before)
    assert OpenMath(str(folder)).fingerprint() == before
    write(folder / "validation.jsonl", TEST[:1])
    assert OpenMath(str(folder)).fingerprint() != before


def one_sentence(error: pytest.ExceptionInfo[TaskError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert "write" in text, "the message does not say what to write instead"
    return text


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "cannot be read behind row 2 (JSONDecodeError)"),
        ('["a row"]', "row 3 is no JSON object"),
        (json.dumps(TEST[0] | {"question": 1}), "row 3 lacks the text column"),
        (json.dumps({"question": "How?", "is_correct": True}), "row 3 lacks the text column"),
        (json.dumps(TEST[0] | {"expected_answer": None}), "row 3 lacks the text column"),
        (json.dumps(TEST[0] | {"is_correct": "yes"}), 'row 3 lacks the column "is_correct"'),
    ],
)
def test_an_unreadable_row_is_named(folder: Path, line: str, complaint: str) -> None:
    write(folder / "validation.jsonl", [*TEST, line])
    with pytest.raises(TaskError) as error:
        OpenMath(str(folder)).items("test")
    assert complaint in one_sentence(error)


@pytest.mark.parametrize("name", ["nothing", "rows.csv", ""])
def test_missing_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "rows.csv").write_text("question\n")
    for use in (lambda task: task.items("train"), lambda task: task.fingerprint()):
        with pytest.raises(TaskError) as error:
            use(OpenMath(str(tmp_path / name)))
        assert "openmath(data=PATH)" in one_sentence(error)


@pytest.mark.parametrize("content", [b"no parquet", b""])
def test_a_broken_parquet_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rows.parquet").write_bytes(content)
    with pytest.raises(TaskError) as error:
        OpenMath(str(tmp_path)).items("train")
    assert "rows.parquet cannot be read" in one_sentence(error)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"question": "\xff"}\n')
    with pytest.raises(TaskError) as error:
        OpenMath(str(tmp_path)).items("train")
    assert "rows.jsonl cannot be read behind row 0 (UnicodeDecodeError" in one_sentence(error)


def test_data_without_a_working_program(tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", [row("What is it?", "5", "6", is_correct=False)])
    with pytest.raises(TaskError) as error:
        OpenMath(str(file)).items("train")
    assert "no row of the train split" in one_sentence(error)


@pytest.mark.parametrize("kind", [ConnectionError, FileNotFoundError, RuntimeError])
def test_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise kind("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    monkeypatch.setattr(openmath, "_revision", lambda: "abc")
    with pytest.raises(TaskError) as error:
        OpenMath().items("train")
    assert "openmath(data=PATH)" in one_sentence(error)
