from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.bench.engine.conftest import same_weights, weights_of
from thiefbench.attacks.base import Attack, AttackerView, Sampler, ThreatModel
from thiefbench.attacks.text import Text
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.defenses.anchors import AcceptAll
from thiefbench.defenses.base import DefenderView, Verdict
from thiefbench.engine.colluders import handed_over
from thiefbench.engine.context import items_of
from thiefbench.engine.heterogeneity import ChurnSpec, DelaySpec, SharingSpec, SpecError
from thiefbench.engine.learning.cohort import Cohort, Step
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.recovery import RecoveryCheck
from thiefbench.engine.spec import LearnerSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.tasks.base import Item

Build = Callable[..., Swarm]
VERTICAL: dict[str, Any] = {"topology": "vertical", "prompts": 8, "group": 4}


class Handing(AttackWrapper):
    """Hands over weights that it has taught a few letters; `given` holds copies of them."""

    name = "handing"

    def __init__(self, attack: Attack | None = None) -> None:
        super().__init__(attack or Text("hail to all", "start"))
        self.given: list[tuple[int, dict[str, torch.Tensor]]] = []

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]
        return replace(self.attack.threat, policy=True)

    def hand_over(self, view: AttackerView) -> Sampler | None:
        assert view.policy is not None
        made: Any = view.policy.taught([(slot.item, "zzz") for slot in view.slots], 2, 1e-2)
        weights = {name: weight.detach().clone() for name, weight in made.policy.weights().items()}
        self.given.append((view.round, weights))
        return made  # type: ignore[no-any-return]


def crashed(swarm: Swarm, number: int) -> int:
    """The one node that is away in a round."""
    (node,) = swarm.population.away(number)
    return node


def senders(swarm: Swarm, number: int) -> set[int]:
    return {row.node for row in swarm.round(number).rows}


def test_an_absent_node_sends_nothing_and_the_others_go_on(build_swarm: Build) -> None:
    swarm = build_swarm(churn=ChurnSpec((2,), down=2))
    node = crashed(swarm, 2)
    assert senders(swarm, 1) == {0, 1, 2, 3}
    before = weights_of(swarm)[0]
    for number in (2, 3):
        assert senders(swarm, number) == {0, 1, 2, 3} - {node}, "nobody hears of a node that is away"
    assert not same_weights(before, weights_of(swarm)[0]), "its cohort learns from what the others send"
    assert senders(swarm, 4) == {0, 1, 2, 3}
    assert [cohort.nodes for cohort in swarm.population.cohorts] == [{0, 1, 2}], (
        "it returns with a peer's weights, and so to its peer's cohort"
    )


def test_who_is_there_samples_what_it_would_have_sampled_anyway(build_swarm: Build) -> None:
    swarm, plain = build_swarm(churn=ChurnSpec((1,), down=1)), build_swarm()
    all_rows = {(row.group, row.place): row.ids for row in plain.round(1).rows}
    rows = swarm.round(1).rows
    assert 0 < len(rows) < len(all_rows), "somebody is away"
    for row in rows:
        assert row.ids == all_rows[row.group, row.place], "items, places and noise do not depend on who is away"


@pytest.mark.parametrize("delay", [None, DelaySpec(rounds=2)])
def test_whoever_recovers_from_a_poisoner_goes_on_from_its_weights(
    delay: DelaySpec | None, build_mixed: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cohort, "update", lambda self, *rest: self_step(self, *rest))
    attack = Handing()
    # Node 0's only peer is node 2, which is malicious; node 1's is node 3.
    swarm = build_mixed(attack=attack, malicious=2, churn=ChurnSpec((2,), down=1), delay=delay)
    node = crashed(swarm, 2)
    for number in (1, 2, 3):
        swarm.round(number)
    ((number, taught),) = swarm.attack.given  # type: ignore[attr-defined]
    assert number == 3, "weights are handed over in the round of the return"
    first, second, third = swarm.population.cohorts
    assert third.nodes == {node}, "it is a cohort of its own from then on"
    assert third.kind == swarm.population.classes[node]
    assert same_weights(weights_of(swarm)[2], taught), "whose weights are the taught ones, bit for bit"
    assert not first.nodes & second.nodes & third.nodes
    assert third.history[0].round == 3, "it remembers nothing of earlier rounds"
    assert not third.optimizer.state, "and its optimizer neither"


def self_step(cohort: Cohort, prompts: Any, lessons: Any, reading: Any = None) -> Any:
    """Work out advantages, and learn nothing: weights stay as they were handed over."""
    return Step(cohort.advantages(lessons), 0.0)


@pytest.mark.parametrize("role", ["placebo", "control"])
def test_only_attacked_swarms_hand_poison_over(role: str, build_swarm: Build) -> None:
    swarm = build_swarm(role, attack=Handing(), malicious=3, churn=ChurnSpec((1,), down=1), nodes=4)
    for number in (1, 2):
        swarm.round(number)
    assert not swarm.attack.given, "in a placebo malicious nodes hand honest weights over"  # type: ignore[attr-defined]
    assert len(swarm.population.cohorts) == 1


def test_neighbours_are_averaged_by_the_norms_of_their_gradients(
    build_mixed: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Class a: nodes 0, 2 and 4 honest, 6 malicious; class b: 1, 3 honest, 5 and 7 malicious.
    attack = Handing()
    swarm = build_mixed(
        attack=attack, nodes=8, malicious=3, group=8,
        churn=ChurnSpec((2,), down=1, recovery="neighbours"),
    )  # fmt: skip
    node = crashed(swarm, 2)
    kind = swarm.population.classes[node]
    for number in (1, 2):
        swarm.round(number)
    honest = weights_of(swarm)[kind]
    monkeypatch.setattr(Cohort, "update", self_step)
    swarm.round(3)
    given = [weights for _, weights in swarm.attack.given]  # type: ignore[attr-defined]
    peers = [n for n, own in enumerate(swarm.population.classes) if own == kind and n != node]
    poisoners = [n for n in peers if n >= swarm.context.honest]
    assert len(given) == len(poisoners), "each malicious neighbour hands weights over"
    assert len(swarm.population.cohorts) == 3
    made = weights_of(swarm)[2]
    for name, weight in made.items():
        # All of a class have the same gradient norm here, so the average counts every neighbour alike.
        parts = [honest[name].double()] * (len(peers) - len(poisoners)) + [each[name].double() for each in given]
        expected = (torch.stack(parts).sum(0) / len(peers)).float()
        assert torch.allclose(weight, expected, atol=1e-6), f"{name} is the neighbours' average"


def test_gradient_norms_are_the_weights_of_the_average(build_mixed: Build) -> None:
    swarm = build_mixed("control", classes="a", **VERTICAL, sharing=SharingSpec(2, 2),
                        churn=ChurnSpec((1,), down=1, recovery="neighbours"))  # fmt: skip
    node = crashed(swarm, 1)
    swarm.round(1)
    others = [cohort for cohort in swarm.population.cohorts if cohort.nodes]
    assert len(others) == 3
    norms = [cohort.grad_norm for cohort in others]
    assert len(set(norms)) == 3, "nodes that learn from different groups have different gradients"
    weights = [weights_of(swarm)[cohort.number] for cohort in others]
    swarm.population.begin(2, lambda peer: None)
    made = weights_of(swarm)[-1]
    assert swarm.population.cohorts[-1].nodes == {node}
    for name, weight in made.items():
        parts = [norm / sum(norms) * each[name].double() for norm, each in zip(norms, weights, strict=True)]
        assert torch.allclose(weight.double(), torch.stack(parts).sum(0), atol=1e-7), (
            "each neighbour counts by the norm of its last gradient (CheckFree)"
        )


def test_the_lone_node_of_a_class_comes_back_with_its_own_weights(build_mixed: Build) -> None:
    swarm = build_mixed("control", nodes=2, churn=ChurnSpec((2,), down=2))
    node = crashed(swarm, 2)
    swarm.round(1)
    own = weights_of(swarm)[node]
    for number in (2, 3):
        swarm.round(number)
    assert same_weights(weights_of(swarm)[node], own), "a node that is away learns nothing"
    assert not same_weights(weights_of(swarm)[1 - node], own)
    swarm.population.begin(4, lambda peer: None)
    assert [cohort.nodes for cohort in swarm.population.cohorts] == [{0}, {1}], "it finds nobody to recover from"
    assert same_weights(weights_of(swarm)[node], own)


@pytest.mark.parametrize("recovery", ["peer", "neighbours"])
def test_where_nodes_learn_alone_they_return_alone(recovery: Any, build_mixed: Build) -> None:
    churn = ChurnSpec((1,), down=1, recovery=recovery)
    swarm = build_mixed(classes="a", **VERTICAL, sharing=SharingSpec(2, 2), churn=churn)
    node = crashed(swarm, 1)
    for number in (1, 2, 3):
        swarm.round(number)
    cohorts = swarm.population.cohorts
    assert [sorted(cohort.nodes) for cohort in cohorts] == [[n] if n != node else [] for n in range(3)] + [[node]], (
        "a returning node takes a peer's weights and goes on learning from groups of its own choice"
    )


def test_two_that_return_together_do_not_recover_from_each_other(build_swarm: Build) -> None:
    for seed in range(6):
        swarm = build_swarm(
            "control",
            topology="vertical",
            group=4,
            sharing=SharingSpec(1, 1),
            churn=ChurnSpec((1, 1), down=1),
            seed=seed,
        )
        away = swarm.population.away(1)
        swarm.round(1)
        stayed = [weights_of(swarm)[node] for node in range(4) if node not in away]
        swarm.population.begin(2, lambda peer: None)
        made = weights_of(swarm)[4:]
        assert len(made) == 2
        asked_each_other = weights_of(swarm)[min(away)]
        assert same_weights(asked_each_other, weights_of(swarm)[max(away)]), "who is away learns nothing"
        for weights in made:
            known = [*stayed, made[0]]
            assert any(same_weights(weights, other) for other in known), "a peer is somebody who is there"


# ---- a returning node that checks


class Strict:
    """Passes what it is told to; notes what it was asked."""

    def __init__(self, adopted: Callable[[dict[str, torch.Tensor]], bool]) -> None:
        self.adopted, self.asked = adopted, 0

    def __call__(self, node: int, own: Policy, offered: Policy) -> bool:
        self.asked += 1
        return self.adopted({name: weight.detach() for name, weight in offered.weights().items()})


@pytest.mark.parametrize("recovery", ["peer", "neighbours"])
def test_weights_that_do_not_pass_are_not_adopted(recovery: Any, build_swarm: Build) -> None:
    """Two honest nodes and two malicious ones: whoever is asked first, the node ends with its honest peer."""
    for seed in range(4):
        churn = ChurnSpec((2,), down=1, recovery=recovery, tolerance=0.1)
        swarm = build_swarm(attack=Handing(), malicious=2, churn=churn, seed=seed)
        swarm.round(1)
        swarm.round(2)
        (honest,) = weights_of(swarm)
        check = Strict(lambda offered, honest=honest: same_weights(offered, honest))  # type: ignore[misc]
        swarm.population.begin(3, lambda node, given=swarm: handed_over(given.context, 3, node), check)  # type: ignore[misc]
        assert [cohort.nodes for cohort in swarm.population.cohorts] == [{0, 1}]
        assert check.asked == 3 or recovery == "peer", "neighbours are checked one by one"


@pytest.mark.parametrize("recovery", ["peer", "neighbours"])
def test_where_none_passes_a_node_goes_on_with_what_it_had(recovery: Any, build_swarm: Build) -> None:
    churn = ChurnSpec((2,), down=2, recovery=recovery, tolerance=0.1)
    swarm = build_swarm(attack=Handing(), malicious=2, churn=churn)
    node = crashed(swarm, 2)
    swarm.round(1)
    (had,) = weights_of(swarm)
    swarm.round(2)
    swarm.round(3)
    check = Strict(lambda offered: False)
    swarm.population.begin(4, lambda peer: handed_over(swarm.context, 4, peer), check)
    assert check.asked == 3, "everybody was asked"
    first, second = swarm.population.cohorts
    assert second.nodes == {node} and node not in first.nodes
    assert same_weights(weights_of(swarm)[1], had) and not same_weights(weights_of(swarm)[0], had)


def test_the_check_compares_right_answers_of_the_nodes_own_model(build_swarm: Build) -> None:
    """Honest weights a round later pass; weights taught something else do not; the loss is that of single answers."""
    swarm = build_swarm("attack", attack=Handing(), malicious=2, churn=ChurnSpec((3,), down=1, tolerance=0.2))
    swarm.round(1)
    check, own = RecoveryCheck(swarm.context), copy.deepcopy(swarm.policy)
    prompts, answers = check._asked(4, 0, own)
    assert answers and answers == RecoveryCheck(swarm.context)._ask(4, 0, own)[1], "equal nodes ask equal questions"
    assert answers != check._ask(5, 0, own)[1] != check._ask(5, 1, own)[1]
    total, tokens = 0.0, 0
    for place, targets in answers:
        (chunk,) = ForwardCache(own, [prompts[place]]).chunks([(0, targets)])
        logprobs = chunk.logprobs(swarm.spec.sampling.temperature)
        total, tokens = total - float(logprobs.detach().double().sum()), tokens + len(targets)
        (text,) = own.decode([targets[:-1] if targets[-1] == own.eos else targets])
        assert swarm.task.reward(by_prompt(swarm, own)[tuple(prompts[place])], [text])[0] > 0
    assert check.loss(4, 0, own, own) == pytest.approx(total / tokens, rel=1e-5)
    assert check.passes(4, 0, own, own)
    swarm.round(2)
    assert check.passes(4, 0, own, swarm.policy), "an honest peer's weights"
    taught = handed_over(swarm.context, 4, 2)
    assert taught is not None and not check.passes(4, 0, own, taught), "weights taught to say something else"


def by_prompt(swarm: Swarm, policy: Policy) -> dict[tuple[int, ...], Item]:
    return {tuple(policy.prompt_ids(swarm.task.messages(item))): item for item in items_of(swarm.task, "train")}


def test_without_a_right_answer_no_peers_weights_pass(build_swarm: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = build_swarm("control", churn=ChurnSpec((3,), down=1, tolerance=10.0))
    monkeypatch.setattr(type(swarm.task), "reward", lambda self, item, texts: [0.0 for _ in texts])
    check = RecoveryCheck(swarm.context)
    assert check.loss(4, 0, swarm.policy, swarm.policy) is None
    assert not check.passes(4, 0, swarm.policy, swarm.policy)


def test_a_kl_term_compares_with_where_the_class_started(build_mixed: Build) -> None:
    learner = LearnerSpec(learning_rate=1e-2, kl=0.1)
    swarm = build_mixed(attack=Handing(), malicious=2, churn=ChurnSpec((2,), down=1), learner=learner)
    start = weights_of(swarm)
    for number in (1, 2, 3):
        swarm.round(number)
    recovered = swarm.population.cohorts[2]
    assert recovered.start is not None
    held = {name: weight.detach() for name, weight in recovered.start.weights().items()}
    assert same_weights(held, start[recovered.kind]), "a cohort that comes to be later has the reference of its class"


def test_malicious_nodes_hold_weights_that_learn(build_mixed: Build) -> None:
    swarm = build_mixed(attack=Handing(), malicious=2, churn=ChurnSpec((1,), down=1))
    node = crashed(swarm, 1)
    malicious = next(n for n in (2, 3) if swarm.population.classes[n] == swarm.population.classes[node])
    for number in (1, 2):
        swarm.round(number)
    assert swarm.population.of(malicious) is swarm.population.of(node), (
        "when all nodes of a class's first cohort have left it, its malicious ones go on with those that learn"
    )


def test_present_nodes_are_evaluated_in_turn(build_mixed: Build) -> None:
    swarm = build_mixed("control", churn=ChurnSpec((1,), down=5))
    node = crashed(swarm, 1)
    swarm.round(1)
    here = [n for n in range(4) if n != node]
    rows = swarm.evaluate(1, 30).rows
    classes = [swarm.population.classes[here[i % 3]] for i in range(30)]
    assert [row.cohort for row in rows] == classes, "every present node answers in its turn, and no absent one"
    assert Counter(row.label for row in rows)["ab"[1 - swarm.population.classes[node]]] == 20


def test_a_population_needs_a_model_and_an_honest_node_for_every_class(
    build_mixed: Build, load_policy: Callable[..., Policy]
) -> None:
    with pytest.raises(SpecError, match="no honest node is left for b"):
        build_mixed(nodes=2, malicious=1)
    swarm = build_mixed()
    with pytest.raises(SpecError, match="a population of 2 classes needs 2 models, got 1"):
        Swarm(swarm.spec, "attack", load_policy(), swarm.task, Text("hail to all", "start"), swarm.cohort.defense, 1)


def test_a_node_that_recovered_from_poison_proves_with_its_own_weights(build_swarm: Build) -> None:
    class Proving(AcceptAll):
        """Asks for a few numbers of the states as proofs, and keeps what arrives."""

        requires = frozenset({"homogeneous", "proofs"})

        def prove(self, states: Any) -> bytes:
            return np.round(states[:, :4], 2).tobytes()

        def inspect(self, view: DefenderView) -> Any:
            states = view.policy.hidden(view.completions)
            valid = [o.proof == self.prove(s) for o, s in zip(view.completions, states, strict=True)]
            return [Verdict("accept", float(fine)) for fine in valid]

    for seed in range(20):  # until the node that is back asks a malicious peer
        swarm = build_swarm(malicious=2, attack=Handing(), defense=Proving(), churn=ChurnSpec((1,), down=1), seed=seed)
        swarm.round(1)
        swarm.round(2)
        if len(swarm.population.cohorts) > 1:
            break
    else:
        pytest.fail("no seed of twenty made it ask a malicious peer")
    record = swarm.round(3)
    recovered = swarm.population.cohorts[1]
    for row in record.rows:
        same = (row.node in recovered.nodes) == (row.cohort == 1)
        if same and not row.malicious:
            assert row.score == 1.0, "a proof is of the sender's weights, so who holds equal ones finds it valid"
