"""`a+b`: whose reason is given, which verdict wins, and where a + belongs to something else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.defenses.pools import offer, view
from thiefbench import registry
from thiefbench.defenses.anchors import Oracle, Random
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, LabelledView, Verdict
from thiefbench.defenses.composed import Composed
from thiefbench.defenses.logit import Logit
from thiefbench.registry import SpecStringError
from thiefbench.suite.analysis.line_scores import label_notes


class Says(Defense):
    """Gives the same verdict on everything, and counts its rounds."""

    def __init__(self, name: str, verdict: Verdict) -> None:
        self.name = name  # type: ignore[misc]
        self.verdict, self.rounds = verdict, 0

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.rounds += 1
        return [self.verdict] * len(view.completions)

    def state(self) -> dict[str, Any]:
        return {"rounds": self.rounds} if self.rounds else {}

    def restore(self, state: dict[str, Any]) -> None:
        self.rounds = state.get("rounds", 0)


ONE = view([offer("one two")])


def joined(*verdicts: Verdict) -> Verdict:
    return Composed([Says(name, verdict) for name, verdict in zip("abc", verdicts, strict=False)]).inspect(ONE)[0]


def test_all_must_accept_and_the_first_that_rejects_speaks() -> None:
    zero, drop = Verdict("zero", 1.0, reason="long"), Verdict("drop", 2.0, reason="odd")
    assert joined(ACCEPT, ACCEPT) == ACCEPT
    assert joined(ACCEPT, zero) == Verdict("zero", 1.0, reason="b: long"), "one part is enough to reject"
    assert joined(zero, drop) == Verdict("drop", 1.0, reason="a: long"), (
        "drop wins; the reason is that of the first part that rejects"
    )
    assert joined(drop, zero) == Verdict("drop", 2.0, reason="a: odd")
    assert joined(Verdict(score=0.1), Verdict("zero")) == Verdict("zero", reason="b"), (
        "without a reason there is only the name"
    )


def test_token_weights_multiply() -> None:
    half, first = Verdict(token_weights=(0.5, 0.5, 1.0), reason="x"), Verdict(token_weights=(0.0, 1.0, 1.0))
    assert joined(half, first) == Verdict(token_weights=(0.0, 0.5, 1.0), reason="a: x")
    assert joined(ACCEPT, first).token_weights == (0.0, 1.0, 1.0)
    assert joined(half, Verdict("drop")).action == "drop", "a part that rejects comes before one that masks"


def test_requirements_and_labels_are_any_part_s() -> None:
    class Watches(Says):
        def inspect(self, view: DefenderView) -> Sequence[Verdict]:
            assert type(view) is DefenderView, "only parts that see labels get them"
            return super().inspect(view)

    both = Composed([Watches("w", ACCEPT), Oracle()])
    assert (both.sees_labels, both.requires) == (True, frozenset())
    labelled = LabelledView(**vars(ONE), payload=(True,))
    assert both.inspect(labelled)[0].reason == "oracle: labelled as payload"
    assert Composed([Random(), Logit()]).requires == {"homogeneous"}
    assert label_notes("none+oracle") == label_notes("oracle") != label_notes("none+logit")


def test_each_part_keeps_its_own_state() -> None:
    both = Composed([Says("a", ACCEPT), Says("b", ACCEPT)])
    assert both.state() == {}, "parts without state have no joint state"
    both.inspect(ONE)
    again = Composed([Says("a", ACCEPT), Says("b", ACCEPT)])
    again.restore(both.state())
    assert [part.rounds for part in again.parts] == [1, 1]  # type: ignore[attr-defined]
    again.restore({})


def test_an_error_names_the_part() -> None:
    class Fails(Says):
        name: ClassVar[str] = "fails"

        def inspect(self, view: DefenderView) -> Sequence[Verdict]:
            raise KeyError("gone")

    class Few(Says):
        def inspect(self, view: DefenderView) -> Sequence[Verdict]:
            return []

    for part, told in (
        (Fails("fails", ACCEPT), "fails: KeyError: 'gone'"),
        (Few("few", ACCEPT), "few: 0 verdicts for 1 completions"),
        (Says("short", Verdict(token_weights=(1.0,))), "short: 1 token weights for 3 tokens"),
        (Says("odd", "accept"), "odd: 'accept' is no Verdict"),  # type: ignore[arg-type]
    ):
        with pytest.raises(RuntimeError) as error:
            Composed([Says("fine", ACCEPT), part]).inspect(ONE)
        assert told in str(error.value), "the message names the part that failed"
    with pytest.raises(ValueError, match="two or more"):
        Composed([Logit()])


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("logit", ["logit"]),
        ("logit+blacklist", ["logit", "blacklist"]),
        (" logit + random(rate=0.5) ", ["logit", "random(rate=0.5)"]),
        ("own.py:Mine+logit", ["own.py:Mine", "logit"]),
        ("logit+own.py:Mine(a=1)", ["logit", "own.py:Mine(a=1)"]),
        ("my+dir/own.py:Mine+logit", ["my+dir/own.py:Mine", "logit"]),
        ("./logit+x/own.py:Mine", ["./logit+x/own.py:Mine"]),
        ("own.py:Mine(a='x+y', b=[1, '+'])+logit", ["own.py:Mine(a='x+y', b=[1, '+'])", "logit"]),
        ("own.py:Mine(a='it\\'s) + (')+none", ["own.py:Mine(a='it\\'s) + (')", "none"]),
        ("reputation(defense='logit+blacklist')", ["reputation(defense='logit+blacklist')"]),
    ],
)
def test_where_a_plus_separates(spec: str, parts: list[str]) -> None:
    assert registry.parts("defense", spec) == parts


def test_the_registry_makes_orders_and_hashes_all_parts() -> None:
    made = registry.make("defense", "random(rate=0.5)+logit(reject='drop')")
    assert isinstance(made, Composed)
    assert (made.name, made.parts[0].rate) == ("random+logit", 0.5)  # type: ignore[attr-defined]
    canonical = registry.canonical("defense", " random(rate=0.25)+  logit( reject='zero')")
    assert canonical == "random+logit", "each part is put in canonical form, and the order stays"
    hashes = [registry.source_hash("defense", spec) for spec in ("random+logit", "logit+random", "random", "logit")]
    assert len(set(hashes)) == 4, "all parts, in their order, are the source"


def test_a_user_s_part_counts_in_the_source_hash(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("from thiefbench.defenses.anchors import AcceptAll\n\nclass Mine(AcceptAll):\n    pass\n")
    before = registry.source_hash("defense", f"none+{own}:Mine")
    own.write_text(own.read_text() + "# changed\n")
    assert registry.source_hash("defense", f"none+{own}:Mine") != before


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
    [
        ("attack", "text+dos", "only defenses compose with +; write each attack as a spec of its own, not 'text+dos'"),
        ("task", "gsm8k+gsm_micro", "only defenses compose with +"),
        ("defense", "logit+", "write a defense on both sides of a +"),
        ("defense", "+logit", "write a defense on both sides of a +"),
        ("defense", "logit+rndom", "there is no defense named 'rndom'; did you mean random"),
        ("defense", "logit+random(rate=3)", "random: rate must lie in [0, 1], got 3"),
        ("defense", "logit+random(", "malformed defense spec"),
        ("defense", "seed_replay(reject='accept')", "seed_replay: reject must be one of zero, drop, not 'accept'"),
        ("defense", "toploc(reject='accept')", "toploc: reject must be one of zero, drop, not 'accept'"),
        ("defense", "toploc+toploc(mean=1.0)", "one part at most can require proofs"),
        ("defense", "judge+judge(model='other')", "parts that ask a judge must ask the same one"),
    ],
)
def test_mistakes_are_one_sentence(kind: registry.Kind, spec: str, message: str) -> None:
    with pytest.raises(SpecStringError) as error:
        registry.make(kind, spec)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_what_a_part_needs_from_senders_and_judges_the_whole_needs() -> None:
    made = registry.make("defense", "logit+toploc+judge")
    assert {"homogeneous", "proofs", "judge"} <= made.requires
    assert made.judge == registry.make("defense", "judge").judge
    states = np.random.default_rng(0).normal(size=(40, 32)).astype(np.float32)
    assert made.prove(states) == registry.make("defense", "toploc").prove(states), "the proof of that one part is sent"
