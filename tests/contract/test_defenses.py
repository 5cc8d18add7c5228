"""Every registered defense keeps the contract. A defense's author can call `check_defense` on an own defense."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
import torch

from tests.bench import tiny
from thiefbench import registry
from thiefbench.attacks.base import Attack
from thiefbench.defenses.base import ACCEPT, Action, DefenderView, Defense, LabelledView, Offered, Requirement, Verdict
from thiefbench.engine.policy import Policy
from thiefbench.engine.spec import Role
from thiefbench.engine.swarm import Swarm
from thiefbench.tasks.base import Item, Task

SEED = 123_456_789
Make = Callable[[], Defense]


class Spy(Defense):
    """Accepts everything and keeps the views it was given."""

    name = "spy"

    def __init__(self) -> None:
        self.views: list[DefenderView] = []

    def inspect(self, view: DefenderView) -> list[Verdict]:
        self.views.append(replace(view, policy=copy.copy(view.policy)))
        return [ACCEPT] * len(view.completions)


class LabelledSpy(Spy):
    """A spy that sees the labels."""

    sees_labels = True


def one_verdict_per_completion(make: Make) -> None:
    for view in views(make):
        verdicts = list(make().inspect(fresh(view)))
        assert len(verdicts) == len(view.completions), "inspect gives one verdict per completion, in the view's order"
        for offered, verdict in zip(view.completions, verdicts, strict=True):
            check_verdict(offered, verdict)


def an_empty_pool_is_nothing_to_judge(make: Make) -> None:
    view = views(make)[0]
    labels = {"payload": ()} if isinstance(view, LabelledView) else {}
    empty = replace(fresh(view), completions=(), items={}, history=(), **labels)
    assert list(make().inspect(empty)) == [], "an empty pool gets no verdicts and raises nothing"


def hostile_completions_do_not_raise(make: Make) -> None:
    view = fresh(views(make)[0])
    pool = hostile(view)
    labels = {"payload": (True,) * len(pool)} if isinstance(view, LabelledView) else {}
    verdicts = list(make().inspect(replace(view, completions=pool, **labels)))
    assert len(verdicts) == len(pool), "empty, huge and malformed completions are judged like all others"
    for offered, verdict in zip(pool, verdicts, strict=True):
        check_verdict(offered, verdict)


def equal_views_get_equal_verdicts(make: Make) -> None:
    for view in views(make):
        first, second = (list(make().inspect(fresh(view))) for _ in range(2))
        assert first == second, "equal views get equal verdicts: every node of a cohort must reach the same"


def order_changes_no_verdict(make: Make) -> None:
    view = views(make)[0]
    rng = fresh(view).rng
    before = rng.getstate()
    straight = list(make().inspect(replace(fresh(view), rng=rng)))
    if rng.getstate() != before:
        return  # a defense that draws may give another completion the same draw
    order = random.Random(3).sample(range(len(view.completions)), len(view.completions))
    labels = {"payload": tuple(view.payload[i] for i in order)} if isinstance(view, LabelledView) else {}
    shuffled = replace(fresh(view), completions=tuple(view.completions[i] for i in order), **labels)
    for i, verdict in zip(order, make().inspect(shuffled), strict=True):
        assert verdict.action == straight[i].action, "a completion's verdict does not depend on its place in the pool"
        assert (verdict.score is None) == (straight[i].score is None), "neither does whether it has a score"
        if verdict.score is not None:
            assert verdict.score == pytest.approx(straight[i].score, rel=1e-3), "neither does its score"


def pseudonyms_change_no_verdict(make: Make) -> None:
    defenses = make(), make()
    for view in views(make):
        other = {o.sender: f"{number:08x}" for number, o in enumerate(view.completions)}
        renamed = replace(
            fresh(view), completions=tuple(replace(o, sender=other[o.sender]) for o in view.completions),
            history=tuple(replace(p, completions=tuple(replace(o, sender=other[o.sender]) for o in p.completions))
                          for p in view.history),
        )  # fmt: skip
        first, second = (list(d.inspect(v)) for d, v in zip(defenses, (fresh(view), renamed), strict=True))
        assert [v.action for v in first] == [v.action for v in second], "what a pseudonym reads says nothing"
        assert [v.token_weights for v in first] == [v.token_weights for v in second], "neither about any token"


def state_survives_a_restart(make: Make) -> None:
    first, second = views(make)
    running = make()
    running.inspect(fresh(first))
    stored = json.loads(json.dumps(running.state(), allow_nan=False))
    restarted = make()
    restarted.restore(stored)
    assert restarted.state() == running.state(), "restore takes back what state gave, by way of JSON"
    verdicts = [list(defense.inspect(fresh(second))) for defense in (running, restarted)]
    assert verdicts[0] == verdicts[1], "a restarted defense goes on as if it had never stopped"


def requirements_are_known(make: Make) -> None:
    known = set(get_args(Requirement))
    assert set(make().requires) <= known, f"a defense requires nothing but {', '.join(sorted(known))}"
    assert ("judge" in make().requires) == (make().judge is not None), "who requires a judge names one, and else none"


def only_benchmark_rows_get_labels(make: Make) -> None:
    defense, seen = make(), []
    inspect = defense.inspect

    def watch(view: DefenderView) -> Any:
        seen.append(view)
        return inspect(view)

    defense.inspect = watch  # type: ignore[method-assign]
    record = swarm(defense).round(1)
    (view,) = seen
    if defense.sees_labels:
        assert isinstance(view, LabelledView), "a defense that sees labels gets a LabelledView"
        truth = {(row.group, row.place): row.payload for row in record.rows}
        shown = {(o.group, o.index): label for o, label in zip(view.completions, view.payload, strict=True)}
        assert shown == truth, "the labels are the truth, in the order of the completions"
        assert any(view.payload), "the test's pool holds poison"
    else:
        assert type(view) is DefenderView, "a defense that does not declare sees_labels gets no labels"


def check_verdict(offered: Offered, verdict: Verdict) -> None:
    """The types of a verdict."""
    assert isinstance(verdict, Verdict), "inspect gives verdicts"
    assert verdict.action in get_args(Action), f"a verdict's action is one of {', '.join(get_args(Action))}"
    finite = isinstance(verdict.score, float) and math.isfinite(verdict.score)
    assert verdict.score is None or finite, "a score is a finite float or None"
    assert isinstance(verdict.reason, str), "a reason is text"
    if verdict.token_weights is not None:
        tokens = len(offered.ids) + offered.ended
        assert isinstance(verdict.token_weights, tuple), "token weights are a tuple"
        assert len(verdict.token_weights) == tokens, "there is one weight per token, EOS included when it ended"
        assert all(isinstance(w, float) and math.isfinite(w) for w in verdict.token_weights), (
            "weights are finite floats"
        )


CHECKS: list[Callable[[Make], None]] = [
    one_verdict_per_completion,
    an_empty_pool_is_nothing_to_judge,
    hostile_completions_do_not_raise,
    equal_views_get_equal_verdicts,
    order_changes_no_verdict,
    pseudonyms_change_no_verdict,
    state_survives_a_restart,
    requirements_are_known,
    only_benchmark_rows_get_labels,
]


def check_defense(make: Make) -> None:
    """Everything that a defense promises.

    Args:
        make: gives a fresh defense at every call.

    Raises:
        AssertionError: a rule is broken; the message states it.
    """
    for check in CHECKS:
        check(make)


def swarm(defense: Defense, role: Role = "attack") -> Swarm:
    """A real swarm of two nodes, one of them malicious, over a tiny model."""
    policy, task, attack = (
        Policy.load(tiny.model()),
        registry.make("task", tiny.TASK),
        registry.make("attack", tiny.ATTACK),
    )
    return Swarm(tiny.SWARM, role, policy, task, attack, defense, SEED, tiny.Answers())


@cache
def recorded(labels: bool) -> list[DefenderView]:
    """The views of two rounds, as a real swarm gave them."""
    spy = LabelledSpy() if labels else Spy()
    lived = swarm(spy)
    for number in (1, 2):
        lived.round(number)
    return spy.views


def views(make: Make) -> list[DefenderView]:
    """Two rounds' views of the kind that this defense gets."""
    return recorded(make().sees_labels)


def fresh(view: DefenderView) -> DefenderView:
    """An equal view whose generator and policy have not been used."""
    return replace(view, rng=random.Random(99), policy=copy.copy(view.policy))


def hostile(view: DefenderView) -> tuple[Offered, ...]:
    """Completions that a stranger may send."""
    one = view.completions[0]
    limit = view.sampling.max_new_tokens
    texts = (
        "",
        " ",
        "\x00\x1b[2J\r\n",
        "\ud800 lone \udfff",
        "\u202e\u200b\ufeff",
        "a" * 1_000_000,
        "(" * 10_000,
        "{}[]\\%n" * 99,
        "<code>\n" + "-" * 50_000 + "1\n</code>",
        "<code>\nx = " + "(" * 5_000 + "1" + ")" * 5_000 + "\n</code>",
        "<code>\nimport \x00\n</code>",
        "<code>\nx = " + " + ".join("1" * 20_000) + "\n</code>",
        "1 + 2 = " * 5_000,
        "1" * 100_000 + " / 0 = " + "9" * 100_000,
        "((" * 3_000 + "1" + ") * 2 = 3 " * 3_000,
        "\u0661 + \u0661 = \u0665 \u00bd + \u00b2 = \u2460",
        "1/" * 20_000 + "3 = 4",
        "word " * 20_000,
    )
    return (
        *(replace(one, text=text, index=i) for i, text in enumerate(texts)),
        replace(one, ids=(), text="", ended=True),
        replace(one, ids=(), text="", ended=False),
        replace(one, ids=(one.ids * limit)[: limit - 1], ended=True),
        replace(one, ids=(one.ids * limit)[:limit], ended=False),
        replace(one, ids=(0, 1, 2), text="<|endoftext|><|im_end|><|im_start|>"),
        replace(one, ids=(0,) * (limit - 1)),
        replace(one, reward=0.0, sender="nobody seen before"),
        replace(one, logprobs=(0.0,) * 3),
        replace(one, logprobs=(float("nan"), float("-inf"))),
    )


# What a defense without a usable default takes, and further forms that keep the contract too.
NEEDED = {"max_tokens": "max_tokens(limit=12)"}
FORMS = (
    "logit(reject='mask')",
    "logit(reject='mask', reach=1)",
    "similarity(words=1, reject='mask')",
    "arithmetic(reject='mask')",
    "static_code(reject='mask')",
    "likelihood(false_rejection=0.5, reject='zero')",
    "length_quantile(quantile=0.1)",
    "reputation(defense='logit(reject=\"mask\")+random(rate=0.5)', level=0.5)",
    "logit(reject='drop')+max_tokens(limit=12)+likelihood",
    "none+oracle",
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("spec", [*(NEEDED.get(name, name) for name in registry.names("defense")), *FORMS])
def test_contract(spec: str, check: Callable[[Make], None]) -> None:
    check(lambda: registry.make("defense", spec))


@pytest.mark.parametrize("name", registry.names("defense"))
def test_its_name_is_the_registered_one(name: str) -> None:
    assert registry.find("defense", name).name == name, "a defense's name is what the registry lists it under"


@pytest.mark.parametrize(
    "spec",
    [
        "random(rate=0.75)",
        "oracle(reject='drop')",
        "logit(tolerance=0.5, reject='drop')",
        "seed_replay(announced=True, allowed=2, reject='zero')",
        "judge(votes=3, reject='drop')",
    ],
)
def test_arguments_survive_the_canonical_spec_string(spec: str) -> None:
    canonical = registry.canonical("defense", spec)
    assert registry.canonical("defense", canonical) == canonical, "a canonical spec string is its own canonical form"
    assert vars(registry.make("defense", spec)) == vars(registry.make("defense", canonical)), "and says the same"


def test_a_stateful_defense_of_a_user_keeps_the_contract() -> None:
    spec = f"{tiny.PLUGINS}:Counts"
    check_defense(lambda: registry.make("defense", spec))


def test_the_checks_can_fail() -> None:
    class Lazy(Spy):
        def inspect(self, view: DefenderView) -> list[Verdict]:
            return [ACCEPT]

    class Positional(Spy):
        def inspect(self, view: DefenderView) -> list[Verdict]:
            return [ACCEPT if i % 2 else Verdict("zero") for i, _ in enumerate(view.completions)]

    class Forgets(Spy):
        def state(self) -> dict[str, Any]:
            return {"views": len(self.views)}

        def restore(self, state: dict[str, Any]) -> None:
            pass

    for broken, rule in ((Lazy, "one verdict"), (Positional, "place in the pool"), (Forgets, "restore takes back")):
        with pytest.raises(AssertionError, match=rule):
            check_defense(broken)


FORBIDDEN_WORDS = ("malicious", "payload", "poison", "attack", "honest", "label", "truth", "victim", "duty")
# What a defense may hold a reference to without being walked into: libraries' objects, and the model it defends.
OPAQUE = (torch.nn.Module, torch.Tensor, np.ndarray, random.Random, type, type(json), Policy)


def reachable(thing: object, path: str = "view") -> Iterator[tuple[str, object]]:
    """Every object that plain attribute access, iteration and indexing lead to, with its path."""
    seen: set[int] = set()
    waiting = [(path, thing)]
    while waiting:
        path, one = waiting.pop()
        if id(one) in seen:
            continue
        if not isinstance(one, (int, float, str, bytes, bool, type(None))):
            seen.add(id(one))
        yield path, one
        if isinstance(one, OPAQUE) or callable(one):
            continue
        if isinstance(one, Mapping):
            waiting += [(f"{path}[{key!r}]", value) for key, value in one.items()]
            waiting += [(f"{path} key", key) for key in one]
        elif isinstance(one, (list, tuple, set, frozenset)):
            waiting += [(f"{path}[{i}]", value) for i, value in enumerate(one)]
        waiting += [(f"{path}.{name}", value) for name, value in getattr(one, "__dict__", {}).items()]


def test_no_label_can_be_reached_from_a_view() -> None:
    for view in recorded(labels=False):
        found = list(reachable(view))
        assert len(found) > 100, "the walk goes through the view"
        for path, one in found:
            last = path.rpartition(".")[2].lower()
            assert not any(word in last for word in FORBIDDEN_WORDS), (
                f"the view names what a defense may not know: {path}"
            )
            assert not isinstance(one, (Swarm, Attack, Task, Item)), (
                f"the view leads to the benchmark's own objects: {path}"
            )


def test_the_view_does_not_hold_the_seed_that_draws_payload_and_pseudonyms() -> None:
    for view in recorded(labels=False):
        holding = [
            path
            for path, one in reachable(view)
            if (isinstance(one, int) and one == SEED) or (isinstance(one, str) and str(SEED) in one)
        ]
        assert not holding, (
            f"who knows the seed can draw the payload and everyone's pseudonym; it stands in {holding[0]}"
        )


def test_position_tells_nothing_about_who_sent() -> None:
    first, second = recorded(labels=False)
    for view in (first, second):
        places = [(offered.group, offered.index) for offered in view.completions]
        assert places != sorted(places), "the pool is shuffled"
    orders = [[(offered.group, offered.index) for offered in view.completions] for view in (first, second)]
    assert orders[0] != orders[1], "every round is shuffled anew"


def test_pseudonyms_last_a_run_and_are_not_node_numbers() -> None:
    first, second = ({offered.sender for offered in view.completions} for view in recorded(labels=False))
    assert first == second, "pseudonyms last a run"
    assert len(first) == tiny.SWARM.nodes, "every node has one pseudonym"
    assert not first & {str(node) for node in range(tiny.SWARM.nodes)}, "a pseudonym is not the node's number"


def test_a_verdict_too_few_fails_the_round() -> None:
    class Lazy(Spy):
        name = "lazy"

        def inspect(self, view: DefenderView) -> list[Verdict]:
            return [ACCEPT]

    with pytest.raises(ValueError, match=r"lazy gave 1 verdicts for 16 completions"):
        swarm(Lazy()).round(1)
