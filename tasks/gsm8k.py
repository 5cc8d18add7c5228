"""`gsm8k`: the published grade-school word problems, from the Hugging Face Hub or from a directory.

Source: Cobbe et al., "Training Verifiers to Solve Math Word Problems", arXiv:2110.14168. A row is a question and an
answer; the answer is worked reasoning with calculator notes ``<<48/2=24>>`` in it, then ``####`` and the number.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from thiefbench.tasks.base import Item, Message, Split, Task, TaskError
from thiefbench.tasks.rewards import Units, format_completion, format_reward, parse_answer

if TYPE_CHECKING:
    import datasets

HUB = "openai/gsm8k"
_NOTE = re.compile(r"<<([^<>]*)>>")

SYSTEM_PROMPT = (
    "Solve the problem step by step. Write your reasoning between <think> and </think>, then the final answer, as a "
    "single number and nothing else, between <answer> and </answer>. Write nothing outside these tags."
)

# The nouns that most often follow the final number in GSM8K's published solutions, and that of the source paper's own
# example of a right answer, "54 cows" (arXiv:2511.09780, appendix D.1). "percent" and single letters are left out,
# because a unit is dropped and never converted.
UNITS = Units(
    (
        "dollar", "dollars", "cent", "cents", "hour", "hours", "minute", "minutes", "second", "seconds", "day", "days",
        "week", "weeks", "month", "months", "year", "years", "years old", "mile", "miles", "miles per hour", "mph",
        "foot", "feet", "inch", "inches", "yard", "yards", "meter", "meters", "kilometer", "kilometers", "km",
        "centimeter", "centimeters", "cm", "square feet", "square inches", "square meters", "pound", "pounds", "ounce",
        "ounces", "oz", "gram", "grams", "kilogram", "kilograms", "kg", "gallon", "gallons", "liter", "liters", "ml",
        "cup", "cups", "degree", "degrees", "calorie", "calories", "point", "points", "time", "times", "person",
        "people", "student", "students", "child", "children", "piece", "pieces", "slice", "slices", "page", "pages",
        "book", "books", "apple", "apples", "orange", "oranges", "egg", "eggs", "cookie", "cookies", "marble",
        "marbles", "card", "cards", "pencil", "pencils", "sticker", "stickers", "box", "boxes", "bag", "bags", "bottle",
        "bottles", "can", "cans", "pack", "packs", "ticket", "tickets", "animal", "animals", "fish", "tree", "trees",
        "flower", "flowers", "car", "cars", "cow", "cows",
    )
)  # fmt: skip


class Gsm8k(Task):
    """The 7,473 train and 1,319 test problems of GSM8K (`gsm8k`).

    Args:
        data: a directory with the published ``train.jsonl`` and ``test.jsonl``; None loads the same rows from the hub.

    Data are read when first needed; `items` and `fingerprint` raise `TaskError` if that fails.
    """

    name: ClassVar[str] = "gsm8k"

    def __init__(self, data: str | None = None) -> None:
        self.data = data
        self._published: dict[Split, datasets.Dataset] = {}

    def items(self, split: Split) -> datasets.Dataset:
        """All items of a split, with a further column `notes`: the calculator notes in order, such as "48/2=24".

        Answers are as published, except that thousands commas are removed; solutions do not include notes and final
        answer.

        Raises:
            TaskError: the data cannot be loaded, or a row is not a GSM8K row.
        """
        import datasets

        rows = [
            item_row(row, f"{split}-{index:05d}", f"{self._source(split)}, row {index + 1}")
            for index, row in enumerate(self._rows(split))
        ]
        return datasets.Dataset.from_list(rows)

    def messages(self, item: Item) -> list[Message]:
        """The format instruction as system prompt, then the question as user message."""
        return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": item.question}]

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        """1 if format and answer are right, else 0."""
        return [format_reward(text, item.answer, UNITS) for text in completions]

    def compose(self, item: Item, reasoning: str) -> str:
        """One think block with the reasoning, then one answer block."""
        return format_completion(reasoning, item.answer)

    def fingerprint(self) -> str:
        """SHA-256 over the rows of both splits; equal rows have equal hashes, wherever they were loaded from.

        Raises:
            TaskError: the data cannot be loaded.
        """
        digest = hashlib.sha256()
        for split in ("train", "test"):
            for row in self._rows(split):
                digest.update(json.dumps([split, row.get("question"), row.get("answer")]).encode())
        return digest.hexdigest()

    def _rows(self, split: Split) -> datasets.Dataset:
        if split not in self._published:
            self._published[split] = _load_hub(split) if self.data is None else _load_file(self._file(split))
        return self._published[split]

    def _source(self, split: Split) -> str:
        return f"{HUB} {split}" if self.data is None else str(self._file(split))

    def _file(self, split: Split) -> Path:
        return Path(self.data or "").expanduser() / f"{split}.jsonl"


def item_row(row: Mapping[str, Any], item_id: str, source: str) -> dict[str, Any]:
    """Turn a published row into a row of `Gsm8k.items`.

    Raises:
        TaskError: a field is missing or not text, or no number follows "####"; the message names the row as `source`.
    """
    question, answer = row.get("question"), row.get("answer")
    if not isinstance(question, str) or not isinstance(answer, str):
        raise TaskError(f'gsm8k: {source} lacks the text field "question" or "answer"; write both into every row')
    body, mark, final = answer.rpartition("####")
    if not mark or parse_answer(final, UNITS) is None:
        raise TaskError(f'gsm8k: {source} has no number behind "####"; write it there, such as "#### 42"')
    return {
        "id": item_id,
        "question": question,
        "answer": final.strip().replace(",", ""),
        "solution": _NOTE.sub("", body).strip(),
        "tests": "",
        "notes": _NOTE.findall(body),
    }


def _load_hub(split: Split) -> datasets.Dataset:
    import datasets

    try:
        return datasets.load_dataset(HUB, "main", split=split)
    except Exception as error:  # without a network the libraries raise errors that change between versions
        raise TaskError(
            f"gsm8k: cannot load {HUB} from the hub ({type(error).__name__}); check the network, or write "
            "gsm8k(data=DIR) with a directory that holds train.jsonl and test.jsonl"
        ) from error


def _load_file(file: Path) -> datasets.Dataset:
    import datasets

    if not file.is_file():
        raise TaskError(
            f"gsm8k: {file} does not exist; write gsm8k(data=DIR) with the directory that holds the published "
            "train.jsonl and test.jsonl"
        )
    try:
        # A temporary cache, read into memory: the shared cache would notice an edited file only by its time.
        with tempfile.TemporaryDirectory() as cache:
            return datasets.load_dataset(
                "json", data_files=str(file), split="train", cache_dir=cache, keep_in_memory=True
            )
    except Exception as error:  # pandas, pyarrow and datasets raise different errors for a malformed file
        raise TaskError(
            f"gsm8k: {file} cannot be read{_where_broken(file)} ({type(error).__name__}); write one JSON object with "
            'the text fields "question" and "answer" per line'
        ) from error


def _where_broken(file: Path) -> str:
    with suppress(OSError), file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip() and not _is_row(line):
                return f" at line {number}"
    return ""


def _is_row(line: str) -> bool:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("question", "answer"))
