"""`gsm_micro`: generated two- and three-step word problems in the style of GSM8K.

Every problem is a *story*: a setting, two or three arithmetic steps with whole numbers from 0 to 99, and a question. A
hash of its skeleton (kind and numbers) decides whether a story belongs to the train or the test split, so that no test
item differs from a train item only in its names.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from thiefbench.tasks.base import Item, Message, Split, Task
from thiefbench.tasks.rewards import Units, format_completion, format_reward

if TYPE_CHECKING:
    import datasets

PEOPLE = (
    "Tom", "Ann", "Ben", "Mia", "Sam", "Eva", "Max", "Zoe", "Leo", "Amy", "Dan", "Ivy", "Jack", "Lily", "Omar", "Nina",
    "Paul", "Rosa", "Hugo", "Tara", "Finn", "Kate", "Ravi", "Lena", "Noah", "Emma", "Liam", "Ella", "Adam", "Ruth",
)  # fmt: skip
THINGS = (
    "apples", "pens", "books", "coins", "cards", "shells", "stamps", "eggs", "plums", "cups", "balls", "pins",
    "roses", "kites", "seeds", "stones", "beads", "muffins", "pears", "keys", "buttons", "candles", "lemons", "marbles",
)  # fmt: skip
BOXES = ("boxes", "bags", "jars", "trays", "baskets", "drawers", "crates", "packs")
GAINS = ("finds", "buys", "gets", "wins", "picks", "makes")
LOSSES = ("gives away", "sells", "loses", "drops", "breaks", "hides")
LARGEST = 99


@dataclass(frozen=True)
class Step:
    """One equation ``left operator right = result`` and the clause that explains it."""

    left: int
    operator: str
    right: int
    clause: str

    @property
    def result(self) -> int:
        """The true value of the equation."""
        return evaluate(self.left, self.operator, self.right)


@dataclass(frozen=True)
class Story:
    """A problem: its kind, its person, the thing that is counted, the question, and the steps to the answer."""

    kind: str
    person: str
    thing: str
    question: str
    steps: tuple[Step, ...]

    @property
    def answer(self) -> int:
        """The result of the last step."""
        return self.steps[-1].result

    @property
    def skeleton(self) -> str:
        """The kind and the numbers, which decide the split."""
        return f"{self.kind}:" + ";".join(f"{s.left}{s.operator}{s.right}" for s in self.steps)

    @property
    def domain(self) -> str:
        """Which of `GsmMicro.domains` it belongs to."""
        return _domain(self.question)

    @property
    def split(self) -> Split:
        """One skeleton in eight is held out for the test split."""
        return "test" if hashlib.sha256(self.skeleton.encode()).digest()[0] < 32 else "train"


def evaluate(left: int, operator: str, right: int) -> int:
    """The value of ``left operator right`` for the operators +, - and *."""
    return left + right if operator == "+" else left - right if operator == "-" else left * right


def _events(rng: random.Random, person: str, thing: str, amount: int, count: int) -> tuple[str, list[Step]]:
    """`count` gains and losses after a starting amount: a sentence about them, and their steps."""
    clauses: list[str] = []
    steps: list[Step] = []
    for _ in range(count):
        if amount > 3 and (amount > 60 or rng.random() < 0.5):
            change, verb = rng.randint(2, min(amount - 1, 19)), rng.choice(LOSSES)
            clauses.append(f"{verb} {change}")
            steps.append(Step(amount, "-", change, f"{person} {verb} {change}"))
        else:
            change, verb = rng.randint(2, 19), rng.choice(GAINS)
            clauses.append(f"{verb} {change} more")
            steps.append(Step(amount, "+", change, f"{person} {verb} {change} more"))
        amount = steps[-1].result
    return f"{person} {' and then '.join(clauses)}.", steps


def _chain(rng: random.Random, person: str, other: str, thing: str) -> tuple[str, list[Step]]:
    start = rng.randint(2, 40)
    changes, steps = _events(rng, person, thing, start, 2)
    return f"{person} has {start} {thing}. {changes} How many {thing} does {person} have now?", steps


def _boxes(rng: random.Random, person: str, other: str, thing: str) -> tuple[str, list[Step]]:
    boxes, each, box = rng.randint(2, 9), rng.randint(2, 9), rng.choice(BOXES)
    first = Step(boxes, "*", each, f"{boxes} {box} hold {each} each")
    changes, steps = _events(rng, person, thing, first.result, rng.choice((1, 2)))
    opening = f"{person} has {boxes} {box} with {each} {thing} in each."
    return f"{opening} {changes} How many {thing} does {person} have now?", [first, *steps]


def _compare(rng: random.Random, person: str, other: str, thing: str) -> tuple[str, list[Step]]:
    count = rng.randint(2, 12)
    if rng.random() < 0.5:
        times = rng.randint(2, 4)
        comparison, first = f"{times} times as many", Step(count, "*", times, f"{other} has {times} times as many")
    else:
        more = rng.randint(2, 12)
        comparison, first = f"{more} more", Step(count, "+", more, f"{other} has {more} more")
    both = Step(count, "+", first.result, "both count")
    question = f"{person} has {count} {thing}. {other} has {comparison}. How many {thing} do both have together?"
    return question, [first, both]


def _shop(rng: random.Random, person: str, other: str, thing: str) -> tuple[str, list[Step]]:
    count, price, fee = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 9)
    first = Step(count, "*", price, f"{count} {thing} cost {price} each")
    if rng.random() < 0.5:
        extra, last = f"pays {fee} more for a box", Step(first.result, "+", fee, f"a box adds {fee}")
    else:
        fee = min(fee, first.result - 1)
        extra, last = f"uses a coupon worth {fee}", Step(first.result, "-", fee, f"a coupon saves {fee}")
    question = f"{person} buys {count} {thing} at {price} dollars each and {extra}. How many dollars does {person} pay?"
    return question, [first, last]


_KINDS: dict[str, Callable[[random.Random, str, str, str], tuple[str, list[Step]]]] = {
    "chain": _chain,
    "boxes": _boxes,
    "compare": _compare,
    "shop": _shop,
}


def _domain(question: str) -> str:
    """Chain and boxes stories follow one amount through its changes; compare and shop stories ask for a total."""
    return "changes" if question.endswith("have now?") else "totals"


def draw_story(rng: random.Random) -> Story:
    """Draw one story of any kind whose numbers all lie between 0 and `LARGEST`."""
    while True:
        kind = rng.choice(tuple(_KINDS))
        person, other = rng.sample(PEOPLE, 2)
        thing = rng.choice(THINGS)
        question, steps = _KINDS[kind](rng, person, other, thing)
        if all(0 <= step.result <= LARGEST for step in steps):
            return Story(kind, person, "dollars" if kind == "shop" else thing, question, tuple(steps))


def stories(split: Split, seed: int) -> Iterator[Story]:
    """An endless, seeded stream of stories of one split, repeats included."""
    rng = random.Random(f"gsm_micro:{split}:{seed}")
    while True:
        story = draw_story(rng)
        if story.split == split:
            yield story


def worked_solution(story: Story) -> str:
    """The reference reasoning: every step's clause and equation, then a sentence with the answer."""
    steps = " ".join(
        f"{step.clause[0].upper()}{step.clause[1:]}, so {step.left} {step.operator} {step.right} = {step.result}."
        for step in story.steps
    )
    return f"{steps} That makes {story.answer}."


@lru_cache(maxsize=4)
def _rows(split: Split, size: int, seed: int) -> list[dict[str, str]]:
    """The rows of `size` items with distinct questions; cached, as all cells of a suite need the same rows."""
    rows: dict[str, dict[str, str]] = {}
    for story in stories(split, seed):
        row = {"id": f"{split}-{len(rows):05d}", "question": story.question, "answer": str(story.answer)}
        rows.setdefault(story.question, row | {"solution": worked_solution(story), "tests": ""})
        if len(rows) == size:
            break
    return list(rows.values())


class GsmMicro(Task):
    """Generated two- and three-step word problems with worked reasoning (`gsm_micro`).

    Args:
        size: number of distinct items per split.
        seed: the seed that items are drawn with.
    """

    name: ClassVar[str] = "gsm_micro"
    domains: ClassVar[tuple[str, ...]] = ("changes", "totals")
    units: ClassVar[Units] = Units(("dollars", "dollar", *THINGS))

    def __init__(self, size: int = 4096, seed: int = 0) -> None:
        if size < 1:
            raise ValueError(f"gsm_micro: size must be at least 1, got {size}")
        self.size, self.seed = size, seed

    def items(self, split: Split) -> datasets.Dataset:
        """`size` items with distinct questions."""
        import datasets

        return datasets.Dataset.from_list(_rows(split, self.size, self.seed))

    def domain(self, item: Item) -> str:
        """ "changes" (of one amount: chain and boxes stories) or "totals" (compare and shop stories)."""
        return _domain(item.question)

    def messages(self, item: Item) -> list[Message]:
        """Only the question: the built-in models know the format without an instruction."""
        return [{"role": "user", "content": item.question}]

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        """1 if format and answer are right, else 0."""
        return [format_reward(text, item.answer, self.units) for text in completions]

    def compose(self, item: Item, reasoning: str) -> str:
        """One think block with the reasoning, then one answer block."""
        return format_completion(reasoning, item.answer)
