"""What the engine hands an attacker: its own copy of the current policy, and a counted way to ask the defense."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from thiefbench.attacks.base import DefenseAnswer, QueryBudgetError, SeenCompletion, Slot, Submission
from thiefbench.defenses.base import Defense, PastRound, PoolCompletion, Verdict
from thiefbench.engine.keys import key
from thiefbench.engine.model.decoding import sample
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.views.defender import DefenderPolicy
from thiefbench.tasks.base import Completion, Item, Sampling, Task

LESSONS_PER_STEP = 16
LEARNED = 0.5  # the smallest weight of a token that counts as learned from

SlotKey = tuple[int, int, int]
"""A slot's node, group and sample."""


class AttackerPolicy:
    """The attacker's own copy of the current policy (`thiefbench.attacks.base.Sampler`).

    Args:
        policy: the current weights; nothing here changes them.
        task: puts items as prompts.
        sampling: the swarm's sampling settings.
        noise: parts of the key that draws are made with.
    """

    def __init__(self, policy: Policy, task: Task, sampling: Sampling, noise: tuple[int | str, ...]) -> None:
        self._policy, self._task, self._sampling, self._noise = policy, task, sampling, noise
        self._calls = 0

    @property
    def policy(self) -> Policy:
        """The model; the engine's business only."""
        return self._policy

    @property
    def eos(self) -> int:
        """The token that ends a completion."""
        return self._policy.eos

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a completion's text, without EOS."""
        return tuple(self._policy.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._policy.decode([ids])[0]

    def sample(self, items: Sequence[Item], count: int) -> list[list[Completion]]:
        """Draw `count` completions for each item."""
        return self._draw([self._prompt(item) for item in items], count, self._sampling)

    def sample_after(
        self, items: Sequence[Item], prefixes: Sequence[Sequence[int]], count: int
    ) -> list[list[Completion]]:
        """Draw `count` completions for each item that begin with its prefix.

        Raises:
            ValueError: a prefix holds EOS or leaves no room below the length limit.
        """
        limit = self._sampling.max_new_tokens
        for prefix in prefixes:
            if self.eos in prefix or len(prefix) >= limit:
                raise ValueError(f"a prefix has fewer than {limit} tokens and no EOS, and this one has {len(prefix)}")
        if not items:
            return []
        prompts = [[*self._prompt(item), *prefix] for item, prefix in zip(items, prefixes, strict=True)]
        room = limit - min(len(prefix) for prefix in prefixes)
        drawn = self._draw(prompts, count, replace(self._sampling, max_new_tokens=room))
        return [
            [self._behind(tuple(prefix), made) for made in row] for prefix, row in zip(prefixes, drawn, strict=True)
        ]

    def sample_seeded(self, items: Sequence[Item], seeds: Sequence[int]) -> list[Completion]:
        """The draw of each item with its seed, by the sampler of the honest nodes."""
        distinct = {item.id: item for item in items}
        place = {item_id: i for i, item_id in enumerate(distinct)}
        prompts = [self._prompt(item) for item in distinct.values()]
        return sample(self._policy, prompts, [place[item.id] for item in items], seeds, self._sampling)

    def in_support(self, items: Sequence[Item], ids: Sequence[Sequence[int]]) -> list[list[bool]]:
        """Whether each token could have been drawn, as the defenders measure it."""
        view, offered = self._measured(items, ids)
        return [row.tolist() for row in view.in_support(offered)]

    def token_logprobs(self, items: Sequence[Item], ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """Each token's natural-log probability."""
        view, offered = self._measured(items, ids)
        return [row.tolist() for row in view.token_logprobs(offered)]

    def taught(self, examples: Sequence[tuple[Item, str]], steps: int, learning_rate: float) -> AttackerPolicy:
        """A copy fine-tuned by Adam on (item, completion text) pairs, `LESSONS_PER_STEP` of them a step in turn.

        Minimised is the mean over examples of the mean negative log-probability of their tokens, EOS included.

        Raises:
            ValueError: there are no examples.
        """
        if not examples:
            raise ValueError("taught needs at least one example")
        model = copy.deepcopy(self._policy.model)
        kept = model.dtype
        own = type(self._policy)(model.float(), self._policy.tokenizer)  # steps of a small rate vanish in bfloat16
        prompts = [self._prompt(item) for item, _ in examples]
        targets = [(*own.encode(text), own.eos)[: self._sampling.max_new_tokens] for _, text in examples]
        optimizer = torch.optim.Adam([weight.requires_grad_() for weight in own.weights().values()], lr=learning_rate)
        for step in range(steps):
            first = step * LESSONS_PER_STEP
            rows = [(first + i) % len(examples) for i in range(min(LESSONS_PER_STEP, len(examples)))]
            optimizer.zero_grad()
            _learn(own, [prompts[row] for row in rows], [targets[row] for row in rows])
            optimizer.step()
        own.model.to(kept).eval()
        self._calls += 1
        return AttackerPolicy(own, self._task, self._sampling, (*self._noise, "taught", self._calls))

    def _draw(self, prompts: Sequence[Sequence[int]], count: int, sampling: Sampling) -> list[list[Completion]]:
        self._calls += 1
        rows = [i for i in range(len(prompts)) for _ in range(count)]
        keys = [key(*self._noise, "attacker", self._calls, i, c) for i in range(len(prompts)) for c in range(count)]
        drawn = sample(self._policy, prompts, rows, keys, sampling)
        return [drawn[i * count : (i + 1) * count] for i in range(len(prompts))]

    def _behind(self, prefix: tuple[int, ...], made: Completion) -> Completion:
        """The whole completion, cut to the length limit (EOS included) where a shorter prefix left others more room."""
        limit = self._sampling.max_new_tokens
        ids = (*prefix, *made.ids)
        ended = made.ended and len(ids) < limit
        return Completion(ids[:limit], self.decode(ids[:limit]), ended)

    def _measured(
        self, items: Sequence[Item], ids: Sequence[Sequence[int]]
    ) -> tuple[DefenderPolicy, list[PoolCompletion]]:
        asked = {item.id: self._prompt(item) for item in items}
        offered = [
            PoolCompletion(i.id, 0, 0, "", tuple(row), "", False, 0.0) for i, row in zip(items, ids, strict=True)
        ]
        place = {item_id: number for number, item_id in enumerate(asked)}
        return DefenderPolicy(
            ForwardCache(self._policy, list(asked.values())), self._sampling, place, self._noise
        ), offered

    def _prompt(self, item: Item) -> list[int]:
        return self._policy.prompt_ids(self._task.messages(item))


def _learn(policy: Policy, prompts: list[list[int]], targets: list[tuple[int, ...]]) -> None:
    """Add the gradient of the mean over rows of the mean negative log-probability of their tokens."""
    reading = ForwardCache(policy, prompts)
    for chunk in reading.lessons(enumerate(targets)):
        rows = torch.split(chunk.logprobs(1.0), chunk.counts)
        (-torch.stack([row.mean() for row in rows]).sum() / len(targets)).backward()
    reading.backward()


class DefenseQueries:
    """Counted questions to the honest nodes' defense (`thiefbench.attacks.base.DefenseOracle`).

    Args:
        defense: the defense as it stands; each question goes to a deep copy, so its state stays.
        trial: inspects the pool that the round would have with these submissions, by the given defense: (defense,
            submissions by place) -> answers by place.
        budget: questions per slot.
    """

    def __init__(
        self,
        defense: Defense,
        trial: Callable[[Defense, Mapping[SlotKey, Submission]], Mapping[SlotKey, DefenseAnswer]],
        budget: int,
    ) -> None:
        self._defense, self._trial, self._budget = defense, trial, budget
        self._asked: Counter[SlotKey] = Counter()

    def accepts(self, submissions: Mapping[Slot, Submission]) -> dict[Slot, bool]:
        """Whether each submission would be accepted; see `answers`."""
        return {slot: answer.accepted for slot, answer in self.answers(submissions).items()}

    def answers(self, submissions: Mapping[Slot, Submission]) -> dict[Slot, DefenseAnswer]:
        """What the defense would do with each submission; one inspection for all of them.

        Raises:
            QueryBudgetError: a slot has used up its questions.
        """
        places = {slot: (slot.node, slot.group, slot.sample) for slot in submissions}
        spent = [place for place in places.values() if self._asked[place] >= self._budget]
        if spent:
            raise QueryBudgetError(
                f"the slot (node, group, sample) = {spent[0]} has used up its {self._budget} queries"
            )
        self._asked.update(places.values())
        asked = {places[slot]: made for slot, made in submissions.items()}
        answers = self._trial(copy.deepcopy(self._defense), asked)
        return {slot: answers[place] for slot, place in places.items()}


def answered(verdict: Verdict, made: Completion, policy: Policy) -> DefenseAnswer:
    """A verdict on a completion as the attacker is told it.

    Args:
        verdict: the defense's.
        made: the completion as it arrived.
        policy: whose tokens it is made of.
    """
    accepted = verdict.action == "accept"
    if not accepted or verdict.token_weights is None:
        return DefenseAnswer(accepted, made.text, made.text if accepted else "")
    weighed = zip(made.ids, verdict.token_weights, strict=False)  # the closing EOS has a weight and is no word
    return DefenseAnswer(True, made.text, policy.decode([[token for token, weight in weighed if weight >= LEARNED]])[0])


def seen_in(history: Sequence[PastRound]) -> dict[str, list[SeenCompletion]]:
    """What arrived in finished rounds, by item id, oldest first."""
    made: dict[str, list[SeenCompletion]] = {}
    for past in history:
        for each in past.completions:
            made.setdefault(each.item_id, []).append(SeenCompletion(past.round, each.ids, each.text, each.reward))
    return made
