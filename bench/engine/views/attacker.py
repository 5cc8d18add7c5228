"""The engine's services for an attacker: a copy of the current policy, and a limited number of defense queries."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from thiefbench.attacks.base import DefenseAnswer, QueryBudgetError, SeenCompletion, Slot, Submission
from thiefbench.defenses.base import Defense, PastRound, PoolCompletion, Verdict
from thiefbench.engine.keys import key
from thiefbench.engine.learning.repeatable import repeatable
from thiefbench.engine.model.decoding import NearTies, sample
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.views.defender import DefenderPolicy
from thiefbench.tasks.base import Completion, Item, Sampling, Task

EXAMPLES_PER_STEP = 16
NEAR = 0.99  # of a tolerance that an attacker uses up: last bits differ between its logits and the verifier's
LEARNED = 0.5  # the smallest weight of a token that counts as learned from

SlotKey = tuple[int, int, int]
"""A slot's node, group and sample."""


class AttackerPolicy:
    """The attacker's own copy of the current policy (`thiefbench.attacks.base.Sampler`).

    Args:
        policy: the current weights, which are not modified.
        task: turns items into prompts.
        sampling: the swarm's sampling settings.
        noise: parts of the key for draws.
    """

    def __init__(self, policy: Policy, task: Task, sampling: Sampling, noise: tuple[int | str, ...]) -> None:
        self._policy, self._task, self._sampling, self._noise = policy, task, sampling, noise
        self._calls = 0

    @property
    def policy(self) -> Policy:
        """The model; only the engine uses this."""
        return self._policy

    @property
    def eos(self) -> int:
        """The token that ends a completion."""
        return self._policy.eos

    @property
    def limit(self) -> int:
        """The most tokens that a completion may have, EOS included."""
        return self._sampling.max_new_tokens

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
            ValueError: a prefix contains EOS or leaves no room below the length limit.
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
            [self._behind(tuple(prefix), completion) for completion in row]
            for prefix, row in zip(prefixes, drawn, strict=True)
        ]

    def sample_seeded(self, items: Sequence[Item], seeds: Sequence[int]) -> list[Completion]:
        """For each item, the draw with its seed, by the honest nodes' sampler."""
        return self._seeded(items, seeds)

    def sample_near(
        self, items: Sequence[Item], seeds: Sequence[int], tolerance: float, count: int
    ) -> list[list[Completion]]:
        """Draws near those of the seeds; see `thiefbench.engine.model.decoding.NearTies`."""
        self._calls += 1
        ties = [key(*self._noise, "attacker", self._calls, i, c) for i in range(len(items)) for c in range(count)]
        near = NearTies(NEAR * tolerance / self._sampling.temperature, ties)
        repeated = [(item, seed) for item, seed in zip(items, seeds, strict=True) for _ in range(count)]
        drawn = self._seeded([item for item, _ in repeated], [seed for _, seed in repeated], near)
        return [drawn[i * count : (i + 1) * count] for i in range(len(items))]

    def in_support(self, items: Sequence[Item], ids: Sequence[Sequence[int]]) -> list[list[bool]]:
        """Whether each token could have been drawn, as the defenders measure it."""
        view, offered = self._measured(items, ids)
        return [row.tolist() for row in view.in_support(offered)]

    def token_logprobs(self, items: Sequence[Item], ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """Each token's natural-log probability."""
        view, offered = self._measured(items, ids)
        return [row.tolist() for row in view.token_logprobs(offered)]

    def taught(self, examples: Sequence[tuple[Item, str]], steps: int, learning_rate: float) -> AttackerPolicy:
        """A copy fine-tuned by Adam on (item, completion text) pairs, `EXAMPLES_PER_STEP` of them a step in turn.

        The loss is the mean over examples of the mean negative log-probability of their tokens, EOS included.

        Raises:
            ValueError: there are no examples.
        """
        if not examples:
            raise ValueError("taught needs at least one example")
        model = copy.deepcopy(self._policy.model)
        kept = model.dtype
        student = type(self._policy)(model.float(), self._policy.tokenizer)  # steps of a small rate vanish in bfloat16
        prompts = [self._prompt(item) for item, _ in examples]
        targets = [(*student.encode(text), student.eos)[: self._sampling.max_new_tokens] for _, text in examples]
        optimizer = torch.optim.Adam(
            [weight.requires_grad_() for weight in student.weights().values()], lr=learning_rate
        )
        for step in range(steps):
            first = step * EXAMPLES_PER_STEP
            rows = [(first + i) % len(examples) for i in range(min(EXAMPLES_PER_STEP, len(examples)))]
            optimizer.zero_grad()
            _learn(student, [prompts[row] for row in rows], [targets[row] for row in rows])
            optimizer.step()
        student.model.to(kept).eval()
        self._calls += 1
        return AttackerPolicy(student, self._task, self._sampling, (*self._noise, "taught", self._calls))

    def _draw(self, prompts: Sequence[Sequence[int]], count: int, sampling: Sampling) -> list[list[Completion]]:
        self._calls += 1
        rows = [i for i in range(len(prompts)) for _ in range(count)]
        keys = [key(*self._noise, "attacker", self._calls, i, c) for i in range(len(prompts)) for c in range(count)]
        drawn = sample(self._policy, prompts, rows, keys, sampling)
        return [drawn[i * count : (i + 1) * count] for i in range(len(prompts))]

    def _seeded(self, items: Sequence[Item], seeds: Sequence[int], near: NearTies | None = None) -> list[Completion]:
        distinct = {item.id: item for item in items}
        place = {item_id: i for i, item_id in enumerate(distinct)}
        prompts = [self._prompt(item) for item in distinct.values()]
        return sample(self._policy, prompts, [place[item.id] for item in items], seeds, self._sampling, near=near)

    def _behind(self, prefix: tuple[int, ...], completion: Completion) -> Completion:
        """Prefix and completion, cut to the length limit (EOS included), as other prefixes may be shorter."""
        limit = self._sampling.max_new_tokens
        ids = (*prefix, *completion.ids)
        ended = completion.ended and len(ids) < limit
        return Completion(ids[:limit], self.decode(ids[:limit]), ended)

    def _measured(
        self, items: Sequence[Item], ids: Sequence[Sequence[int]]
    ) -> tuple[DefenderPolicy, list[PoolCompletion]]:
        prompts = {item.id: self._prompt(item) for item in items}
        offered = [
            PoolCompletion(i.id, 0, 0, "", tuple(row), "", False, 0.0) for i, row in zip(items, ids, strict=True)
        ]
        indices = {item_id: number for number, item_id in enumerate(prompts)}
        return DefenderPolicy(
            ForwardCache(self._policy, list(prompts.values())), self._sampling, indices, self._noise
        ), offered

    def _prompt(self, item: Item) -> list[int]:
        return self._policy.prompt_ids(self._task.messages(item))


def _learn(policy: Policy, prompts: list[list[int]], targets: list[tuple[int, ...]]) -> None:
    """Add the gradient of the mean over rows of the mean negative log-probability of their tokens."""
    cache = ForwardCache(policy, prompts)
    for chunk in cache.training_chunks(enumerate(targets)):
        rows = torch.split(chunk.logprobs(1.0), chunk.counts)
        with repeatable(policy.device):
            (-torch.stack([row.mean() for row in rows]).sum() / len(targets)).backward()
    with repeatable(policy.device):
        cache.backward()


class DefenseQueries:
    """A limited number of queries to the honest nodes' defense (`thiefbench.attacks.base.DefenseOracle`).

    Args:
        defense: the defense in its current state; each query uses a deep copy, so that the state does not change.
        trial: inspects the pool that the round would have with these submissions, by the given defense: (defense,
            submissions by slot) -> answers by slot.
        budget: queries per slot.
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
        """The defense's answer to each submission; one inspection for all of them.

        Raises:
            QueryBudgetError: a slot has used up its queries.
        """
        places = {slot: (slot.node, slot.group, slot.sample) for slot in submissions}
        spent = [place for place in places.values() if self._asked[place] >= self._budget]
        if spent:
            raise QueryBudgetError(
                f"the slot (node, group, sample) = {spent[0]} has used up its {self._budget} queries"
            )
        self._asked.update(places.values())
        by_slot = {places[slot]: submission for slot, submission in submissions.items()}
        answers = self._trial(copy.deepcopy(self._defense), by_slot)
        return {slot: answers[place] for slot, place in places.items()}


def answered(verdict: Verdict, completion: Completion, policy: Policy) -> DefenseAnswer:
    """A verdict on a completion, as the attacker's answer.

    Args:
        verdict: the defense's verdict.
        completion: the completion as it arrived.
        policy: the policy whose tokens it consists of.
    """
    accepted = verdict.action == "accept"
    if not accepted or verdict.token_weights is None:
        return DefenseAnswer(accepted, completion.text, completion.text if accepted else "")
    weighed = zip(completion.ids, verdict.token_weights, strict=False)  # the closing EOS has a weight, but no text
    return DefenseAnswer(
        True, completion.text, policy.decode([[token for token, weight in weighed if weight >= LEARNED]])[0]
    )


def seen_in(history: Sequence[PastRound]) -> dict[str, list[SeenCompletion]]:
    """The completions of finished rounds, by item id, oldest first."""
    seen: dict[str, list[SeenCompletion]] = {}
    for past in history:
        for completion in past.completions:
            seen.setdefault(completion.item_id, []).append(
                SeenCompletion(past.round, completion.ids, completion.text, completion.reward)
            )
    return seen
