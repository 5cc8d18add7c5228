"""Fixtures of the engine's tests: prompts, sampled lessons, and swarms of the tiny model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from thiefbench.attacks.base import Attack
from thiefbench.attacks.text import Text
from thiefbench.defenses.anchors import AcceptAll
from thiefbench.defenses.base import Defense
from thiefbench.engine.heterogeneity import NodeClass
from thiefbench.engine.keys import key
from thiefbench.engine.learning.cohort import Cohort, TrainingRow
from thiefbench.engine.model.decoding import sample
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import LearnerSpec, Role, SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.tasks.base import Item, Sampling, Task

SAMPLING = Sampling(top_k=40, max_new_tokens=16)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Thread count changes last bits, and tiny models gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def items(vowels: Task) -> list[Item]:
    return [Item.from_row(row) for row in vowels.items("train")]


@pytest.fixture(scope="session")
def prompts(load_policy: Callable[..., Policy], vowels: Task, items: list[Item]) -> list[list[int]]:
    """Twelve prompts, not all of one length."""
    policy = load_policy()
    made = [policy.prompt_ids(vowels.messages(item)) for item in items]
    assert len({len(prompt) for prompt in made}) > 1
    return made


@pytest.fixture(scope="session")
def spec() -> SwarmSpec:
    """Four nodes, one malicious; 4 groups of 8."""
    return SwarmSpec(nodes=4, malicious=1, prompts=4, group=8, sampling=SAMPLING)


@pytest.fixture(scope="session")
def pool(load_policy: Callable[..., Policy], prompts: list[list[int]], spec: SwarmSpec) -> list[TrainingRow]:
    """A round's pool: 32 sampled completions of many lengths; one group with equal rewards, the others mixed."""
    policy = load_policy()
    rows = [group for group in range(spec.prompts) for _ in range(spec.group)]
    done = sample(policy, prompts[: spec.prompts], rows, [key("pool", i) for i in range(len(rows))], spec.sampling)
    closing = (policy.eos,)
    lessons = [
        TrainingRow(group, made.ids + (closing if made.ended else ()), reward=float((i * 7) % 5 < 2) if group else 1.0)
        for i, (group, made) in enumerate(zip(rows, done, strict=True))
    ]
    assert len({len(lesson.targets) for lesson in lessons}) > 5
    return lessons


@pytest.fixture(scope="session")
def build_swarm(load_policy: Callable[..., Policy], vowels: Task, spec: SwarmSpec) -> Callable[..., Swarm]:
    """A swarm on a model of its own; keyword arguments override the spec's fields."""

    def build(
        role: Role = "attack",
        attack: Attack | None = None,
        defense: Defense | None = None,
        task: Task | None = None,
        seed: int = 5,
        device: str = "cpu",
        **fields: Any,
    ) -> Swarm:
        fields.setdefault("learner", LearnerSpec(learning_rate=1e-3))
        return Swarm(
            replace(spec, **fields),
            role,
            load_policy(device=device),
            task or vowels,
            attack or Text("hail to all", "start"),
            defense or AcceptAll(),
            seed,
        )

    return build


@pytest.fixture(scope="session")
def build_mixed(
    load_policy: Callable[..., Policy], load_other: Callable[..., Policy], vowels: Task, spec: SwarmSpec
) -> Callable[..., Swarm]:
    """A swarm of as many classes as `classes` has letters, "a" the one tiny model and "b" the other, dealt in turn."""

    def build(
        role: Role = "attack",
        attack: Attack | None = None,
        defense: Defense | None = None,
        task: Task | None = None,
        seed: int = 5,
        classes: str = "ab",
        **fields: Any,
    ) -> Swarm:
        loaders = {"a": load_policy, "b": load_other}
        fields.setdefault("learner", LearnerSpec(learning_rate=1e-3))
        if len(classes) > 1:
            fields["population"] = tuple(NodeClass(letter, 1 / len(classes)) for letter in classes)
        return Swarm(
            replace(spec, **fields),
            role,
            [loaders[letter]() for letter in classes],
            task or vowels,
            attack or Text("hail to all", "start"),
            defense or AcceptAll(),
            seed,
        )

    return build


def weights_of(swarm: Swarm) -> list[dict[str, torch.Tensor]]:
    """Copies of the weights of every cohort."""
    return [
        {name: weight.detach().clone() for name, weight in cohort.policy.weights().items()}
        for cohort in swarm.population.cohorts
    ]


def same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two models are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def make_cohort(load_policy: Callable[..., Policy], spec: SwarmSpec) -> Callable[..., Cohort]:
    def make(policy: Policy | None = None, dtype: str = "float32", **learner: object) -> Cohort:
        made = LearnerSpec(**({"learning_rate": 1e-3} | learner))  # type: ignore[arg-type]
        told = replace(spec, learner=made, logprobs="reported" if made.needs_logprobs else "none")
        return Cohort(policy or load_policy(dtype=dtype), told, AcceptAll())

    return make


@pytest.fixture(scope="session")
def plain_logits() -> Callable[[Policy, Sequence[int], Sequence[int]], torch.Tensor]:
    """The transformers model on one unpadded row: the logits that predict each completion token."""

    def logits(policy: Policy, prompt: Sequence[int], targets: Sequence[int]) -> torch.Tensor:
        ids = torch.tensor([[*prompt, *targets]], device=policy.device)
        return policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()  # type: ignore[no-any-return]

    return logits
