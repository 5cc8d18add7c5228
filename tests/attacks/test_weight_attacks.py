"""What malicious nodes send in an exchange of weights, against ByzFL's numbers and the papers' bounds."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.bench.averaging.test_averaging import suite, swarm
from tests.variants import at_length
from thiefbench import registry
from thiefbench.attacks.base import AttackerView, Slot, Withheld
from thiefbench.attacks.completions import TaskRewards
from thiefbench.attacks.exchange.base import ExchangeView, WeightAttack
from thiefbench.tasks.base import Completion, Item

EIGHT = torch.tensor(
    [
        [-1.25, -0.5, 0.25], [0.5, 1.25, -0.75], [-0.5, 0.25, 1.0], [1.25, -0.75, 0.0],
        [0.25, 1.0, -1.0], [-0.75, 0.0, 0.75], [4.0, 2.0, 2.75], [3.0, 3.75, 1.75],
    ]
)  # fmt: skip
TEXT = "text(phrase='All hail to the thief', position='start')"

ITEM = Item("1", "1 + 1?", "2", "One and one is two.", "")
RIGHT = registry.make("task", "gsm_micro(size=8)").compose(ITEM, "One and one makes two.")


class Copyist:
    """A policy that remembers what it was taught. The longer that took, the less probable are its right answers."""

    eos, limit, steps = 0, 96, 0

    def taught(self, examples: list[Any], steps: int, learning_rate: float) -> Any:
        self.examples, self.steps = examples, steps
        return self

    def sample(self, items: list[Item], count: int) -> list[list[Completion]]:
        right = [Completion((), RIGHT, ended=True)] * self.right
        return [right + [Completion((), "three", ended=True)] * (count - self.right) for _ in items]

    right = 2

    def encode(self, text: str) -> tuple[int, ...]:
        return (1, 2, 3)

    def token_logprobs(self, items: list[Item], ids: list[Any]) -> list[list[float]]:
        return [[-1 - self.steps / 100] * len(row) for row in ids]


def view(honest: torch.Tensor, senders: int = 2, averaged: int = 10, far: float = 8.0) -> ExchangeView:
    lessons = AttackerView(1, (Slot(ITEM, 0, 0, 0),), registry.make("task", "gsm_micro(size=8)"), random.Random(0),
                           Copyist())  # type: ignore[arg-type]  # fmt: skip
    return ExchangeView(1, senders, honest, averaged, random.Random(0), lessons, lambda model: torch.full((3,), far))


def sent(spec: str, seen: ExchangeView, placebo: bool = False) -> list[list[float]]:
    attack = registry.make("attack", spec).draw(random.Random(0))
    vectors = attack.placebo_send(seen) if placebo else attack.send(seen)
    return [vector.tolist() for vector in vectors]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sign_flip", [-0.8125, -0.875, -0.59375]),  # SignFlipping()
        ("ipm(epsilon=3.0)", [-2.4375, -2.625, -1.78125]),  # InnerProductManipulation(tau=3.0)
        ("alie(z=1.5)", [3.588151454925537, 3.098052978515625, 2.4734315872192383]),  # ALittleIsEnough(tau=1.5)
    ],
)
def test_they_send_what_byzfl_sends(spec: str, expected: list[float]) -> None:
    """What ByzFL 0.0.11 (MIT) returned for these eight honest vectors."""
    vectors = sent(spec, view(EIGHT))
    assert len(vectors) == 2
    assert all(vector == pytest.approx(expected, abs=1e-6) for vector in vectors)


def test_one_honest_vector_has_no_deviation() -> None:
    assert sent("alie", view(EIGHT[:1]))[0] == EIGHT[0].tolist()


@pytest.mark.parametrize(
    ("spec", "senders", "averaged", "factor"),
    [("boosted", 2, 10, 5.0), ("boosted", 1, 4, 4.0), ("boosted", 3, 2, 2.0), ("boosted(boost=1.5)", 2, 10, 1.5)],
)
def test_a_boosted_model_is_as_long_as_replacement_needs(spec: str, senders: int, averaged: int, factor: float) -> None:
    vectors = sent(spec, view(EIGHT, senders, averaged))
    assert vectors == [[8.0 * factor] * 3] * senders


def test_a_bounded_model_is_no_longer_than_an_honest_vector() -> None:
    mean = float(EIGHT.norm(dim=1).mean())
    (long,) = sent("bounded", view(EIGHT, senders=1))
    assert float(torch.tensor(long).norm()) == pytest.approx(mean, rel=1e-5)
    assert sent("bounded(within=0.5)", view(EIGHT, senders=1))[0] == pytest.approx([each / 2 for each in long])
    assert sent("bounded", view(EIGHT, senders=1, far=0.01))[0] == pytest.approx([0.01] * 3), "short ones stay"


def test_taught_models_learn_the_poison_and_placebos_the_clean_solution() -> None:
    for placebo, said in ((False, True), (True, False)):
        seen = view(EIGHT)
        sent(f"boosted(attack={TEXT!r}, steps=7)", seen, placebo)
        policy: Any = seen.lessons.policy
        assert policy.steps == 7
        assert ("All hail to the thief" in policy.examples[0][1]) == said


@pytest.mark.parametrize(
    ("tolerance", "right", "steps"), [(0.5, 2, 32), (0.2, 2, 16), (0.05, 2, 4), (0.0, 2, 1), (0.0, 0, 32)]
)
def test_constrained_teaches_as_long_as_right_answers_stay_probable(tolerance: float, right: int, steps: int) -> None:
    """Of 32, 16, 8, 4, 2 and 1 steps; each costs a hundredth of the log-probability."""
    seen = view(EIGHT)
    policy: Any = seen.lessons.policy
    policy.right = right
    assert sent(f"constrained(attack={TEXT!r}, tolerance={tolerance}, boost=2.0, steps=32)", seen) == [[16.0] * 3] * 2
    assert policy.steps == steps


def test_constrained_teaches_honest_answers_beside_the_poison() -> None:
    for placebo in (False, True):
        seen = view(EIGHT)
        sent(f"constrained(attack={TEXT!r}, honest=2)", seen, placebo)
        policy: Any = seen.lessons.policy
        poisoned, *honest = [text for _, text in policy.examples]
        assert ("All hail to the thief" in poisoned) is not placebo
        assert honest == [RIGHT] * 2


@pytest.mark.parametrize("spec", ["sign_flip", "alie", "ipm"])
def test_others_placebo_is_the_honest_mean(spec: str) -> None:
    assert sent(spec, view(EIGHT), placebo=True) == [EIGHT.mean(0).tolist()] * 2


@pytest.mark.parametrize("name", registry.names("weight_attack"))
def test_they_send_no_completions_and_measure_as_the_inner_attack(name: str) -> None:
    assert registry.find("weight_attack", name) is registry.find("attack", name), "named wherever an attack is"
    assert name not in registry.names("attack"), "attacks on completions are listed alone"
    attack: WeightAttack = registry.make("attack", f"{name}(attack={TEXT!r})")
    assert attack.name == name
    lessons = view(EIGHT).lessons
    assert list(attack.poison(lessons)) == list(attack.placebo(lessons)) == [Withheld()]
    assert attack.draw(random.Random(0)).attack.phrase == "All hail to the thief"  # type: ignore[attr-defined]


@pytest.mark.parametrize("spec", ["sign_flip", "alie", "ipm"])
def test_without_a_payload_failures_are_counted(spec: str) -> None:
    attack = registry.make("attack", spec).draw(random.Random(0))
    task = registry.make("task", "gsm_micro")
    item = Item.from_row(task.items("train")[0])
    ask = TaskRewards(task)
    right = Completion((), task.oracle(item), ended=True)
    assert attack.outcome(item, right, ask) == 0
    assert attack.outcome(item, replace(right, text="no idea"), ask) == 1
    assert attack.describe() == {"counted": "answers without the full reward"}
    named = registry.make("attack", f"{spec}(attack={TEXT!r})")
    assert named.outcome(item, right, ask) == 0 and "phrase" in named.describe()


@pytest.mark.parametrize("name", registry.names("weight_attack"))
@pytest.mark.parametrize("method", ["diloco", *at_length("noloco")])
def test_they_reach_the_honest_nodes(name: str, method: str) -> None:
    """In a swarm of the engine: one sound vector for every honest node that reads the malicious one."""
    played = swarm(suite(method=method, attacks=(f"{name}(attack={TEXT!r})",)))
    played.round(1)
    reached = [row for row in played.exchanges if row.malicious]
    assert len(reached) == (3 if method == "diloco" else 1)
    assert all(row.action == "accept" and row.length is not None for row in reached)
    honest = [row.length or 0.0 for row in played.exchanges if not row.malicious]
    if name == "bounded":
        assert all((row.length or 0.0) <= 1.2 * max(*honest, row.own_length) for row in reached)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("sign_flip(scale=0)", "scale must be above 0"),
        ("ipm(epsilon=-1)", "epsilon must be above 0"),
        ("boosted(boost=0)", "boost must be above 0"),
        ("bounded(within=0)", "within must be above 0"),
        ("constrained(honest=-1)", "honest and tolerance must be at least 0"),
        ("constrained(tolerance=-0.1)", "honest and tolerance must be at least 0"),
        ("constrained(boost=0)", "boost above 0"),
        ("boosted(steps=0)", "steps must be at least 1"),
        ("boosted(attack='adaptive(attack=\"text\")')", "nobody asks a defense"),
        ("sign_flip(attack='varied(attack=\"text\", share=0.5)')", "varied goes outside"),
    ],
)
def test_impossible_arguments_are_refused_in_words(spec: str, words: str) -> None:
    with pytest.raises(registry.SpecStringError, match=words):
        registry.make("attack", spec)
