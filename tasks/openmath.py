"""`openmath`: grade-school and competition problems answered by a Python program, from OpenMathInstruct-1.

Source: Toshniwal et al., "OpenMathInstruct-1: A 1.8 Million Math Instruction Tuning Dataset", arXiv:2402.10176. A row
is a question, its expected answer and one generated solution, right or wrong. Solutions mix text with code blocks as in
a notebook, where a block shows the value of its last expression. A row becomes an item if it is right and if its code
blocks, joined and with the last expression printed, are a program that prints the expected answer.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from thiefbench.tasks import sandbox
from thiefbench.tasks.base import Item, Message, Split, TaskError
from thiefbench.tasks.programs import AnswerProgramTask, format_program, parse_program, run_programs, syntax_tree
from thiefbench.tasks.rewards import Units, parse_answer, same_value

if TYPE_CHECKING:
    import datasets

HUB = "nvidia/OpenMathInstruct-1"
SYSTEM_PROMPT = (
    "Solve the problem with one Python program. Write it between <code> and </code> and nothing outside these tags. "
    "The last line that it prints must be the final answer and nothing else."
)
PUBLISHED: dict[Split, str] = {"train": "train", "test": "validation"}
"""The dataset's names of the two splits."""
SUFFIXES = (".jsonl", ".parquet")
NO_UNITS = Units(())
WINDOW = 256
"""How many solutions are checked together, so that many programs run at once."""

_BLOCK = re.compile(r"<llm-code>(.*?)</llm-code>", re.DOTALL)


@dataclass(frozen=True)
class Solved:
    """A right row whose code blocks form one program. It is not yet known whether the program prints the answer."""

    question: str
    answer: str
    program: str


class OpenMath(AnswerProgramTask):
    """Problems of OpenMathInstruct-1, answered by a Python program (`openmath`).

    A completion is one code block; the last line that its program prints must be the answer: an equal number, or else
    the same text. Programs have only the standard library, so solutions that need sympy or numpy do not become items.

    Args:
        data: a .jsonl or .parquet file with the published columns, or a folder of such files; None streams the rows
            from the Hugging Face Hub. Files named train* and validation* (or test*) are the two splits; if either is
            missing, one question in eight of all files is held out.
        limit: the most items per split. Each program is run once to check that it prints its answer, which takes time.

    Data are read when first needed; `items` and `fingerprint` raise `TaskError` if that fails.
    """

    name: ClassVar[str] = "openmath"
    limits: ClassVar[sandbox.Limits] = sandbox.Limits(seconds=10.0)  # the limit with which the dataset was made

    def __init__(self, data: str | None = None, limit: int = 2048) -> None:
        if limit < 1:
            raise ValueError(f"openmath: limit must be at least 1, got {limit}")
        self.data, self.limit = data, limit
        self._read: dict[Split, datasets.Dataset] = {}

    def items(self, split: Split) -> datasets.Dataset:
        """The first `limit` distinct questions with a working program, in the order of the data.

        Raises:
            TaskError: the data cannot be loaded, or no row of the split has such a program.
            SandboxUnavailable: this machine cannot run untrusted programs.
        """
        import datasets

        if split not in self._read:
            rows = [_row(split, solved) for solved in islice(self._working(split), self.limit)]
            if not rows:
                raise TaskError(
                    f"openmath: no row of the {split} split in {self.data or HUB} has a program that prints its "
                    "expected answer; write openmath(data=FILE) with rows whose is_correct is true"
                )
            self._read[split] = datasets.Dataset.from_list(rows)
        return self._read[split]

    def messages(self, item: Item) -> list[Message]:
        """The format instruction as system prompt, then the question as user message."""
        return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": item.question}]

    def says(self, printed: str, answer: str) -> bool:
        """Whether a printed last line is the answer: equal as a number, or else as text."""
        value, gold = parse_answer(printed, NO_UNITS), parse_answer(answer, NO_UNITS)
        if gold is None:
            return printed == answer.strip()
        return value is not None and same_value(value, gold)

    def fingerprint(self) -> str:
        """The hub's revision, or SHA-256 over the names and bytes of the files.

        Raises:
            TaskError: the data cannot be found.
        """
        if self.data is None:
            return _revision()
        digest = hashlib.sha256()
        for file in _files(self.data):
            digest.update(file.name.encode() + b"\0")
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
        return digest.hexdigest()

    def _working(self, split: Split) -> Iterator[Solved]:
        """For every question the first solution whose program prints the answer."""
        rows = self._solved(split)
        done: set[str] = set()
        while window := list(islice(rows, WINDOW)):
            working: dict[str, tuple[int, Solved]] = {}
            waiting = list(enumerate(window))
            while waiting := [(number, solved) for number, solved in waiting if solved.question not in done]:
                # The first solution of each question; a later one is tried only if it fails.
                tried = {solved.question: (number, solved) for number, solved in reversed(waiting)}
                printed = run_programs([solved.program for _, solved in tried.values()], {}, self.limits)
                for question, (number, solved) in tried.items():
                    if solved.program in printed and self.says(printed[solved.program], solved.answer):
                        working[question] = (number, solved)
                        done.add(question)
                numbers = {number for number, _ in tried.values()}
                waiting = [(number, solved) for number, solved in waiting if number not in numbers]
            yield from (solved for _, solved in sorted(working.values(), key=lambda numbered: numbered[0]))

    def _solved(self, split: Split) -> Iterator[Solved]:
        """The right rows of a split whose code blocks form a program."""
        for row, source in self._rows(split):
            solved = solved_row(row, source)
            if solved is not None:
                yield solved

    def _rows(self, split: Split) -> Iterator[tuple[Mapping[str, Any], str]]:
        """The rows of a split, each with its file and number for messages."""
        if self.data is None:
            yield from ((row, f"{HUB}, row {number}") for number, row in enumerate(_hub(split), 1))
            return
        files = _files(self.data)
        named: dict[Split, list[Path]] = {
            "train": [file for file in files if file.name.startswith("train")],
            "test": [file for file in files if file.name.startswith(("validation", "test"))],
        }
        split_by_file = all(named.values())
        for file in named[split] if split_by_file else files:
            for number, row in enumerate(_read(file), 1):
                if split_by_file or held_out(str(row.get("question"))) == (split == "test"):
                    yield row, f"{file}, row {number}"


def held_out(question: str) -> bool:
    """Whether a question belongs to the test split if the data have no splits: one in eight does."""
    return hashlib.sha256(question.encode("utf-8", "replace")).digest()[0] < 32


def solved_row(row: Mapping[str, Any], source: str) -> Solved | None:
    """The program of a published row; None if the row is wrong or its code does not form a program that prints.

    Raises:
        TaskError: a column is missing or of another type; the message names the row as `source`.
    """
    texts = [row.get(column) for column in ("question", "expected_answer", "generated_solution")]
    question, answer, solution = texts
    if not isinstance(question, str) or not isinstance(answer, str) or not isinstance(solution, str):
        raise TaskError(
            f'openmath: {source} lacks the text column "question", "expected_answer" or "generated_solution"; write '
            "all three into every row"
        )
    if not isinstance(row.get("is_correct"), bool):
        raise TaskError(f'openmath: {source} lacks the column "is_correct"; write true or false into every row')
    program = program_of(solution) if row["is_correct"] and question.strip() and answer.strip() else None
    return None if program is None else Solved(question, answer.strip(), program)


def program_of(solution: str) -> str | None:
    """The code blocks of a solution as one program that prints the last block's value; None if there are none.

    The code is unchanged except that the last expression is put into ``print(...)``.
    """
    blocks = _BLOCK.findall(solution.replace("\r\n", "\n").replace("\r", "\n"))
    code = "\n".join(block.strip("\n").rstrip() for block in blocks)
    tree = syntax_tree(code)
    statements = tree.body if tree else []
    if not statements or not isinstance(statements[-1], ast.Expr):
        return None
    program = code if _prints(statements[-1].value) else _printed(code, statements[-1])
    # A tag in it, or a blank line at its start, would not survive the completion format.
    return program if parse_program(format_program(program)) == program else None


def _prints(expression: ast.expr) -> bool:
    called = expression.func if isinstance(expression, ast.Call) else None
    return isinstance(called, ast.Name) and called.id == "print"


def _printed(code: str, last: ast.Expr) -> str:
    """`code` with its last expression inside ``print(...)``; a tuple without brackets is printed as one value."""
    lines = code.encode().split(b"\n")  # ast counts columns in bytes
    assert last.end_lineno is not None
    assert last.end_col_offset is not None
    left, right = (b"print((", b"))") if isinstance(last.value, ast.Tuple) else (b"print(", b")")
    end, start = last.end_lineno - 1, last.lineno - 1
    lines[end] = lines[end][: last.end_col_offset] + right + lines[end][last.end_col_offset :]
    lines[start] = lines[start][: last.col_offset] + left + lines[start][last.col_offset :]
    return b"\n".join(lines).decode()


def _row(split: Split, solved: Solved) -> dict[str, str]:
    marked = hashlib.sha256(solved.question.encode("utf-8", "replace")).hexdigest()[:16]
    return {
        "id": f"{split}-{marked}",
        "question": solved.question,
        "answer": solved.answer,
        "solution": solved.program,
        "tests": "",
    }


def _files(data: str) -> list[Path]:
    """The data files that `data` names, in the order of their names."""
    path = Path(data).expanduser()
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
    if not files or files[0].suffix not in SUFFIXES:
        raise TaskError(
            f"openmath: {path} is neither a .jsonl or .parquet file nor a folder with one; write openmath(data=PATH) "
            f"with rows of {HUB}"
        )
    return files


def _read(file: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a data file, one by one."""
    number = 0
    try:
        for number, row in enumerate(_parquet(file) if file.suffix == ".parquet" else _jsonl(file), 1):
            if not isinstance(row, dict):
                raise TaskError(f"openmath: {file}, row {number} is no JSON object; write one per line")
            yield row
    except (OSError, ValueError, RecursionError) as error:  # errors of pyarrow are ValueErrors and OSErrors
        raise TaskError(
            f"openmath: {file} cannot be read behind row {number} ({type(error).__name__}); write the published "
            f"columns as {' or '.join(SUFFIXES)}"
        ) from error


def _jsonl(file: Path) -> Iterator[Any]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def _parquet(file: Path) -> Iterator[Any]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(file) as opened:
        for batch in opened.iter_batches():
            yield from batch.to_pylist()


@cache
def _revision() -> str:
    """The commit of the hub's data; rows are streamed from the same commit that the fingerprint names."""
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(HUB).sha)
    except Exception as error:  # without a network, the library raises various errors that change between versions
        raise _unreachable(error) from error


def _hub(split: Split) -> Iterator[Mapping[str, Any]]:
    import datasets

    try:
        yield from datasets.load_dataset(HUB, split=PUBLISHED[split], revision=_revision(), streaming=True)
    except TaskError:
        raise
    except Exception as error:  # as above, while any row is read
        raise _unreachable(error) from error


def _unreachable(error: Exception) -> TaskError:
    return TaskError(
        f"openmath: cannot load {HUB} from the hub ({type(error).__name__}); check the network, or write "
        "openmath(data=PATH) with a file of its rows"
    )
