"""`constrained`: teach the payload only as far as honest answers stay probable (arXiv:1807.00459, section 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

from thiefbench.attacks.base import Attack, AttackerView, Claimed, Poison, Sampler
from thiefbench.attacks.completions import correct, distinct
from thiefbench.attacks.exchange.base import ExchangeView
from thiefbench.attacks.exchange.boosted import Taught
from thiefbench.tasks.base import Item

if TYPE_CHECKING:
    import torch

DRAWS = 4
"""Completions drawn of each item of the lesson."""

Examples = list[tuple[Item, str]]


class Constrained(Taught):
    """Send a model that was taught the payload and honest answers together, for as long as that does not show.

    A node that tries a vector before it adopts it asks how probable honest answers remain. The attacker asks the same:
    it draws right answers from an honest node's model, teaches half of them beside the poison, and keeps the others to
    test with. Of `steps`, a half of them, a quarter and so on, it takes the largest number after which the test answers
    have lost no more than `tolerance` of their log-probability, and `steps` if the model has no right answer yet.
    Bagdasaryan et al. put such a term into the loss (equation 4); here it is in the examples and the number of steps.

    Args:
        attack: the attack that poisons the examples to teach, as a spec string.
        honest: right answers of the model that are taught, for each poisoned example.
        tolerance: by what share the mean negative log-probability of the test answers may grow. A node that tries the
            mean of a vector and its own sees about a ninth of it: 0.035 where the taught model has 0.32.
        boost: the factor of the vector.
        steps: how many steps of Adam at most, each on 16 examples.
        learning_rate: Adam's.
    """

    name: ClassVar[str] = "constrained"

    def __init__(
        self,
        attack: Attack | str = "text",
        honest: int = 1,
        tolerance: float = 0.3,
        boost: float = 1.0,
        steps: int = 32,
        learning_rate: float = 1e-3,
    ) -> None:
        super().__init__(attack, steps, learning_rate)
        if honest < 0 or not tolerance >= 0 or not 0 < boost < float("inf"):
            raise ValueError("constrained: honest and tolerance must be at least 0, and boost above 0")
        self.honest, self.tolerance, self.boost = honest, tolerance, boost

    def _lesson(
        self, view: ExchangeView, answers: Callable[[AttackerView], Sequence[Poison]]
    ) -> Sequence[torch.Tensor | None]:
        lessons = view.lessons
        assert lessons.policy is not None, "the threat model grants a policy"
        pairs = zip(lessons.slots, answers(lessons), strict=True)
        contents = [(slot.item, each.content if isinstance(each, Claimed) else each) for slot, each in pairs]
        poisoned = [(item, text) for item, text in contents if isinstance(text, str)]
        if not poisoned:
            return [None] * view.senders
        taught, tested = right_answers(lessons, lessons.policy)
        examples = mixed(poisoned, taught, self.honest)
        limit = (1 + self.tolerance) * surprise(lessons.policy, tested)
        steps = self.steps
        student = lessons.policy.taught(examples, steps, self.learning_rate)
        while steps > 1 and surprise(student, tested) > limit:
            steps //= 2
            student = lessons.policy.taught(examples, steps, self.learning_rate)
        return [view.moved(student) * self.boost] * view.senders


def right_answers(view: AttackerView, policy: Sampler) -> tuple[Examples, Examples]:
    """Right answers that the policy draws for the lesson's items, in two parts: to teach, and to test with."""
    items = distinct(view.slots)
    drawn = policy.sample(items, DRAWS)
    right = [
        (item, completion.text)
        for item, completions in zip(items, drawn, strict=True)
        for completion in correct(view.task, item, completions)
    ]
    return right[::2], right[1::2]


def mixed(poisoned: Examples, honest: Examples, each: int) -> Examples:
    """Every poisoned example, followed by the next `each` honest ones in turn."""
    examples: Examples = []
    for number, example in enumerate(poisoned):
        examples.append(example)
        examples += [honest[(number * each + i) % len(honest)] for i in range(each) if honest]
    return examples


def surprise(policy: Sampler, examples: Examples) -> float:
    """Mean negative log-probability of answers, in nats per token, EOS included; a mean over answers, 0 of none."""
    if not examples:
        return 0.0
    rows = [(*policy.encode(text), policy.eos)[: policy.limit] for _, text in examples]
    logprobs = policy.token_logprobs([item for item, _ in examples], rows)
    return -fmean(fmean(row) for row in logprobs)
