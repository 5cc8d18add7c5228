"""`code_micro`: the stories of `gsm_micro`, answered by a short Python program that prints the answer."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, ClassVar

from thiefbench.tasks.base import Item, Message, Split
from thiefbench.tasks.gsm_micro import Story, stories
from thiefbench.tasks.micro_programs import chain_of, write_program
from thiefbench.tasks.programs import AnswerProgramTask

if TYPE_CHECKING:
    import datasets


def reference_program(story: Story) -> str:
    """A correct program. Only the question determines its layout, so equal questions have equal programs."""
    return write_program(chain_of(story), story, random.Random(f"code_micro:{story.question}"))


class CodeMicro(AnswerProgramTask):
    """Generated two- and three-step word problems, answered by a Python program (`code_micro`).

    A completion is one code block; the last line that its program prints must be the answer, in digits only.

    Args:
        size: number of distinct items per split.
        seed: the seed that items are drawn with.
    """

    name: ClassVar[str] = "code_micro"

    def __init__(self, size: int = 4096, seed: int = 0) -> None:
        if size < 1:
            raise ValueError(f"code_micro: size must be at least 1, got {size}")
        self.size, self.seed = size, seed

    def items(self, split: Split) -> datasets.Dataset:
        """`size` items with distinct questions."""
        import datasets

        rows: dict[str, dict[str, str]] = {}
        for story in stories(split, self.seed):
            row = {"id": f"{split}-{len(rows):05d}", "question": story.question, "answer": str(story.answer)}
            rows.setdefault(story.question, row | {"solution": reference_program(story), "tests": ""})
            if len(rows) == self.size:
                break
        return datasets.Dataset.from_list(list(rows.values()))

    def messages(self, item: Item) -> list[Message]:
        """Only the question: the built-in models know the format without an instruction."""
        return [{"role": "user", "content": item.question}]
