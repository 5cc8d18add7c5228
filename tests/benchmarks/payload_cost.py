"""How improbable the phrase of TEXT makes a program: `text` and `comment` at each position, to the start model.

    python -m tests.benchmarks.payload_cost

Printed per attack: the mean tokens of 64 poisoned solutions of the task of `calls.yaml` with EOS, how many exceed the
length limit, and their mean log-prob in nats under `micro-programs`. About ten seconds of one core.
"""

from __future__ import annotations

import random

import torch

from tests.benchmarks.forms import RECIPE
from thiefbench import registry
from thiefbench.attacks.base import AttackerView, Slot
from thiefbench.attacks.comment import Comment
from thiefbench.attacks.text import DRAWN_POSITIONS, PAPER_PHRASE, Text
from thiefbench.defenses.base import PoolCompletion
from thiefbench.engine.context import items_of
from thiefbench.engine.model.policy import Policy
from thiefbench.leaderboard.checking.samples import Sample
from thiefbench.tasks.base import Item, Sampling
from thiefbench.zoo.models import resolve

ITEMS = 64


def cost(policy: Policy, items: list[Item], prompts: dict[str, list[int]], texts: list[str]) -> str:
    """Tokens, how many completions are too long, and the log-prob, of one text per item."""
    sampling = Sampling(max_new_tokens=RECIPE.max_new_tokens)
    pool = [
        PoolCompletion(item.id, number, 0, "a", tuple(policy.encode(text)), text, True, 1.0)
        for number, (item, text) in enumerate(zip(items, texts, strict=True))
    ]
    sample = Sample("", ((),), ((),), {item.id: item for item in items}, sampling, policy, prompts)
    view = sample.view(registry.make("defense", "logit"), 1, pool)
    total = [float(row.sum()) for row in view.policy.token_logprobs(pool)]
    lengths = [completion.length for completion in pool]
    over = sum(length > RECIPE.max_new_tokens for length in lengths)
    return f"{sum(lengths) / ITEMS:.1f} | {over} | {sum(total) / ITEMS:.1f} |"


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    task, policy = registry.make("task", RECIPE.task), Policy.load(resolve(RECIPE.model))
    items = list(items_of(task, "train"))[:ITEMS]
    prompts = {item.id: policy.prompt_ids(task.messages(item)) for item in items}
    slots = tuple(Slot(item, 0, number, 0) for number, item in enumerate(items))
    print("| attack | position | tokens | too long | log-prob |\n|---|---|---|---|---|")
    print(f"| none | | {cost(policy, items, prompts, [task.oracle(item) for item in items])}", flush=True)
    for kind in (Text, Comment):
        for position in DRAWN_POSITIONS:
            poison = kind(PAPER_PHRASE, position).poison(AttackerView(1, slots, task, random.Random(0)))
            told = cost(policy, items, prompts, [str(each) for each in poison])
            print(f"| `{kind.name}` | {position} | {told}", flush=True)


if __name__ == "__main__":
    main()
