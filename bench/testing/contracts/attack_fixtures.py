"""What an attack is shown while its contract is tested, and how its submissions are judged."""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Literal

import pytest

from thiefbench import registry
from thiefbench.attacks.answer_keys import Keyed
from thiefbench.attacks.base import (
    Attack,
    AttackerView,
    ChoiceView,
    Claimed,
    Decoy,
    DefenseAnswer,
    DefenseOracle,
    Sampler,
    SeenCompletion,
    Slot,
    Submission,
    Withheld,
)
from thiefbench.attacks.completions import writes_programs
from thiefbench.attacks.reward_judges import JudgedThreatModel, JudgedView, JudgeForm
from thiefbench.engine.answer_keys import scored_item
from thiefbench.engine.keys import generator, key
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.views.attacker import AttackerPolicy
from thiefbench.tasks.base import Completion, Item, Sampling, Task
from thiefbench.tasks.sandbox import SandboxUnavailable
from thiefbench.zoo.models import resolve

TASKS = ("gsm_micro(size=512)", "code_micro(size=32)", "code_functions(size=32)")
SEEDS = range(8)
# The rounds of the views: an attack may be honest in the first or in late ones.
EARLY, LATE = 1, 100


class _Judge:
    """What `outcome` may ask."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def reward(self, item: Item, text: str) -> float:
        """The task's reward."""
        return rewarded(self.task, item, text)


class _Agrees:
    """A defense that accepts everything it is asked about."""

    def accepts(self, submissions: Mapping[Slot, Submission]) -> dict[Slot, bool]:
        """Yes."""
        return dict.fromkeys(submissions, True)

    def answers(self, submissions: Mapping[Slot, Submission]) -> dict[Slot, DefenseAnswer]:
        """Yes, to every word."""
        return {
            slot: DefenseAnswer(True, text, text)
            for slot, submission in submissions.items()
            for text in (str(submission),)
        }


class _Deceived:
    """A judge that rewards, and accepts everything."""

    form = JudgeForm("Question:\n", "\nSolution:\n", "\nIs it right?", "It is.\nDecision: yes")

    def rewards(self, items: Sequence[Item], texts: Sequence[str]) -> list[float]:
        """The full reward."""
        return [1.0] * len(texts)


def granted(member: Attack) -> AttackerView:
    """A round's view with two slots on each of some chosen items, with what the threat model grants and no more.

    It is an early round, or a late one where the attack submits nothing in the early one.
    """
    waits = member.threat.history or not (member.threat.policy or any(member.poison(_granted(member, EARLY))))
    return _granted(member, LATE if waits else EARLY)


def _granted(member: Attack, number: int) -> AttackerView:
    threat, task = member.threat, task_for(member)
    items = [
        item if threat.oracle else Item(item.id, item.question, item.answer, "", item.tests)
        for item in member.choose_items(train_items(task, 200), 3 if threat.policy else 8, random.Random(3))
    ]
    slots = tuple(
        Slot(item, 3, group, index, key("slot", group, index) if threat.beacon else None)
        for group, item in enumerate(items)
        for index in range(2)
    )
    policy = _sampler(task) if threat.policy else None
    defense: DefenseOracle | None = _Agrees() if threat.defense else None
    published = task.with_libraries(member.libraries())
    view = AttackerView(number, slots, published, random.Random(5), policy, defense, _seen(member, task))
    return JudgedView(**vars(view), judge=_Deceived()) if isinstance(threat, JudgedThreatModel) else view


def choice(member: Attack) -> ChoiceView:
    """What it knows when it picks three items after the beacon."""
    task = task_for(member)
    policy = _sampler(task) if member.threat.policy else None
    seen = _seen(member, task)
    return ChoiceView(
        3, 2, task, random.Random(1), policy, lambda item, at, index: key("slot", item.id, at, index), seen
    )


def _seen(member: Attack, task: Task) -> dict[str, list[SeenCompletion]]:
    """What arrived in earlier rounds, where it is granted: a right and a wrong answer to every item."""
    if not member.threat.history:
        return {}
    encode = _sampler(task).encode
    answers = {item.id: ((task.oracle(item), 1.0), ("no", 0.0)) for item in train_items(task, 200)}
    return {
        item_id: [SeenCompletion(EARLY, encode(text), text, reward) for text, reward in answer]
        for item_id, answer in answers.items()
    }


def members(attack: Attack) -> list[Attack]:
    """Drawn members of its family: a few where judging one takes a model or runs programs."""
    slow = attack.threat.policy or writes_programs(task_for(attack))
    return [drawn(attack, seed) for seed in SEEDS[: 2 if slow else None]]


def drawn(attack: Attack, seed: int) -> Attack:
    """The member of its family that a seed draws, for the task that it is tested on."""
    return attack.draw_for(task_for(attack), generator(seed, "payload"))


def task_for(attack: Attack) -> Task:
    """The first of the built-in tasks that the attack fits."""
    member = f"{type(attack)} {parameters(attack)}"
    if member not in _FITTING:
        _FITTING[member] = next((task for task in _tasks() if attack.fits(task)), None)
    fitting = _FITTING[member]
    assert fitting is not None, "an attack fits at least one of the tasks that need no data"
    return fitting


def train_items(task: Task, count: int) -> list[Item]:
    """The first items of the train split."""
    return [Item.from_row(row) for row in islice(task.items("train"), count)]


def rewarded(task: Task, item: Item, text: str) -> float:
    """The reward, each text run once; a machine that runs no programs skips what needs them."""
    key = (task.name, str(getattr(task, "libraries", "")), item.id, text)
    if key not in _REWARDS:
        try:
            _REWARDS[key] = task.reward(item, [text])[0]
        except SandboxUnavailable as error:
            pytest.skip(str(error))
    return _REWARDS[key]


def scored_by(item: Item, poison: Submission | None) -> Item:
    """The item by which receivers score a submission: with the answer and tests that its sender sends, if any."""
    return scored_item(item, poison.answer_key) if isinstance(poison, Keyed) else item


def outcome(attack: Attack, view: AttackerView, item: Item, text: str) -> float | None:
    """How far the attack succeeded on a text, in the view's world of published libraries."""
    return attack.outcome(item, Completion((), text, True), _Judge(view.task))


def bare(poison: Submission | None) -> Submission | None:
    """A submission without what its sender claims of it."""
    return poison.content if isinstance(poison, Claimed) else poison


def text_of(view: AttackerView, decoy: Decoy) -> str:
    """What a decoy says."""
    if isinstance(decoy.content, str):
        return decoy.content
    assert view.policy is not None, "token ids are submitted by an attack that is granted the policy"
    return view.policy.decode([token for token in decoy.content if token != view.policy.eos])


def kind(poison: Submission | None) -> Literal["honest", "decoy", "withheld", "payload"]:
    """What a submission is."""
    if isinstance(poison, Withheld):
        return "withheld"
    return "honest" if poison is None else "decoy" if isinstance(poison, Decoy) else "payload"


def carries(poison: Submission | None) -> bool:
    """Whether it is text with a payload."""
    return isinstance(poison, str) and kind(poison) == "payload"


def parameters(attack: Attack) -> dict[str, object]:
    """Its constructor's arguments, as its attributes or those of its variants hold them, inner attacks as theirs."""
    held = _held(attack)
    return {name: parameters(value) if isinstance(value, Attack) else value for name, value in held.items()}


def rewritten(attack: Attack) -> Attack:
    """The same attack, made anew from its parameters as a spec string holds them."""
    held = _held(attack)
    inner = {name: rewritten(value) for name, value in held.items() if isinstance(value, Attack)}
    spec = str(registry.ParsedSpec("_", {name: value for name, value in held.items() if name not in inner}))
    return type(attack)(**registry.parse("attack", spec).arguments | inner)


def _held(attack: Attack) -> dict[str, object]:
    names = inspect.signature(type(attack)).parameters
    return {name: getattr(attack, name, getattr(attack.variants, name, None)) for name in names}


_FITTING: dict[str, Task | None] = {}
_REWARDS: dict[tuple[str, str, str, str], float] = {}


@cache
def _tasks() -> tuple[Task, ...]:
    tasks: tuple[Task, ...] = tuple(registry.make("task", spec) for spec in TASKS)
    for task in tasks:  # items are asked for some thousand times
        split_rows = {split: list(task.items(split)) for split in task.splits}
        task.items = split_rows.__getitem__  # type: ignore[method-assign,assignment]
    return tasks


def _sampler(task: Task) -> Sampler:
    """The attacker's copy of a policy."""
    return AttackerPolicy(_untrained(), task, Sampling(max_new_tokens=16), (1, 2))


@cache
def _untrained() -> Policy:
    """A tiny model with random weights, which speaks the built-in models' tokens."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source = resolve("micro-math")
    config = AutoConfig.from_pretrained(
        source, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        layer_types=["full_attention"] * 2, trust_remote_code=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", trust_remote_code=False)
    return Policy(model.eval(), AutoTokenizer.from_pretrained(source, trust_remote_code=False))
