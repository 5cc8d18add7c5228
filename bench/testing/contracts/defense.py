"""The rules for every defense, as a test class."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, get_args

from thiefbench.defenses.answer_keys import ANSWER_KEYS, KeyedView
from thiefbench.defenses.base import DefenderView, Defense, LabelledView, PoolCompletion, Requirement, Verdict
from thiefbench.defenses.rule_rewards import RULE_REWARDS
from thiefbench.defenses.skipping import ACTIONS
from thiefbench.testing.contracts.pools import fresh, hostile, labelled, swarm, views
from thiefbench.testing.contracts.subjects import made


class DefenseContract:
    """Subclass it as ``class TestMine(DefenseContract)``; every rule is one test.

    The defense judges two rounds of a small attacked swarm of the built-in math model, and completions that strangers
    may send. To leave out a rule that does not apply to a defense, set it to None.

    Attributes:
        defense: a spec string, as "my_defense.py:Mine(level=2)", also several joined by +, or the class itself.
    """

    defense: ClassVar[str | type[Defense]]

    def make(self) -> Defense:
        """A fresh defense at every call; override this if neither a spec string nor a class is enough."""
        defense: Defense = made(self, "defense")
        return defense

    def test_it_has_a_name_and_known_requirements(self) -> None:
        """Reports use the name; swarms must meet the requirements."""
        defense, known = self.make(), {*get_args(Requirement), ANSWER_KEYS, RULE_REWARDS}
        assert isinstance(defense, Defense), "a defense derives from thiefbench.defenses.base.Defense"
        assert isinstance(getattr(defense, "name", None), str), "a defense has a name"
        assert set(defense.requires) <= known, f"a defense requires nothing but {', '.join(sorted(known))}"
        assert ("judge" in defense.requires) == (defense.judge is not None), (
            "who requires a judge names one, and else none"
        )

    def test_one_verdict_per_completion(self) -> None:
        """They are in the view's order, with valid values."""
        for view in views(self.make):
            _check_verdicts(view.completions, list(self.make().inspect(fresh(view))))

    def test_an_empty_pool_is_nothing_to_judge(self) -> None:
        """A round may have no completions."""
        view = views(self.make)[0]
        empty = fresh(view, completions=(), items={}, history=(), **labelled(view, ()))
        assert list(self.make().inspect(empty)) == [], "an empty pool gets no verdicts and raises nothing"

    def test_hostile_completions_do_not_raise(self) -> None:
        """A sender could otherwise stop the swarm by making the filter fail."""
        view = views(self.make)[0]
        pool = hostile(view)
        try:
            verdicts = list(self.make().inspect(fresh(view, completions=pool, **labelled(view, [True] * len(pool)))))
        except Exception as error:
            raise AssertionError("empty, huge and malformed completions are judged like all others") from error
        _check_verdicts(pool, verdicts)

    def test_equal_views_get_equal_verdicts(self) -> None:
        """They must not depend on a clock or a global random generator."""
        for view in views(self.make):
            first, second = (list(self.make().inspect(fresh(view))) for _ in range(2))
            assert first == second, "equal views get equal verdicts: every node of a cohort must reach the same"

    def test_order_changes_no_verdict(self) -> None:
        """The pool is shuffled with the same `view.rng`: the position carries no information."""
        view = views(self.make)[0]
        straight = list(self.make().inspect(fresh(view, rng=random.Random(99))))
        order = random.Random(3).sample(range(len(view.completions)), len(view.completions))
        labels = [view.payload[i] for i in order] if isinstance(view, LabelledView) else []
        pool = tuple(view.completions[i] for i in order)
        shuffled = fresh(view, completions=pool, rng=random.Random(99), **labelled(view, labels))
        for i, verdict in zip(order, self.make().inspect(shuffled), strict=True):
            known = straight[i]
            assert verdict.action == known.action, "a completion's verdict does not depend on its place in the pool"
            assert (verdict.score is None) == (known.score is None), "neither does whether it has a score"
            if verdict.score is not None and known.score is not None:
                assert math.isclose(verdict.score, known.score, rel_tol=1e-3, abs_tol=1e-9), "neither does its score"

    def test_pseudonyms_change_no_verdict(self) -> None:
        """They only identify a sender within a run; their text has no meaning."""
        defenses = self.make(), self.make()
        for view in views(self.make):
            other = {offered.sender: f"{number:08x}" for number, offered in enumerate(view.completions)}
            history = tuple(replace(past, completions=_renamed(past.completions, other)) for past in view.history)
            renamed = fresh(view, completions=_renamed(view.completions, other), history=history)
            first, second = (list(d.inspect(v)) for d, v in zip(defenses, (fresh(view), renamed), strict=True))
            assert [v.action for v in first] == [v.action for v in second], "what a pseudonym reads says nothing"
            assert [v.token_weights for v in first] == [v.token_weights for v in second], "neither about any token"

    def test_state_survives_a_restart(self) -> None:
        """A killed run resumes from its checkpoint."""
        first, second = views(self.make)
        running = self.make()
        running.inspect(fresh(first))
        try:
            stored = json.loads(json.dumps(running.state(), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise AssertionError("state gives JSON: text, finite numbers, lists and dictionaries") from error
        restarted = self.make()
        restarted.restore(stored)
        assert restarted.state() == running.state(), "restore takes back what state gave, by way of JSON"
        verdicts = [list(defense.inspect(fresh(second))) for defense in (running, restarted)]
        assert verdicts[0] == verdicts[1], "a restarted defense goes on as if it had never stopped"

    def test_only_benchmark_rows_get_labels(self) -> None:
        """A defense that declares sees_labels cannot be submitted."""
        defense = self.make()
        seen: list[DefenderView] = []
        inspect = defense.inspect

        def watch(view: DefenderView) -> Sequence[Verdict]:
            seen.append(view)
            return inspect(view)

        defense.inspect = watch  # type: ignore[method-assign]
        record = swarm(defense).round(1)
        (view,) = seen
        if defense.sees_labels:
            assert isinstance(view, LabelledView), "a defense that sees labels gets a LabelledView"
            truth = {(row.group, row.place): row.payload for row in record.rows}
            labels = {(o.group, o.index): label for o, label in zip(view.completions, view.payload, strict=True)}
            assert labels == truth, "the labels are the truth, in the order of the completions"
            assert any(view.payload), "the test's pool holds poison"
        else:
            assert type(view) in (DefenderView, KeyedView), "a defense that does not declare sees_labels gets no labels"


def _renamed(completions: Sequence[PoolCompletion], names: dict[str, str]) -> tuple[PoolCompletion, ...]:
    return tuple(replace(offered, sender=names[offered.sender]) for offered in completions)


def _check_verdicts(pool: Sequence[PoolCompletion], verdicts: Sequence[Verdict]) -> None:
    """One per completion, of sound types.

    Raises:
        AssertionError: a rule is broken; the message states it.
    """
    assert len(verdicts) == len(pool), "inspect gives one verdict per completion, in the view's order"
    for offered, verdict in zip(pool, verdicts, strict=True):
        assert isinstance(verdict, Verdict), "inspect gives verdicts"
        assert verdict.action in ACTIONS, f"a verdict's action is one of {', '.join(ACTIONS)}"
        finite = isinstance(verdict.score, float) and math.isfinite(verdict.score)
        assert verdict.score is None or finite, "a score is a finite float or None"
        assert isinstance(verdict.reason, str), "a reason is text"
        weights = verdict.token_weights
        if weights is not None:
            assert isinstance(weights, tuple), "token weights are a tuple"
            assert len(weights) == offered.length, "there is one weight per token, EOS included when it ended"
            assert all(isinstance(w, float) and 0 <= w <= 1 for w in weights), "weights are floats in [0, 1]"
