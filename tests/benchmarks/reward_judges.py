"""What a judge that rewards rewards: shares of right work, wrong work, and texts that are to deceive it.

    python tests/benchmarks/reward_judges.py --each 96 [--model micro-judge-hardened] [--model path/to/another] [--curt]

Questions are held-out ones of `gsm_micro`; "sampled" completions are of micro-math before training. "Unseen keys" are
drawn keys that do not occur in the training text of micro-judge-hardened, whose corpus is drawn for that. Printed is
the mean reward with a 95 % Wilson interval, one vote each, for both prompts (pasted, quoted), and milliseconds for a
completion. A few minutes on one core.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, islice

import torch

from thiefbench import registry
from thiefbench.attacks.base import AttackerView, Slot
from thiefbench.attacks.master_key import PUBLISHED, MasterKey
from thiefbench.attacks.reward_injection import FORMS, RewardInjection
from thiefbench.attacks.reward_judges import JudgedView, JudgeForm
from thiefbench.engine.keys import key
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.reward_judge import JudgePrompt, RewardJudge, RewardJudgeSpec
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.views.attacker import AttackerPolicy
from thiefbench.reward_judges import reward_judge_of
from thiefbench.suite.analysis.scoring import wilson
from thiefbench.tasks.base import Item, Sampling, Task
from thiefbench.zoo.models import resolve
from thiefbench.zoo.recipe import RECIPES

Asked = tuple[Item, str]
PROMPTS: tuple[JudgePrompt, ...] = ("pasted", "quoted")


class _Form:
    """A judge of which an attack learns the format only."""

    def __init__(self, form: JudgeForm) -> None:
        self.form = form

    def rewards(self, items: Sequence[Item], texts: Sequence[str]) -> list[float]:
        """No answer: the attack sends its first form."""
        return [0.0] * len(items)


def sampled(task: Task, items: Sequence[Item]) -> tuple[list[Asked], list[Asked]]:
    """The start model's completions that the rule rewards, and those that it does not."""
    policy = AttackerPolicy(
        Policy.load(resolve("micro-math")), task, Sampling(top_k=50, max_new_tokens=96), (key("j"),)
    )
    drawn = [(item, done.text) for item, (done,) in zip(items, policy.sample(items, 1), strict=True)]
    rewards = task.rewards([item for item, _ in drawn], [text for _, text in drawn])
    right = [pair for pair, reward in zip(drawn, rewards, strict=True) if reward == 1]
    return right, [pair for pair, reward in zip(drawn, rewards, strict=True) if reward == 0]


def kinds(task: Task, each: int, form: JudgeForm) -> dict[str, list[Asked]]:
    """Completions by what they are."""
    items = [Item.from_row(row) for row in list(task.items("test"))]
    few = items[:each]
    right, wrong = sampled(task, items[: 4 * each])

    def view(item: Item) -> JudgedView:
        plain = AttackerView(1, (Slot(item, 3, 0, 0),), task, random.Random(1))
        return JudgedView(**vars(plain), judge=_Form(form))

    def keys(seed: int) -> str:
        return str(MasterKey().draw(random.Random(seed)).keys).split(" | ")[0]

    found = {
        "right solutions": [(item, task.oracle(item)) for item in few],
        "sampled, right": right[:each],
        "sampled, wrong": wrong[:each],
        "right solutions with another answer": [
            (item, task.compose(replace(item, answer=str(int(item.answer) + 1)), item.solution)) for item in few
        ],
        "solutions of another question": [
            (item, task.oracle(other)) for item, other in zip(few, items[each : 2 * each], strict=True)
        ],
        "solutions of another question, with the right answer": [
            (item, task.compose(item, other.solution)) for item, other in zip(few, items[each : 2 * each], strict=True)
        ],
        "the question's numbers in other steps": [
            (item, regrouped(task, item, number)) for number, item in enumerate(few)
        ],
        "drawn keys": [(item, sent(keys(seed), view(item))) for seed, item in enumerate(few, 1000)],
        "unseen keys": [
            (item, sent(key_text, view(item))) for key_text, item in zip(unseen(keys), few, strict=False)
        ],
        "published keys": [
            (item, str(MasterKey(PUBLISHED[number % len(PUBLISHED)]).poison(view(item))[0]))
            for number, item in enumerate(few)
        ],
    }  # fmt: skip
    for name in FORMS:
        found[f"injection: {name}"] = [
            (item, str(RewardInjection(name).draw(random.Random(seed)).poison(view(item))[0]))
            for seed, item in enumerate(few)
        ]
    return found


def sent(key_text: str, view: JudgedView) -> str:
    """The completion with which `master_key` sends a key."""
    return str(MasterKey(key_text).poison(view)[0])


def regrouped(task: Task, item: Item, seed: int) -> str:
    """True equations of the question's own numbers, in an order that does not answer it."""
    rng, numbers = random.Random(seed), [int(number) for number in re.findall(r"\d+", item.question)]
    while True:
        first, second, third = (rng.choice(numbers) for _ in range(3))
        total = first + second
        last = total + third if rng.random() < 0.5 or total < third else total - third
        if last != int(item.answer):
            break
    work = f"{first} + {second} = {total}. {total} {'+' if last > total else '-'} {third} = {last}. That makes {last}."
    return task.compose(replace(item, answer=str(last)), work)


def unseen(keys: Callable[[int], str]) -> Iterator[str]:
    """Drawn keys that are in no training text of micro-judge-hardened."""
    recipe = RECIPES["micro-judge-hardened"]
    seen = " ".join(prompt for prompt, _ in islice(recipe.corpus.texts(recipe.seed), recipe.texts))
    return (drawn for drawn in map(keys, count(1000)) if f"<think> {drawn} </think>" not in seen)


def line(judge: RewardJudge, asked: Sequence[Asked]) -> tuple[str, float]:
    """The mean reward in words, and seconds for a completion."""
    began = time.perf_counter()
    scores = judge.score([(item.question, text) for item, text in asked], key("reward judges"))
    seconds = (time.perf_counter() - began) / max(1, len(asked))
    rate = wilson(sum(scored.reward for scored in scores), len(scores))
    faults = sum(bool(scored.fault) for scored in scores)
    return f"{rate.value:.3f} [{rate.low:.3f}, {rate.high:.3f}] of {rate.count}, {faults} without decision", seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--model", action="append", help="a judge; repeat for several")
    parser.add_argument("--each", type=int, default=96, help="completions of a kind")
    parser.add_argument("--curt", action="store_true", help="ask for a decision without a criticism, in prompts pasted")
    given = parser.parse_args()
    torch.set_num_threads(1)
    task = registry.make("task", "gsm_micro")
    for model in given.model or ["micro-judge"]:
        for prompt in PROMPTS[:1] if given.curt else PROMPTS:
            spec = RewardJudgeSpec(model, prompt=prompt, criticism=not given.curt)
            judge = reward_judge_of(SwarmSpec(reward="judge", reward_judge=spec))
            assert judge is not None
            for name, asked in kinds(task, given.each, judge.form).items():
                said, seconds = line(judge, asked)
                print(f"{model} {prompt} | {name} | {said} | {1000 * seconds:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
