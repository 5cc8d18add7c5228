from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest

from thiefbench.engine.heterogeneity import (
    LATER,
    WITHIN,
    ChurnSpec,
    DelaySpec,
    NodeClass,
    SharingSpec,
    SpecError,
    classes_of,
    plain,
)
from thiefbench.engine.spec import LearnerSpec, SwarmSpec

HONEST = [0, 1, 2]


@dataclass(frozen=True)
class Inner:
    old: int = 1
    new: float = field(default=2.0, metadata=LATER)


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    parts: tuple[Inner, ...] = (Inner(), Inner(new=3.0))
    names: list[str] = field(default_factory=lambda: ["a"])
    later: Inner | None = field(default=None, metadata=LATER)


def test_plain_leaves_out_later_fields_at_their_defaults_only() -> None:
    made = plain(Outer())
    assert made == {"inner": {"old": 1}, "parts": ({"old": 1}, {"old": 1, "new": 3.0}), "names": ["a"]}, (
        "a field that came later is named only where it has another value, in nested specs as well"
    )
    assert plain(Outer(later=Inner()))["later"] == {"old": 1}, "a spec that is there differs from None"


def test_plain_of_a_swarm_is_what_it_was_before_there_were_regimes() -> None:
    known = asdict(SwarmSpec())
    for name in ("population", "logprobs", "delay", "churn", "sharing", "items", "truth", "control_tokens", "reward",
                 "reward_judge"):  # fmt: skip
        del known[name]
    for name in ("epsilon_high", "ratio_cap", "kl_gate", "delta"):
        del known["learner"][name]
    assert plain(SwarmSpec()) == known, "an identity of a released cell names nothing that came later"
    assert list(plain(SwarmSpec())) == list(known), "in the same order"


@pytest.mark.parametrize(
    "change",
    [
        {"delay": DelaySpec()},
        {"delay": DelaySpec(rounds=2)},
        {"delay": DelaySpec("lognormal", rounds=8)},
        {"delay": DelaySpec(rounds=2, limit=1)},
        {"churn": ChurnSpec()},
        {"churn": ChurnSpec((1,))},
        {"churn": ChurnSpec((1,), recovery="neighbours")},
        {"churn": ChurnSpec((1,), tolerance=0.5)},
        {"population": (NodeClass("a", 1.0),)},
        {"population": (NodeClass("a", 0.5), NodeClass("b", 0.5))},
        {"logprobs": "reported"},
        {"logprobs": "recomputed"},
        {"sharing": SharingSpec(), "topology": "vertical"},
        {"sharing": SharingSpec(per_sender=1), "topology": "vertical"},
        {"learner": LearnerSpec(kl_gate=49.0)},
        {"learner": LearnerSpec(delta=4.0)},
        {"control_tokens": "excluded"},
    ],
    ids=str,
)
def test_whatever_is_changed_changes_the_identity(change: dict[str, Any]) -> None:
    base = SwarmSpec(topology=change.get("topology", "horizontal"))
    assert plain(replace(base, **change)) != plain(base), "two cells that differ have two identities"


def population(*shares: float) -> tuple[NodeClass, ...]:
    return tuple(NodeClass("abcdef"[k], share) for k, share in enumerate(shares))


@pytest.mark.parametrize(
    ("shares", "nodes", "dealt"),
    [
        ((), 3, "aaa"),
        ((1.0,), 3, "aaa"),
        ((0.5, 0.5), 4, "abab"),
        ((0.5, 0.5), 5, "ababa"),  # the remainders are equal: the first class gets the odd node
        ((0.75, 0.25), 4, "aaba"),
        ((0.25, 0.75), 4, "babb"),
        ((1 / 3, 1 / 3, 1 / 3), 3, "abc"),
        ((1 / 3, 1 / 3, 1 / 3), 6, "abcabc"),
        ((0.4, 0.3, 0.3), 4, "abca"),
    ],
)
def test_classes_are_dealt_by_share_and_in_turn(shares: tuple[float, ...], nodes: int, dealt: str) -> None:
    made = "".join("abc"[kind] for kind in classes_of(population(*shares), nodes))
    assert sorted(made) == sorted(dealt), "as many of each as its share says, the largest remainders rounded up"
    assert made == dealt, "node by node the class that lies furthest behind what it is due"


def test_shares_are_kept_by_every_number_of_nodes() -> None:
    for shares in ((0.5, 0.5), (0.7, 0.2, 0.1), (0.34, 0.33, 0.33), (0.9, 0.1)):
        for nodes in range(10, 65):
            counts = Counter(classes_of(population(*shares), nodes))
            assert sum(counts.values()) == nodes
            for kind, share in enumerate(shares):
                assert abs(counts[kind] - share * nodes) < 1, "a class has its share, rounded up or down"


@pytest.mark.parametrize(
    ("shares", "nodes", "why"),
    [
        ((0.5, 0.4), 4, "add up to 1, got 0.9"),
        ((0.9, 0.1), 2, "2 nodes are too few for a share of 0.1 of b; add nodes"),
        ((0.25,) * 4, 3, "too few"),
    ],
)
def test_a_population_that_cannot_be_dealt_is_refused(shares: tuple[float, ...], nodes: int, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        classes_of(population(*shares), nodes)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: NodeClass("", 0.5), "needs a model"),
        (lambda: NodeClass("a", 0.0), "share"),
        (lambda: NodeClass("a", 1.5), "share"),
        (lambda: NodeClass("a", float("nan")), "share"),
        (lambda: DelaySpec("linear"), "delay.kind must be constant or lognormal, got 'linear'"),  # type: ignore[arg-type]
        (lambda: DelaySpec(rounds=-1), "delay.rounds"),
        (lambda: DelaySpec(rounds=2, limit=-1), "delay.limit"),
        (lambda: DelaySpec("lognormal", rounds=0), "1 <= least <= rounds; got 1 and 0"),
        (lambda: DelaySpec("lognormal", rounds=3, least=4), "got 4 and 3"),
        (lambda: ChurnSpec((0,)), "counted from 1, got 0"),
        (lambda: ChurnSpec(down=0), "churn.down"),
        (lambda: ChurnSpec(tolerance=-0.1), "churn.tolerance must be at least 0 and finite, got -0.1"),
        (lambda: ChurnSpec(tolerance=float("nan")), "churn.tolerance"),
        (lambda: ChurnSpec(recovery="all"), "churn.recovery must be peer or neighbours"),  # type: ignore[arg-type]
        (lambda: SharingSpec(local=0), "sharing.local must be at least 1"),
        (lambda: SharingSpec(external=-1), "sharing.external"),
        (lambda: SharingSpec(per_sender=0), "sharing.per_sender"),
        (lambda: SwarmSpec(sharing=SharingSpec()), "vertical"),
        (lambda: SwarmSpec(logprobs="told"), "logprobs must be one of none, reported, recomputed"),  # type: ignore[arg-type]
        (lambda: SwarmSpec(learner=LearnerSpec(loss="ftis")), "set logprobs: reported or recomputed"),
        (lambda: SwarmSpec(population=population(0.5, 0.4)), "add up to 1"),
        (lambda: SwarmSpec(population=(NodeClass("a", 1.0, domain="x"),)), "domains need the vertical one"),
    ],
)
def test_what_makes_no_swarm_is_refused_in_one_sentence(made: Any, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        made()


def test_a_class_is_called_by_its_model_and_domain() -> None:
    assert NodeClass("Qwen/Qwen2.5-0.5B", 1.0).label == "Qwen2.5-0.5B"
    assert NodeClass("models/tiny/", 1.0, domain="money").label == "tiny on money"


def test_a_constant_delay_never_reaches_before_the_first_weights() -> None:
    delay = DelaySpec(rounds=3)
    lags = [delay.lag(1, number, node=2) for number in range(1, 8)]
    assert lags == [0, 1, 2, 3, 3, 3, 3], "round n's oldest weights are version 0, n - 1 rounds back"


def test_lognormal_delays_lie_where_the_paper_has_them() -> None:
    delay, draws = DelaySpec("lognormal", rounds=32, least=1), 20_000
    lags = Counter(delay.lag(seed, 1_000, node) for seed in range(draws // 8) for node in range(8))
    assert set(lags) <= set(range(33)), "what falls beyond `rounds` is cut there"
    # Before rounding and cutting, (1 - WITHIN) / 2 lie below `least`; rounded down to 0 are only those below a half.
    middle = sum(count for lag, count in lags.items() if lag < 6) / draws
    assert abs(middle - 0.5) < 0.05, f"the median is the geometric mean of 1 and 32, 5.66; below 6 were {middle}"
    whole = DelaySpec("lognormal", rounds=32_000, least=1_000)  # rounding hardly counts here
    far = Counter(
        "below" if lag < 1_000 else "cut" if lag == 32_000 else "between"
        for seed in range(draws // 8)
        for lag in (whole.lag(seed, 10**6, node) for node in range(8))
    )
    for side in ("below", "cut"):
        share, expected = far[side] / draws, (1 - WITHIN) / 2
        off = 4 * math.sqrt(expected / draws)
        assert abs(share - expected) < off, f"{expected:.4f} of the delays lie {side} the 99.5 %, got {share:.4f}"


def test_delays_are_keyed_and_limited() -> None:
    delay = DelaySpec("lognormal", rounds=16)
    drawn = [[delay.lag(seed, number, node) for number in range(1, 60) for node in range(4)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2], "the seed, the round and the node draw a delay, and nothing else does"
    alike = [[delay.lag(1, number, node) for number in range(20, 60)] for node in (0, 1)]
    assert alike[0] != alike[1], "every node has its own"
    limited = replace(delay, limit=4)
    for number in range(1, 60):
        assert limited.lag(1, number, 0) == min(delay.lag(1, number, 0), 4), (
            "who is too far behind waits for newer ones"
        )
    assert limited.longest == 4
    assert delay.longest == 16
    assert DelaySpec(rounds=5, limit=0).lag(1, 9, 0) == 0, "a limit of 0 is the synchronous swarm"


def test_a_crashed_node_is_away_and_comes_back() -> None:
    churn = ChurnSpec(crashes=(3,), down=2)
    away = {number: churn.away(1, HONEST, number) for number in range(1, 8)}
    (node,) = away[3]
    assert [number for number in away if away[number]] == [3, 4], "it is away from the crash on, `down` rounds"
    assert all(away[number] in ({node}, set()) for number in away)
    assert {number: churn.back(1, HONEST, number) for number in range(1, 8) if churn.back(1, HONEST, number)} == {
        5: [node]
    }, "and returns in the round behind them"


def test_the_seed_draws_who_crashes() -> None:
    churn = ChurnSpec(crashes=(2,), down=1)
    drawn = Counter(node for seed in range(300) for node in churn.away(seed, HONEST, 2))
    assert set(drawn) == set(HONEST)
    assert min(drawn.values()) > 60, f"every honest node has the same chance: {drawn}"


@pytest.mark.parametrize("honest", [[0], [0, 1], [0, 1, 2], [4, 7, 9, 11]])
def test_one_honest_node_always_stays(honest: list[int]) -> None:
    churn = ChurnSpec(crashes=(1, 1, 2, 2, 3, 3, 3, 4, 5, 8), down=4)
    for seed in range(20):
        for number in range(1, 15):
            away, back = churn.away(seed, honest, number), churn.back(seed, honest, number)
            assert away < set(honest), "not all of them are away"
            assert len(back) == len(set(back)), "nobody returns twice in a round"
            before = churn.away(seed, honest, number - 1)
            assert set(back) - away == before - away, "who is not away any more has just returned"
            assert set(back) <= before, "and nobody returns who was not away"


def test_overlapping_crashes_take_another_node() -> None:
    churn = ChurnSpec(crashes=(1, 2), down=5)
    for seed in range(20):
        assert len(churn.away(seed, HONEST, 2)) == 2, "a node that is away cannot crash"


def owners(*counts: int) -> dict[int, int]:
    """So many groups of each node, one after the other."""
    return dict(enumerate(node for node, count in enumerate(counts) for _ in range(count)))


def test_a_node_takes_its_own_groups_and_some_of_the_others() -> None:
    groups = owners(4, 4, 4)
    for seed in range(50):
        taken = SharingSpec(local=3, external=2).taken(seed, 1, 1, groups)
        assert Counter(groups[group] == 1 for group in taken) == {True: 3, False: 2}, "I of its own and J of others"


def test_the_others_groups_are_drawn_uniformly() -> None:
    groups, draws = owners(2, 2, 8), 3_000
    taken = Counter(group for seed in range(draws) for group in SharingSpec(2, 3).taken(seed, 4, 0, groups))
    assert taken[0] == taken[1] == draws, "its own two it always takes"
    for group in range(2, 12):
        off = 4 * math.sqrt(0.3 * 0.7 / draws)
        assert abs(taken[group] / draws - 0.3) < off, "each of the ten others with the same chance, whoever offers it"


def test_a_cap_holds_per_sender_and_leaves_room_to_others() -> None:
    groups = owners(2, 2, 8)
    for seed in range(50):
        taken = SharingSpec(2, 4, per_sender=2).taken(seed, 1, 0, groups)
        assert Counter(groups[group] for group in taken) == {0: 2, 1: 2, 2: 2}, "at most two of each other sender"
        fewer = SharingSpec(2, 4, per_sender=1).taken(seed, 1, 0, groups)
        assert Counter(groups[group] for group in fewer) == {0: 2, 1: 1, 2: 1}, "fewer where the cap lets through fewer"


def test_fewer_groups_than_wanted_are_all_taken() -> None:
    groups = owners(1, 2)
    assert SharingSpec(local=5, external=5).taken(0, 1, 0, groups) == {0, 1, 2}
    assert SharingSpec(local=5, external=0).taken(0, 1, 0, groups) == {0}, "J = 0 is training alone"


def test_what_is_taken_is_keyed_by_seed_round_and_node() -> None:
    groups, spec = owners(8, 8, 8), SharingSpec(4, 4)
    at = (1, 1, 0)
    assert spec.taken(*at, groups) == spec.taken(*at, dict(reversed(groups.items()))), "not by the order of the groups"
    for other in ((2, 1, 0), (1, 2, 0)):
        assert spec.taken(*other, groups) != spec.taken(*at, groups)
