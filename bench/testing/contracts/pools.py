"""Pools that a defense judges while its contract is tested: two rounds of a real, small swarm, and hostile ones."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from typing import Any, ClassVar

from thiefbench.attacks.base import Attack
from thiefbench.attacks.equations import Equations
from thiefbench.attacks.forged_answers import ForgedAnswers
from thiefbench.attacks.text import PAPER_PHRASE, Text
from thiefbench.defenses.answer_keys import ANSWER_KEYS
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, LabelledView, PoolCompletion, Requirement, Verdict
from thiefbench.defenses.rule_rewards import RULE_REWARDS
from thiefbench.engine.answer_keys import with_key
from thiefbench.engine.heterogeneity import DelaySpec
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.rewarding import with_rule
from thiefbench.engine.spec import Role, SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.reward_judges import PromptedRewardJudge
from thiefbench.tasks.answer_keys import AnswerKey
from thiefbench.tasks.base import Message, Sampling
from thiefbench.tasks.gsm_micro import GsmMicro
from thiefbench.zoo.models import resolve

SEED = 123_456_789
SWARM = SwarmSpec(nodes=2, malicious=1, prompts=4, group=4, sampling=Sampling(max_new_tokens=96))
CLAIMS: frozenset[Requirement] = frozenset({"logprobs", "versions", ANSWER_KEYS, RULE_REWARDS})
"""Requirements that change the contract's swarm."""
Make = Callable[[], Defense]


class Answers:
    """A judge that follows a rule: `says(prompt, vote)` gives yes, no, or a whole reply; by default a hash decides.

    It counts what it was asked in `asked`.
    """

    def __init__(self, says: Callable[[str, int], bool | str] | None = None) -> None:
        self.says = says or (lambda prompt, vote: bool(sha256(f"{vote}{prompt}".encode()).digest()[0] % 2))
        self.asked: list[str] = []

    def ask(self, prompts: Sequence[Sequence[Message]], sampling: Sampling, votes: int, noise: int) -> list[list[str]]:
        """`votes` replies to each prompt."""
        contents = [prompt[-1]["content"] for prompt in prompts]
        self.asked += contents
        return [[self._reply(prompt, vote) for vote in range(votes)] for prompt in contents]

    def _reply(self, prompt: str, vote: int) -> str:
        reply = self.says(prompt, vote)
        if isinstance(reply, str):
            return reply
        mark = re.findall(r"Decision \[(\d+)\]", prompt)[-1:] or [""]
        return f"It was read.\nDecision [{mark[0]}]: {'yes' if reply else 'no'}"


class Spy(Defense):
    """Accepts everything and keeps the views it was given."""

    name: ClassVar[str] = "spy"

    def __init__(self) -> None:
        self.views: list[DefenderView] = []

    def inspect(self, view: DefenderView) -> list[Verdict]:
        """Accept."""
        self.views.append(replace(view, policy=copy.copy(view.policy)))
        return [ACCEPT] * len(view.completions)


class LabelledSpy(Spy):
    """A spy that sees the labels."""

    sees_labels = True


def swarm(defense: Defense, role: Role = "attack") -> Swarm:
    """A real swarm of two nodes, one of them malicious, over the built-in model, with the claims that are required."""
    attack: Attack = Text(PAPER_PHRASE, "start")
    spec = SWARM
    if "logprobs" in defense.requires:
        spec = replace(spec, logprobs="reported")
    if "versions" in defense.requires:
        spec = replace(spec, delay=DelaySpec(rounds=1))
    if ANSWER_KEYS in defense.requires:
        attack, spec = ForgedAnswers(Equations(2, None, 2, 5)), replace(spec, truth="sender", topology="vertical")
    if RULE_REWARDS in defense.requires:
        spec = replace(spec, reward="judge")
    rewarding = PromptedRewardJudge(Answers(), spec.reward_judge)
    return Swarm(spec, role, copy.deepcopy(_policy()), _TASK, attack, defense, SEED, Answers(), reward_judge=rewarding)


@cache
def recorded(labels: bool, requires: frozenset[Requirement] = frozenset()) -> list[DefenderView]:
    """The views of two rounds, as a real swarm gave them that lets claims travel where they are required."""
    spy = LabelledSpy() if labels else Spy()
    spy.requires = requires & CLAIMS  # type: ignore[misc]
    lived = swarm(spy)
    for number in (1, 2):
        lived.round(number)
    return spy.views


def views(make: Make) -> list[DefenderView]:
    """Two rounds' views of the kind that this defense gets."""
    defense = make()
    return recorded(defense.sees_labels, defense.requires & CLAIMS)


def fresh(view: DefenderView, **changes: Any) -> DefenderView:
    """An equal view whose generator and policy have not been used, or one with some fields changed."""
    unused: dict[str, Any] = {"rng": random.Random(99), "policy": copy.copy(view.policy)}
    return replace(view, **unused | changes)


def labelled(view: DefenderView, payload: Sequence[bool]) -> dict[str, Any]:
    """The labels of other completions in a view, where it has any."""
    return {"payload": tuple(payload)} if isinstance(view, LabelledView) else {}


def hostile(view: DefenderView) -> tuple[PoolCompletion, ...]:
    """Completions that a stranger may send."""
    one = view.completions[0]
    limit = view.sampling.max_new_tokens
    texts = (
        "",
        " ",
        "\x00\x1b[2J\r\n",
        "\ud800 lone \udfff",
        "\u202e\u200b\ufeff",
        "a" * 1_000_000,
        "(" * 10_000,
        "{}[]\\%n" * 99,
        "<code>\n" + "-" * 50_000 + "1\n</code>",
        "<code>\nx = " + "(" * 5_000 + "1" + ")" * 5_000 + "\n</code>",
        "<code>\nimport \x00\n</code>",
        "<code>\nx = " + " + ".join("1" * 20_000) + "\n</code>",
        "1 + 2 = " * 5_000,
        "1" * 100_000 + " / 0 = " + "9" * 100_000,
        "((" * 3_000 + "1" + ") * 2 = 3 " * 3_000,
        "\u0661 + \u0661 = \u0665 \u00bd + \u00b2 = \u2460",
        "1/" * 20_000 + "3 = 4",
        "word " * 20_000,
    )
    return (
        *(replace(one, text=text, index=i) for i, text in enumerate(texts)),
        replace(one, ids=(), text="", ended=True),
        replace(one, ids=(), text="", ended=False),
        replace(one, ids=(one.ids * limit)[: limit - 1], ended=True),
        replace(one, ids=(one.ids * limit)[:limit], ended=False),
        replace(one, ids=(0, 1, 2), text="<|endoftext|><|im_end|><|im_start|>"),
        replace(one, ids=(0,) * (limit - 1)),
        replace(one, reward=0.0, sender="nobody seen before"),
        replace(one, version=None),
        replace(one, version=2**31 - 1),
        with_key(one, AnswerKey("", "")),
        with_key(one, AnswerKey("\ud800", "(" * 20_000)),
        with_rule(one, None),
        with_rule(one, 0.5),
        replace(one, logprobs=(0.0,) * 3),
        replace(one, logprobs=(float("nan"), float("-inf"))),
    )


_TASK = GsmMicro(size=512)


@cache
def _policy() -> Policy:
    return Policy.load(resolve("micro-math"))
