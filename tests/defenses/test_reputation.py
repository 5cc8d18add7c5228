"""`reputation`: which senders are excluded, and for how long."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from tests.defenses.pools import actions, offer, view
from thiefbench import registry
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, PoolCompletion, Verdict
from thiefbench.defenses.reputation import Reputation
from thiefbench.registry import SpecStringError


class Objects(Defense):
    """Rejects (or masks) completions that contain "bad"."""

    name = "objects"
    verdict = Verdict("zero")

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [self.verdict if "bad" in offered.text else ACCEPT for offered in view.completions]


class Masks(Objects):
    verdict = Verdict("accept", token_weights=(0.0, 1.0))


def pool(bad: dict[str, int], count: int = 20, reward: float = 1.0) -> list[PoolCompletion]:
    """`count` completions of each sender, of which the given number is bad."""
    return [
        offer("bad" if i < number else "good", sender, reward=reward)
        for sender, number in bad.items()
        for i in range(count)
    ]


def dropped(defense: Reputation, bad: dict[str, int], number: int, **changes: float) -> set[str]:
    """The senders whose completions are all dropped in a round."""
    completions = pool(bad, **changes)  # type: ignore[arg-type]
    verdicts = defense.inspect(view(completions, number=number))
    kept = {o.sender for o, verdict in zip(completions, verdicts, strict=True) if verdict.action != "drop"}
    return set(bad) - kept


def test_a_bad_sender_is_sent_away_for_some_rounds_and_again() -> None:
    defense = Reputation(Objects(), rounds=3)
    bad = {"a": 1, "b": 1, "c": 0, "m": 12}
    assert [dropped(defense, bad, number) for number in (1, 2, 3)] == [{"m"}] * 3
    assert dropped(defense, bad, 4) == {"m"}, "a sender that continues is excluded again"
    better = bad | {"m": 0}
    assert [dropped(defense, better, number) for number in range(5, 8)] == [{"m"}, {"m"}, set()], (
        "a sender that improves comes back"
    )


def test_few_rejections_a_round_add_up() -> None:
    defense = Reputation(Objects())
    sent = [dropped(defense, {"a": 0, "b": 0, "c": 1, "m": 4}, number) for number in range(1, 7)]
    assert sent[0] == set(), "one round is not enough"
    assert sent[-1] == {"m"}


def test_a_defense_that_rejects_everybody_alike_sends_nobody_away() -> None:
    defense = Reputation(Objects())
    for number in range(1, 30):
        assert dropped(defense, {"a": 5, "b": 6, "c": 4, "d": 5}, number) == set()


def test_only_rewarded_completions_count() -> None:
    assert dropped(Reputation(Objects()), {"a": 0, "b": 0, "m": 20}, 1, reward=0.0) == set()


def test_a_mask_counts_as_an_objection() -> None:
    assert dropped(Reputation(Masks()), {"a": 0, "b": 0, "m": 15}, 1) == {"m"}


def test_others_keep_the_inner_verdicts() -> None:
    completions = pool({"a": 1, "b": 0, "m": 20})
    verdicts = Reputation(Objects()).inspect(view(completions))
    assert actions(verdicts[:40]) == ["zero", *["accept"] * 39]
    assert verdicts[-1].reason == "its sender is sent away for 10 more rounds"


def test_state_goes_by_way_of_json() -> None:
    one = Reputation(Objects())
    dropped(one, {"a": 0, "b": 0, "m": 20, "n": 2}, 1)
    other = Reputation(Objects())
    other.restore(json.loads(json.dumps(one.state())))
    assert (other.state(), other.until) == (one.state(), {"m": 10})


def test_the_inner_defense_is_a_spec_string() -> None:
    made = registry.make("defense", "reputation(defense='arithmetic+similarity(words=3)', rounds=5)")
    assert [part.name for part in made.defense.parts] == ["arithmetic", "similarity"]
    assert registry.canonical("defense", "reputation( defense='logit(reject=\"zero\")' )") == "reputation"
    assert registry.make("defense", "reputation").requires == {"homogeneous"}, (
        "it requires what the inner defense requires"
    )
    hashes = {registry.source_hash("defense", f"reputation(defense='{inner}')") for inner in ("logit", "arithmetic")}
    assert len(hashes) == 2, "the inner defense's source counts"
    for spec, told in (
        ("reputation(defense='lgit')", "there is no defense named 'lgit'; did you mean logit"),
        ("reputation(defense=3)", "defense is a spec string such as 'logit', not 3"),
        ("reputation(rounds=0)", "rounds is at least 1"),
    ):
        with pytest.raises(SpecStringError) as error:
            registry.make("defense", spec)
        assert told in str(error.value)
    with pytest.raises(TypeError, match=r"thiefbench.registry.make makes one of 'logit'"):
        Reputation("logit")


def test_it_hands_on_what_the_inner_defense_needs() -> None:
    asking = registry.make("defense", "reputation(defense='judge')")
    assert "judge" in asking.requires
    assert asking.judge == registry.make("defense", "judge").judge
    states = np.random.default_rng(0).normal(size=(40, 32)).astype(np.float32)
    proving = registry.make("defense", "reputation(defense='toploc')")
    assert proving.prove(states) == registry.make("defense", "toploc").prove(states)
