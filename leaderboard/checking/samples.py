"""Small pools for checking a defense: two rounds of undefended swarms of the built-in models, in memory."""

from __future__ import annotations

import copy
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import cycle, islice

import torch

from thiefbench import registry
from thiefbench.defenses.answer_keys import KeyedView, PublicSet
from thiefbench.defenses.base import (
    DefenderView,
    Defense,
    ItemFacts,
    JudgeSpec,
    LabelledView,
    PastRound,
    PoolCompletion,
    Verdict,
)
from thiefbench.engine.answer_keys import PublishedItems, stated_facts
from thiefbench.engine.backends.local import LocalBackend
from thiefbench.engine.context import items_of
from thiefbench.engine.keys import key
from thiefbench.engine.model.forward_cache import Chunk, CompletionKey, ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.reward_judge import Rewarding, RewardJudgeSpec
from thiefbench.engine.spec import Batches, SwarmSpec, Truth
from thiefbench.engine.swarm import Swarm
from thiefbench.engine.views.defender import CachedJudge, DefenderJudge, DefenderPolicy, Judge
from thiefbench.judges import judge_of
from thiefbench.reward_judges import reward_judge_of
from thiefbench.tasks.base import Item, Sampling, Task, Topology
from thiefbench.zoo.models import resolve

ROUNDS = 2
MOVED_FROM = 4
"""The round from which on a sample's model has other weights, as one that learns has."""
MOVED_FAR = 7
"""The round in which they are very different, as after long training: what was computed with earlier weights is wrong.

It is the one after a restart, so that an instance that remembers such numbers differs from one that cannot.
"""
_MOVED, _MOVED_FAR = 0.02, 0.75
"""By how much: the standard deviation of what is added to a tensor, as a share of its own."""


@dataclass(frozen=True)
class SampleRecipe:
    """The swarm that a sample's pools come from: a task, a model that solves it, an attack, and who says what is true.

    The last three are as in `SwarmSpec`.
    """

    task: str
    model: str
    attack: str
    topology: Topology = "horizontal"
    max_new_tokens: int = 96
    truth: Truth = "public"
    reward: Rewarding = "rule"
    reward_judge: RewardJudgeSpec = field(default_factory=RewardJudgeSpec)


RECIPES = (
    SampleRecipe("gsm_micro", "micro-math", "text"),
    SampleRecipe("gsm_micro", "micro-math", "equations", "vertical"),
    SampleRecipe("code_micro", "micro-code", "text", max_new_tokens=128),
)
"""Swarms in which every node knows the task's answers, and the task rewards."""
SENT = (
    SampleRecipe("gsm_micro", "micro-math", "varied(attack='forged_answers', share=0.5)", "vertical", truth="sender"),
    SampleRecipe(
        "code_functions", "micro-programs", "varied(attack='forged_tests', share=0.5)", "vertical", 128, truth="sender"
    ),
)
"""Swarms whose receivers believe the sender."""
JUDGED = (SampleRecipe("gsm_micro", "micro-math", "master_key(candidates=4)", reward="judge"),)
"""Swarms in which a judge rewards; the swarm says which judge, and for which items."""


def recipes_for(swarms: Sequence[SwarmSpec]) -> tuple[SampleRecipe, ...]:
    """Small swarms that give a defense what the swarms of a suite give it, and no more."""
    recipes: dict[SampleRecipe, None] = {}
    for swarm in swarms:
        like = SENT if swarm.truth == "sender" else RECIPES if swarm.reward == "rule" else JUDGED
        recipes |= dict.fromkeys(
            replace(recipe, reward=swarm.reward, reward_judge=swarm.reward_judge) for recipe in like
        )
    return tuple(recipes)


@dataclass(frozen=True)
class Sample:
    """Rounds of one swarm, whose completions all come from the same weights.

    Attributes:
        name: task and attack.
        rounds: every round's pool, in the order in which a defense sees it.
        poison: for every round's completions, whether each carries the payload.
        items: the task's items, by id.
        sampling: the swarm's settings.
        policy: the model that sampled them. In views from round `MOVED_FROM` on, its weights are slightly different,
            and in that of round `MOVED_FAR` very different.
        prompts: the prompt's token ids, for every item of the rounds.
        public: the published items, where answers and tests come with completions.

    What policy and judge have answered about the rounds' completions is kept for all views, so that equal questions get
    answers that are equal to the last bit.
    """

    name: str
    rounds: tuple[tuple[PoolCompletion, ...], ...]
    poison: tuple[tuple[bool, ...], ...]
    items: Mapping[str, Item]
    sampling: Sampling
    policy: Policy
    prompts: Mapping[str, Sequence[int]]
    public: PublicSet | None = None
    _passes: dict[tuple[Policy, float], ForwardCache] = field(default_factory=dict, repr=False, compare=False)
    _judges: dict[JudgeSpec, Judge] = field(default_factory=dict, repr=False, compare=False)

    def view(
        self,
        defense: Defense,
        number: int,
        pool: Sequence[PoolCompletion] | None = None,
        history: Sequence[PastRound] = (),
    ) -> DefenderView:
        """A round's view, as in a swarm: equal calls give equal views, each with its own random generator.

        Args:
            defense: the defense that will see it; its requirements determine proofs and judge.
            number: the round, from 1.
            pool: completions to use instead of the round's own, on items of the sample.
            history: the rounds before it, see `finished`.
        """
        shown = tuple(self.rounds[number - 1] if pool is None else pool)
        places = {item_id: place for place, item_id in enumerate(self.prompts)}
        moved = _MOVED_FAR if number == MOVED_FAR else _MOVED if number >= MOVED_FROM else 0.0
        passes = _PassesOfView(self._shared_passes(moved), self._texts)
        policy = DefenderPolicy(passes, self.sampling, places, (key("check", number),))
        if "proofs" in defense.requires:
            states = policy.hidden(shown)
            shown = tuple(replace(o, proof=defense.prove(s)) for o, s in zip(shown, states, strict=True))
        judge = defense.judge
        if judge is not None and judge not in self._judges:
            self._judges[judge] = CachedJudge(judge_of(judge))
        seen = {o.item_id: self.items[o.item_id] for o in shown}
        known = {item_id: ItemFacts(item.question, item.answer) for item_id, item in seen.items()}
        view = DefenderView(
            round=number,
            completions=shown,
            items=known if self.public is None else stated_facts(list(seen.values()), shown),
            sampling=self.sampling,
            history=tuple(history),
            rng=random.Random(key("check", "rng", number)),
            policy=policy,
            judge=None if judge is None else DefenderJudge(self._judges[judge], key("check", "judge", number)),
        )
        return view if self.public is None else KeyedView(**vars(view), public=self.public)

    def _shared_passes(self, moved: float) -> ForwardCache:
        """The forward passes over the sample's own completions, of one of its models."""
        if (self.policy, moved) not in self._passes:
            policy = _moved(self.policy, moved) if moved else self.policy
            self._passes[self.policy, moved] = ForwardCache(policy, list(self.prompts.values()))
        return self._passes[self.policy, moved]

    @cached_property
    def _texts(self) -> frozenset[tuple[int, ...]]:
        """The token ids of the rounds' completions, without EOS."""
        return frozenset(offered.ids for pool in self.rounds for offered in pool)

    def full(self, size: int) -> list[PoolCompletion]:
        """A pool of `size` completions: those of all rounds, repeated, each time in new groups."""
        groups = 1 + max(offered.group for pool in self.rounds for offered in pool)
        turns = enumerate(cycle(self.rounds))
        many = (replace(offered, group=turn * groups + offered.group) for turn, pool in turns for offered in pool)
        return list(islice(many, size))


def samples(recipes: Sequence[SampleRecipe] = RECIPES, prompts: int = 12, group: int = 8) -> list[Sample]:
    """Play the rounds, with four nodes, one of them malicious; raises the errors of a swarm's parts."""
    loaded = {model: Policy.load(resolve(model)) for model in dict.fromkeys(recipe.model for recipe in recipes)}
    played = []
    for recipe in recipes:
        task = registry.make("task", recipe.task)
        spec = SwarmSpec(
            topology=recipe.topology, prompts=prompts, group=group, truth=recipe.truth, reward=recipe.reward,
            sampling=Sampling(max_new_tokens=recipe.max_new_tokens), reward_judge=recipe.reward_judge,
        )  # fmt: skip
        played.append(sample_of(recipe, spec, loaded[recipe.model], task))
    return played


def sample_of(recipe: SampleRecipe, spec: SwarmSpec, policy: Policy, task: Task, batches: Batches = "cohort") -> Sample:
    """A sample of one swarm; for `batches` see `LocalBackend`. Raises the errors of a swarm's parts."""
    recorder = _Recorder()
    attack = registry.make("attack", recipe.attack)
    swarm = Swarm(
        spec, "attack", policy, task, attack, recorder, seed=0, backend=LocalBackend(batches),
        reward_judge=reward_judge_of(spec),
    )  # fmt: skip
    for number in range(1, ROUNDS + 1):
        swarm.round(number)
    items = {item.id: item for item in items_of(task, "train")}
    used = dict.fromkeys(o.item_id for pool in recorder.rounds for o in pool)
    return Sample(
        name=f"{recipe.task} with {recipe.attack}",
        rounds=tuple(recorder.rounds),
        poison=tuple(recorder.poison),
        items=items,
        sampling=spec.sampling,
        policy=policy,
        prompts={item_id: policy.prompt_ids(task.messages(items[item_id])) for item_id in used},
        public=PublishedItems(swarm.task, [items[item_id] for item_id in used]) if spec.truth == "sender" else None,
    )


def _moved(policy: Policy, by: float) -> Policy:
    """A copy whose weights differ from a policy's."""
    copied, generator = copy.deepcopy(policy), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in copied.model.parameters():
            noise = torch.randn(tensor.shape, generator=generator).to(tensor)
            tensor += by * tensor.std(correction=0) * noise
    return copied


class _PassesOfView(ForwardCache):
    """The forward passes of one view.

    Those over a sample's own completions are shared with its other views; those over completions that a defense wrote
    itself end with the view, because they may be many.

    Args:
        shared: the sample's.
        texts: the token ids of its completions, without EOS.
    """

    def __init__(self, shared: ForwardCache, texts: Collection[tuple[int, ...]]) -> None:
        super().__init__(shared.policy, shared.prompts)
        self._shared, self._texts, self.redrawn = shared, texts, shared.redrawn

    def chunks(self, answers: Iterable[CompletionKey]) -> Iterator[Chunk]:
        """As of any such cache."""
        ours: list[CompletionKey] = []
        others: list[CompletionKey] = []
        for prompt, ids in answers:
            without_eos = ids[:-1] if ids[-1:] == (self.policy.eos,) else ids
            (ours if without_eos in self._texts else others).append((prompt, ids))
        yield from self._shared.chunks(ours)
        yield from super().chunks(others)


class _Recorder(Defense):
    """A defense that records its views and drops everything, so that all pools have the same weights."""

    name = "recorder"
    sees_labels = True

    def __init__(self) -> None:
        self.rounds: list[tuple[PoolCompletion, ...]] = []
        self.poison: list[tuple[bool, ...]] = []

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        assert isinstance(view, LabelledView), "it sees labels"
        self.rounds.append(view.completions)
        self.poison.append(view.payload)
        return [Verdict("drop")] * len(view.completions)


def finished(view: DefenderView, verdicts: Sequence[Verdict]) -> PastRound:
    """A round as later ones remember it, with the verdicts that were given on its view."""
    past = tuple(replace(offered, seed=None, proof=None, logprobs=None) for offered in view.completions)
    return PastRound(view.round, past, tuple(verdicts))
