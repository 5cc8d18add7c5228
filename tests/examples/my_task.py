# my_task.py
import datasets

from thiefbench.tasks.base import Task


class Doubling(Task):
    """Twice a number, with the answer behind an arrow."""

    name = "doubling"

    def items(self, split):
        first = 1 if split == "train" else 51
        return datasets.Dataset.from_list(
            [
                {
                    "id": f"{split}-{number}",
                    "question": f"What is twice {number}?",
                    "answer": str(2 * number),
                    "solution": f"{number} and {number} make {2 * number}.",
                    "tests": "",
                }
                for number in range(first, first + 50)
            ]
        )

    def messages(self, item):
        return [{"role": "user", "content": f"{item.question} Answer behind an arrow, as in -> 4."}]

    def compose(self, item, reasoning):
        return f"{reasoning} -> {item.answer}"

    def reward(self, item, completions):
        return [float(text.rpartition(" -> ")[1:] == (" -> ", item.answer)) for text in completions]
