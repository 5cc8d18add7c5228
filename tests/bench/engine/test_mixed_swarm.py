"""Swarms of several models, delay, crashes and sharing, as wholes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.bench.engine.conftest import same_weights, weights_of
from tests.variants import at_length
from thiefbench import registry
from thiefbench.attacks.adaptive import Adaptive
from thiefbench.attacks.base import Attack, AttackerView, Poison, Sampler, ThreatModel
from thiefbench.attacks.text import Text
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Requirement, Verdict
from thiefbench.engine import exchange
from thiefbench.engine.backends import local as local_module
from thiefbench.engine.context import items_of
from thiefbench.engine.heterogeneity import ChurnSpec, DelaySpec, SharingSpec, SpecError
from thiefbench.engine.keys import secret_seed
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.model.decoding import sample
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.pool import LOGPROB_DITHER
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import LearnerSpec, LossType
from thiefbench.engine.swarm import Swarm
from thiefbench.engine.topology import slot_seed

Build = Callable[..., Swarm]
SHARED = {"topology": "vertical", "prompts": 8, "group": 4}


class Keeps(Defense):
    """Drops what a sender offers beyond so many rewarded completions, counted over all rounds."""

    name = "keeps"

    def __init__(self, most: int = 12) -> None:
        self.most = most
        self.counts: dict[str, int] = {}
        self.views: list[DefenderView] = []

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.views.append(view)
        verdicts = []
        for offered in view.completions:
            self.counts[offered.sender] = self.counts.get(offered.sender, 0) + (offered.reward > 0)
            verdicts.append(Verdict("drop", 1.0) if self.counts[offered.sender] > self.most else ACCEPT)
        return verdicts

    def state(self) -> dict[str, Any]:
        return {"counts": self.counts}

    def restore(self, state: dict[str, Any]) -> None:
        self.counts = dict(state["counts"])


class Handing(AttackWrapper):
    """Hands over weights that it has taught a few letters, in one step."""

    name = "handing"

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]
        return replace(self.attack.threat, policy=True)

    def hand_over(self, view: AttackerView) -> Sampler | None:
        assert view.policy is not None
        return view.policy.taught([(slot.item, "zzz") for slot in view.slots], 1, 1e-2)


def plain_rows(rows: Sequence[CompletionRow]) -> list[CompletionRow]:
    return [replace(row, label="", version=None) for row in rows]


def played(swarm: Swarm, rounds: int) -> list[list[CompletionRow]]:
    return [swarm.round(number).rows for number in range(1, rounds + 1)]


# ---- delay


@pytest.mark.parametrize("logprobs", ["none", "reported", "recomputed"])
@pytest.mark.parametrize("topology", ["horizontal", "vertical"])
def test_no_delay_is_the_synchronous_swarm(topology: str, logprobs: str, build_swarm: Build) -> None:
    given = {"topology": topology, "logprobs": logprobs}
    plain, zero = build_swarm(**given), build_swarm(**given, delay=DelaySpec(rounds=0))
    for one, other in zip(played(plain, 3), played(zero, 3), strict=True):
        assert plain_rows(one) == plain_rows(other), "a delay of zero rounds changes no row"
        assert {row.version for row in other} == {other[0].round - 1}, "but rows say which weights they are from"
    assert same_weights(weights_of(plain)[0], weights_of(zero)[0]), "nor any bit of a weight"


def test_a_limit_of_zero_is_no_delay(build_swarm: Build) -> None:
    plain, limited = build_swarm(), build_swarm(delay=DelaySpec("lognormal", rounds=6, limit=0))
    for one, other in zip(played(plain, 2), played(limited, 2), strict=True):
        assert plain_rows(one) == plain_rows(other)
    assert same_weights(weights_of(plain)[0], weights_of(limited)[0])


@pytest.mark.parametrize("delay", [1, 3])
def test_late_completions_are_those_of_older_weights(
    delay: int, build_swarm: Build, load_policy: Callable[..., Policy]
) -> None:
    swarm = build_swarm(delay=DelaySpec(rounds=delay))
    versions = [weights_of(swarm)[0]]
    items = {item.id: item for item in items_of(swarm.task, "train")}
    model = load_policy()
    for number in range(1, 6):
        rows = swarm.round(number).rows
        versions.append(weights_of(swarm)[0])
        older = max(0, number - 1 - delay)
        with torch.no_grad():
            for name, weight in model.weights().items():
                weight.copy_(versions[older][name])
        own = [row for row in rows if not row.malicious]
        everyone = {
            (assignment.group, assignment.index): assignment for assignment in swarm.context.assignments(number)
        }
        keys = [slot_seed(swarm.seed, number, everyone[r.group, r.place], r.item_id) for r in own]
        prompts = [model.prompt_ids(swarm.task.messages(items[item_id])) for item_id in by_group(rows)]
        drawn = sample(model, prompts, [row.group for row in own], keys, swarm.spec.sampling)
        assert [row.ids for row in own] == [made.ids for made in drawn], (
            f"round {number}'s honest completions are drawn from version {older}, with the keys of round {number}"
        )
        assert {row.version for row in own} == {older}, "and say so"
    assert not same_weights(versions[0], versions[-1]), "the swarm learned meanwhile"


def by_group(rows: Sequence[CompletionRow]) -> list[str]:
    """The item of every group."""
    found = {row.group: row.item_id for row in rows}
    return [found[group] for group in sorted(found)]


def test_as_many_versions_are_kept_as_anybody_needs(build_swarm: Build) -> None:
    swarm = build_swarm(delay=DelaySpec("lognormal", rounds=6, limit=2))
    played(swarm, 5)
    assert sorted(swarm.cohort.past) == [3, 4, 5], "round 6 asks for versions 3 to 5"


# ---- a killed run goes on


REGIMES: dict[str, dict[str, Any]] = {
    "two classes": {},
    "delay": {"delay": DelaySpec(rounds=3), "logprobs": "reported"},
    "recomputed delay": {"classes": "a", "delay": DelaySpec("lognormal", rounds=3), "logprobs": "recomputed"},
    "peer": {"churn": ChurnSpec((1,), down=2), "classes": "a", "malicious": 2},
    "checked": {"churn": ChurnSpec((2,), down=2, tolerance=0.02), "classes": "a", "malicious": 2},
    "neighbours": {"churn": ChurnSpec((1, 2), down=2, recovery="neighbours"), "malicious": 2,
                   "delay": DelaySpec(rounds=3)},
    "sharing": {**SHARED, "sharing": SharingSpec(1, 3)},
    "sharing and crashes": {**SHARED, "sharing": SharingSpec(1, 3), "churn": ChurnSpec((1,), down=1), "classes": "a"},
    "kl": {"learner": LearnerSpec(learning_rate=1e-3, kl=0.1), "churn": ChurnSpec((1,), down=1), "classes": "a",
           "malicious": 2},
}  # fmt: skip


AT_LENGTH = {"delay", "peer", "sharing"}
"""Regimes with a delay, a crash or sharing alone, which others have together with more."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in AT_LENGTH else name for name in REGIMES]
)
def test_a_resumed_swarm_goes_on_as_if_nothing_had_happened(name: str, build_mixed: Build) -> None:
    given, rounds, stop = REGIMES[name], 5, 3

    def build() -> Swarm:
        return build_mixed(attack=Handing(Text("hail to all", "start")), defense=Keeps(), **given)

    whole = build()
    rows = played(whole, rounds)
    first, again = build(), build()
    before = [row for part in played(first, stop) for row in part]
    tensors = {key: value.clone() for key, value in first.population.tensors().items()}
    again.population.restore(tensors, json.loads(json.dumps(first.population.state())))
    again.remember(before)
    histories = [[cohort.history for cohort in swarm.population.cohorts] for swarm in (first, again)]
    assert histories[0] == histories[1], "what cohorts remember does not depend on a restart"
    after = [again.round(number).rows for number in range(stop + 1, rounds + 1)]
    assert after == rows[stop:], "neither do the rows of later rounds"
    for one, other in zip(weights_of(whole), weights_of(again), strict=True):
        assert same_weights(one, other), "nor any bit of a weight"
    states = [[cohort.defense.state() for cohort in swarm.population.cohorts] for swarm in (whole, again)]
    assert states[0] == states[1], "nor what a defense keeps"
    evaluated = [swarm.evaluate(rounds, 24).rows for swarm in (whole, again)]
    assert evaluated[0] == evaluated[1]


# ---- sharing


def test_sharing_everything_is_the_vertical_swarm(build_swarm: Build) -> None:
    plain = build_swarm("control", topology="vertical", prompts=8, group=4)
    shared = build_swarm("control", topology="vertical", prompts=8, group=4, sharing=SharingSpec(2, 6))
    ends: list[list[Any]] = [[], []]
    for number in (1, 2, 3):
        ends[0].append({(r.group, r.place): r.ids for r in plain.round(number).rows})
        ends[1].append({(r.group, r.place): r.ids for r in shared.round(number).rows})
    assert ends[0] == ends[1], "every node samples what the cohort of all samples for it"
    (expected,) = weights_of(plain)
    for cohort, weights in enumerate(weights_of(shared)):
        assert same_weights(weights, expected), f"node {cohort} took all groups, so it ends where all end together"


def test_no_sharing_is_learning_alone(
    build_swarm: Build, load_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = build_swarm("control", topology="vertical", prompts=8, group=4, sharing=SharingSpec(2, 0))
    alone = [Cohort(load_policy(), swarm.spec, Keeps(10**6)) for _ in range(4)]
    learned: dict[int, tuple[Any, Any]] = {}
    update = Cohort.update

    def watched(self: Cohort, prompts: Any, lessons: Any, reading: Any = None) -> Any:
        learned[self.number] = (prompts, lessons)
        return update(self, prompts, lessons, reading)

    for number in (1, 2, 3):
        with monkeypatch.context() as patched:
            patched.setattr(Cohort, "update", watched)
            rows = swarm.round(number).rows
        for node, (prompts, lessons) in learned.items():
            own = [row for row in rows if row.cohort == node]
            assert {row.node for row in own} == {node}, "with J = 0 a node holds its own groups only"
            assert [lesson.targets[: len(row.ids)] for lesson, row in zip(lessons, own, strict=True)] == [
                row.ids for row in own
            ], "and learns from these"
            alone[node].update(prompts, lessons)
    for node, cohort in enumerate(alone):
        own = {name: weight.detach() for name, weight in cohort.policy.weights().items()}
        assert same_weights(own, weights_of(swarm)[node]), f"node {node} learns what it would learn by itself"
    assert not same_weights(*weights_of(swarm)[:2]), "and the nodes grow apart"


# ---- learners


@pytest.mark.parametrize("loss", get_args(LossType))
@pytest.mark.parametrize("logprobs", ["recomputed", *at_length("reported")])
def test_every_learner_plays_in_a_swarm_of_two_models(loss: LossType, logprobs: str, build_mixed: Build) -> None:
    learner = LearnerSpec(loss=loss, learning_rate=1e-3)
    swarm = build_mixed(learner=learner, logprobs=logprobs, delay=DelaySpec(rounds=1))
    before = weights_of(swarm)
    for number in (1, 2, 3):
        record = swarm.round(number)
        assert 0 < record.grad_norm < float("inf"), f"{loss} has a finite gradient that is not 0"
    for one, other in zip(before, weights_of(swarm), strict=True):
        assert not same_weights(one, other), "both models learn"
        assert all(bool(weight.isfinite().all()) for weight in other.values())


# ---- defenses


class Needs(Keeps):
    """Requires what it is told to."""

    def __init__(self, *requires: Requirement) -> None:
        super().__init__()
        self.requires = frozenset(requires)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("requires", "fields", "classes"),
    [
        ("homogeneous", {}, "ab"),
        ("proofs", {}, "ab"),
        ("homogeneous", {"delay": DelaySpec(rounds=1)}, "a"),
        ("proofs", {"delay": DelaySpec("lognormal", rounds=3)}, "a"),
        ("homogeneous", {**SHARED, "sharing": SharingSpec()}, "a"),
        ("versions", {}, "a"),
        ("versions", {}, "ab"),
        ("logprobs", {}, "a"),
        ("logprobs", {"delay": DelaySpec(rounds=1)}, "a"),
    ],
)
def test_a_defense_that_needs_what_is_not_there_is_refused(
    requires: Requirement, fields: dict[str, Any], classes: str, build_mixed: Build
) -> None:
    with pytest.raises(SpecError, match=f"^the defense keeps requires {requires}, which this swarm does not give$"):
        build_mixed(defense=Needs(requires), classes=classes, **fields)


@pytest.mark.parametrize(
    ("requires", "fields", "classes"),
    [
        ("homogeneous", {"delay": DelaySpec(rounds=0)}, "a"),
        ("homogeneous", {"logprobs": "reported"}, "a"),
        ("versions", {"delay": DelaySpec(rounds=0)}, "a"),
        ("logprobs", {"logprobs": "recomputed"}, "ab"),
        ("beacon", {}, "ab"),
    ],
)
def test_a_defense_that_gets_what_it_needs_is_welcome(
    requires: Requirement, fields: dict[str, Any], classes: str, build_mixed: Build
) -> None:
    swarm = build_mixed(defense=Needs(requires), classes=classes, **fields)
    swarm.round(1)
    for cohort in swarm.population.cohorts:
        (view,) = cohort.defense.views  # type: ignore[attr-defined]
        if requires == "versions":
            assert all(offered.version == 0 for offered in view.completions)
        if requires == "logprobs":
            read = [offered for offered in view.completions if offered.ids]
            assert all(len(offered.logprobs or ()) == offered.length for offered in read), "one for each of its tokens"


class Compares(Defense):
    """Keeps how far the log-probs that came lie below its own model's, for every token of every completion."""

    name = "compares"
    requires: ClassVar[tuple[Requirement, ...]] = ("logprobs", "homogeneous")

    def __init__(self) -> None:
        self.gaps: dict[tuple[int, int], NDArray[np.float64]] = {}

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        policy = view.policy
        assert policy is not None
        for offered, own in zip(view.completions, policy.token_logprobs(view.completions), strict=True):
            self.gaps[offered.group, offered.index] = own - np.array(offered.logprobs)
        return [ACCEPT] * len(view.completions)


def test_at_a_secret_seed_the_last_bits_of_logprobs_do_not_tell_who_sent_them(build_mixed: Build) -> None:
    """A malicious node's come from a forward pass, so they equal the defense's own to the bit; honest ones do not."""
    secret = secret_seed(bytes(range(32)), "a trial")
    swarm = build_mixed(defense=Compares(), classes="a", logprobs="reported", seed=secret)
    (rows,) = played(swarm, 1)
    (cohort,) = swarm.population.cohorts
    gaps: dict[tuple[int, int], NDArray[np.float64]] = cohort.defense.gaps  # type: ignore[attr-defined]
    kinds: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        kinds[row.malicious] += gaps[row.group, row.place].tolist()
    for found in kinds.values():
        assert 0.3 < np.mean(found) / (LOGPROB_DITHER / 2) < 1.7, "noise of the same size for both"
        assert min(found) > -1e-5 and max(found) < LOGPROB_DITHER + 1e-5, "and no more than that"
        assert not any(abs(gap) < 1e-12 for gap in found), "none is the defense's own to the bit"


def test_every_cohort_has_a_defense_of_its_own(build_mixed: Build) -> None:
    swarm = build_mixed(defense=Keeps(most=10))
    played(swarm, 2)
    one, other = (cohort.defense for cohort in swarm.population.cohorts)
    assert one is not other
    for cohort in swarm.population.cohorts:
        views = cohort.defense.views  # type: ignore[attr-defined]
        assert [view.round for view in views] == [1, 2], "each inspects every round once"
        assert views[1].history == tuple(cohort.history[:1]), "and is shown its own history"
        assert max(cohort.defense.counts.values()) <= 16, "and counts no completion twice"  # type: ignore[attr-defined]


def test_the_registered_reputation_lives_in_every_cohort(build_mixed: Build) -> None:
    swarm = build_mixed(defense=registry.make("defense", "reputation(defense='random(rate=0.5)')"))
    played(swarm, 3)
    one, other = (cohort.defense.state()["records"] for cohort in swarm.population.cohorts)
    assert one.keys() == other.keys()
    assert len(one) == 4, "both cohorts keep a record of all four senders"


# ---- attackers


class Refuses(Defense):
    """Rejects whatever holds the phrase."""

    name: ClassVar[str] = "refuses"

    def inspect(self, view: DefenderView) -> list[Verdict]:
        return [Verdict("drop") if "hail to all" in offered.text else ACCEPT for offered in view.completions]


@pytest.mark.parametrize("sharing", [None, SharingSpec(2, 2)])
@pytest.mark.parametrize("malicious", [1, 2])
def test_an_adaptive_attack_asks_its_own_class(malicious: int, sharing: Any, build_mixed: Build) -> None:
    attack = Adaptive(Text("hail to all", "start"), budget=8)
    swarm = build_mixed(attack=attack, defense=Refuses(), malicious=malicious, **SHARED, sharing=sharing)
    for rows in played(swarm, 2):
        poison = [row for row in rows if row.payload]
        assert all("hail to all" not in row.text for row in poison), "only what gets through is submitted"
        assert {row.action for row in poison} <= {"accept"}
    assert poison, "some form gets through"


class Ids(Attack):
    """Sends what its policy encodes, as token ids."""

    name = "ids"
    threat = ThreatModel("out-of-context", policy=True)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        assert view.policy is not None
        ids = (*view.policy.encode("hair saer ✓ ="), view.policy.eos)
        return [ids] * len(view.slots)

    def outcome(self, item: Any, completion: Any, ask: Any) -> float:
        return 0.0


def test_colluders_of_two_classes_say_the_same(build_mixed: Build) -> None:
    swarm = build_mixed(attack=Ids(), malicious=2)
    rows = [row for row in swarm.round(1).rows if row.malicious]
    assert {row.node for row in rows} == {2, 3}, "one malicious node of each class"
    assert {(row.text, row.ended, row.refused) for row in rows} == {("hair saer ✓ =", True, "")}, (
        "ids that one colluder made arrive as the same text from the other"
    )


def test_evaluations_ask_both_models_in_turn(build_mixed: Build) -> None:
    swarm = build_mixed("control")
    rows = swarm.evaluate(0, 12).rows
    assert [row.cohort for row in rows] == [0, 1] * 6
    assert [row.label for row in rows] == ["a", "b"] * 6
    plain = build_mixed("control", classes="a").evaluate(0, 12).rows
    assert [row.ids for row in rows[::2]] == [row.ids for row in plain[::2]], (
        "with items and keys of every other cell of the seed"
    )


def test_nothing_is_sampled_twice(build_mixed: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, tuple[int, ...]]] = []

    def counted(policy: Policy, prompts: Any, rows: Any, keys: Sequence[int], *rest: Any, **named: Any) -> Any:
        drawn.append((id(policy), tuple(keys)))
        return sample(policy, prompts, rows, keys, *rest, **named)

    monkeypatch.setattr(local_module, "sample", counted)
    swarm = build_mixed("control", **SHARED)
    for number in (1, 2):
        swarm.round(number)
    assert len(drawn) == 4, "one sampling pass a class and round"
    keys = [key for _, part in drawn for key in part]
    assert len(keys) == len(set(keys)) == 64, "and one draw for every slot"


def test_no_prompt_is_run_twice_with_the_same_weights(build_mixed: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    prefill = Policy.prefill

    def counted(self: Policy, prompts: Sequence[Sequence[int]]) -> Any:
        passes.append(id(self))
        return prefill(self, prompts)

    monkeypatch.setattr(Policy, "prefill", counted)
    swarm = build_mixed("control")
    swarm.round(1)
    assert sorted(passes) == sorted(id(cohort.policy) for cohort in swarm.population.cohorts), (
        "sampling, inspection and update share one pass over the prompts in each cohort"
    )


def test_log_probs_are_recomputed_once(build_mixed: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, Any]] = []

    class Counted(ForwardCache):
        def chunks(self, answers: Any) -> Any:
            wanted = list(answers)
            read.extend((id(self.policy), answer) for answer in dict.fromkeys(wanted))
            return super().chunks(wanted)

    monkeypatch.setattr(exchange, "ForwardCache", Counted)
    attack = Adaptive(Text("hail to all", "start"), budget=8)
    swarm = build_mixed(attack=attack, defense=Refuses(), logprobs="recomputed", **SHARED)
    swarm.round(1)
    asked = swarm.population.of(3).policy.decode([ids for _, (_, ids) in read])
    assert any("hail to all" in text for text in asked), "the attacker asks about what it does not offer in the end"
    assert len(read) == len(set(read)), "however often the defense is asked, no completion is read twice for it"
