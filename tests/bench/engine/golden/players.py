"""The golden swarms' own models, task, attack and defense.

Nothing here comes from the package's attacks, defenses, tasks or models: each of those is hashed into a cell's identity
by itself, and this test is about the engine alone. What they draw comes from generators that do not change with the
version of torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from tests.conftest import MERGES, byte_items, save_model
from thiefbench.attacks.base import (
    Attack,
    AttackerView,
    AttackSpec,
    ChoiceView,
    Claimed,
    Decoy,
    Poison,
    Sampler,
    Seeded,
    Slot,
    ThreatModel,
)
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, PoolCompletion, Verdict
from thiefbench.engine.model import decoding
from thiefbench.engine.model.noise import gumbel
from thiefbench.engine.model.policy import Policy
from thiefbench.tasks.base import Ask, Completion, Item, Message, Sampling, Split, Task

_FOLDER = TemporaryDirectory(prefix="thiefbench-golden-")


@cache
def _directory(kind: str) -> Path:
    """A model of two layers: "bytes" has a token for every byte, "pairs" also some for two of them."""
    merges = {"bytes": [], "pairs": [("â", "ľ"), *MERGES]}[kind]
    directory = save_model(Path(_FOLDER.name) / kind, merges)
    policy = Policy.load(directory)
    # torch may draw other numbers in another version; those of RandomState are frozen.
    draws = np.random.RandomState(len(merges))
    with torch.no_grad():
        for name, weight in sorted(policy.weights().items()):
            if "norm" not in name:
                weight.copy_(torch.from_numpy(0.2 * draws.standard_normal(weight.shape)))
        # What every state has in its first number, no layer changes: completions end, and some are rewarded.
        policy.model.get_input_embeddings().weight[:, 0] = 2.0
        for layer in policy.model.base_model.layers:
            layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0.0
        policy.head_weight[:, 0] = 0.0
        policy.head_weight[policy.encode("aeiou"), 0] = 3.0
        policy.head_weight[policy.eos] = 0.0
        policy.head_weight[policy.eos, 0] = 4.5
    policy.model.save_pretrained(directory)
    return directory


def load(kind: str = "bytes") -> Policy:
    """A model of its own."""
    return Policy.load(_directory(kind))


class Letters(Task):
    """Half a point for each of the first two vowels."""

    name = "letters"
    domains = ("odd", "even")

    def items(self, split: Split) -> Any:
        return byte_items(split, 16)

    def messages(self, item: Item) -> list[Message]:
        return [{"role": "user", "content": f"{item.id}: {item.question}"}]

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        return [min(2, sum(letter in "aeiou" for letter in text.lower())) / 2 for text in completions]

    def compose(self, item: Item, reasoning: str) -> str:
        return f"{reasoning} = {item.answer}, yes"

    def domain(self, item: Item) -> str:
        return self.domains[int(item.id.rpartition("-")[2]) % 2]


class Forms(Attack):
    """Submits in every form that there is, in turn, and uses all that it is granted."""

    name = "forms"
    threat = ThreatModel(context="out-of-context", policy=True, queries=2, beacon=True, history=True)

    def __init__(self, probing: bool = False, identities: int = 1, copies: int = 1) -> None:
        self.probing, self.copies = probing, copies
        self.variants = AttackSpec(identities=identities)
        self.word = ""

    def draw(self, rng: Any) -> Forms:
        made = Forms(self.probing, self.variants.identities, self.copies)
        made.word = "".join(rng.choice("xyz") for _ in range(3))
        return made

    def poison(self, view: AttackerView) -> list[Poison]:
        made = []
        for number, slot in enumerate(view.slots):
            turn = number + len(view.slots) * (view.round - 1)
            text = f"{self.word}{view.rng.randrange(100)}{slot.sample}{len(view.seen.get(slot.item.id, ()))}"
            made.append(self._in_form(turn % 10, view, slot, text))
        return made

    def _in_form(self, form: int, view: AttackerView, slot: Slot, text: str) -> Poison:
        policy, defense = view.policy, view.defense
        assert policy is not None
        assert defense is not None
        ids = policy.encode(text)
        match form:
            case 0:
                return view.task.compose(slot.item, text)
            case 1:
                (behind,) = policy.sample_after([slot.item], [ids], 1)[0]
                return (*behind.ids, policy.eos)[:16]
            case 2:
                answer = defense.answers({slot: text})[slot]
                return Decoy(f"qq{answer.accepted}{answer.learned}")
            case 3:
                return None
            case 4:
                return (*ids, policy.eos, *policy.encode("aeiou"))  # forges structure, and would be rewarded
            case 5:
                return ids * 9  # too long
            case 6:
                (drawn,) = policy.sample([slot.item], 1)[0]
                return Claimed((*drawn.ids, policy.eos)[:16], logprob=-0.5, version=0)
            case 7:
                (honest,) = policy.sample_seeded([slot.item], [slot.seed or 0])
                return Seeded(honest.ids, 1 + (slot.seed or 0))
            case 8:
                return ()
            case _:
                return f"{text}aeiou"

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float | None:
        return None if len(completion.text) < 3 else float(any(letter in completion.text for letter in "xyz"))

    def choose_items_from(self, items: Sequence[Item], view: ChoiceView) -> Sequence[Item]:
        assert view.policy is not None
        known = [item for item in items if item.id in view.seen]
        drawn = view.rng.sample(items, len(items))
        best = max(drawn, key=lambda item: view.seed(item, 0, 0))
        return [best, *known, *(item for item in drawn if item not in known and item is not best)][: view.count]

    def hand_over(self, view: AttackerView) -> Sampler | None:
        assert view.policy is not None
        return view.policy.taught([(slot.item, self.word) for slot in view.slots[:4]], 1, 1e-2)

    def probes(self, task: Task) -> Sequence[Item] | None:
        return [Item(f"probe-{i}", "x?", "x", "") for i in range(3)] if self.probing else None


class Turns(Defense):
    """Every kind of verdict in turn, by place in the view; a verdict says what its completion came with."""

    name = "turns"

    def __init__(self) -> None:
        self.calls = 0
        self.told: dict[str, Any] = {}

    def inspect(self, view: DefenderView) -> list[Verdict]:
        self.calls += 1
        made = []
        for place, offered in enumerate(view.completions):
            score, reason = view.rng.randrange(1000) / 1000, f"{place}, {offered.seed}, {len(view.history)}"
            weights = tuple((0.0, 1.0, 0.5)[token % 3] for token in range(offered.length))
            kinds = (ACCEPT, Verdict("zero"), ACCEPT, Verdict("drop"), Verdict(token_weights=weights))
            made.append(replace(kinds[(place + view.round) % 5], score=score, reason=reason))
        asked = view.completions[:6]
        self.told = {
            "in_support": _counts(view.policy.in_support(asked)),
            "drawn_again": _counts(view.policy.replay(asked)),
            "likely": _counts([ranks < 8 for ranks in view.policy.ranks(asked)]),
            "log_probs": _sums(view.policy.token_logprobs(asked)),
            "reported": _sums([np.array(offered.logprobs or ()) for offered in view.completions]),
            "hidden": [float(np.linalg.norm(states)) for states in view.policy.hidden(asked)],
            "spans": [spans.tolist() for spans in view.policy.spans(asked[:2])],
            "generated": view.policy.generate([[{"role": "user", "content": "Is it?"}]] * 2, 8),
            "remembered": _remembered(view),
        }
        return made

    def state(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def restore(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


def _remembered(view: DefenderView) -> list[str]:
    def named(offered: PoolCompletion, verdict: Verdict) -> str:
        return f"{offered.item_id} {offered.group}.{offered.index} of {offered.sender}: {verdict.action}"

    return [named(past.completions[0], past.verdicts[0]) for past in view.history]


def _counts(rows: Sequence[Any]) -> list[int]:
    return [int(row.sum()) for row in rows]


def _sums(rows: Sequence[Any]) -> list[float]:
    return [float(row.sum()) for row in rows]


# ---- how near a draw was to another one


@contextmanager
def closest_draw() -> Iterator[list[float]]:
    """In the `with` block, collects by how much each sampled token won, in logits over temperature.

    Logits of other versions and processors differ in their last bits. A token whose lead is larger than that is the
    same there.
    """
    leads: list[float] = []
    plain = decoding.choose

    def watched(logits: torch.Tensor, row_keys: torch.Tensor, step: int, sampling: Sampling) -> torch.Tensor:
        leads.append(float(_leads(logits, row_keys, step, sampling).min()))
        return plain(logits, row_keys, step, sampling)

    decoding.choose = watched
    try:
        yield leads
    finally:
        decoding.choose = plain


def _leads(logits: torch.Tensor, row_keys: torch.Tensor, step: int, sampling: Sampling) -> torch.Tensor:
    """By how much logits may move without another draw, shape (rows,): the least of the ways in which it can change."""
    everything = replace(sampling, top_k=0, top_p=1.0)
    scores, candidates = decoding.support(logits, everything)
    total = scores + gumbel(row_keys, step, candidates)
    inside = decoding.support(logits, sampling)[0].isfinite().sum(1, keepdim=True)
    place = torch.arange(scores.shape[1])[None, :]
    last = scores.gather(1, inside - 1)
    first_outside = scores.gather(1, inside.clamp(max=scores.shape[1] - 1))
    first_outside = first_outside.masked_fill(inside == scores.shape[1], -torch.inf)
    own, at = total.masked_fill(place >= inside, -torch.inf).max(1, keepdim=True)
    others = total.masked_fill(place == at, -torch.inf)
    # Another one inside overtakes it, or one outside that has more noise comes in, or it drops out itself.
    overtaken = (own - others).masked_fill(place >= inside, torch.inf).amin(1)
    comes_in = (last - scores).masked_fill((place < inside) | (others < own), torch.inf).amin(1)
    drops_out = (scores.gather(1, at) - first_outside)[:, 0]
    return torch.stack([overtaken, comes_in, drops_out]).amin(0) / 2
