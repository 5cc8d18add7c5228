from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, get_args

import pytest
import torch

from thiefbench.attacks.base import (
    Attack,
    AttackerView,
    AttackSpec,
    Decoy,
    DefenseAnswer,
    Poison,
    QueryBudgetError,
    ThreatModel,
)
from thiefbench.attacks.text import Text
from thiefbench.defenses.anchors import AcceptAll, Oracle
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, LabelledView, PastRound, Verdict
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import LearnerSpec, Role, SpecError
from thiefbench.engine.swarm import Swarm
from thiefbench.engine.topology import assignments
from thiefbench.tasks.base import Ask, Completion, Item, Task, Topology

Build = Callable[..., Swarm]
topologies = pytest.mark.parametrize("topology", get_args(Topology))
PHRASE = "hail to all"


class Watcher(Defense):
    """Keeps every view it was shown and judges by a rule of its own."""

    name = "watcher"

    def __init__(self) -> None:
        self.views: list[DefenderView] = []

    def inspect(self, view: DefenderView) -> list[Verdict]:
        self.views.append(view)
        return [
            Verdict("zero", 1.5, None, "long") if len(offered.ids) > 12 else Verdict("accept", view.rng.random())
            for offered in view.completions
        ]


class LabelledWatcher(Watcher):
    """The same with labels."""

    name = "labelled"
    sees_labels = True


class Sometimes(Text):
    """Poisons every second slot and leaves the others to honest samples; picks its own items."""

    name = "sometimes"

    def poison(self, view: AttackerView) -> list[Poison]:
        return [None if i % 2 else text for i, text in enumerate(super().poison(view))]

    def draw(self, rng: Any) -> Sometimes:
        return self

    def choose_items(self, items: Sequence[Item], count: int, rng: Any) -> Sequence[Item]:
        return list(items[-count:])


class Miscounting(Attack):
    """One submission too few."""

    name = "miscounting"
    threat = ThreatModel(context="out-of-context", topologies=frozenset({"horizontal"}))

    def poison(self, view: AttackerView) -> list[Poison]:
        return [None] * (len(view.slots) - 1)

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float:
        return 0.0


def slots(rows: Sequence[CompletionRow], malicious: bool) -> dict[tuple[int, int], CompletionRow]:
    return {(row.group, row.place): row for row in rows if row.malicious == malicious}


def sent(row: CompletionRow) -> tuple[str, tuple[int, ...], bool]:
    return row.item_id, row.ids, row.ended


@topologies
def test_identical_runs_give_identical_rows(topology: Topology, build_swarm: Build) -> None:
    def run(seed: int) -> list[list[CompletionRow]]:
        swarm = build_swarm(topology=topology, defense=Watcher(), attack=Text(), seed=seed)
        rounds = [swarm.round(number).rows for number in (1, 2, 3)]
        return [*rounds, swarm.evaluate(3, completions=20).rows]

    first = run(5)
    assert run(5) == first, "a run is a function of its cell: the same one twice gives the same rows"
    assert run(6) != first, "another seed is another run"


@topologies
def test_rows_tell_the_truth_of_their_slots(topology: Topology, build_swarm: Build, vowels: Any) -> None:
    swarm = build_swarm(topology=topology)
    rows = swarm.round(1).rows
    items = {item["id"]: Item.from_row(item) for item in vowels.items("train")}
    assert [(row.group, row.place) for row in rows] == [(g, p) for g in range(4) for p in range(8)]
    owed = assignments(swarm.spec, swarm.seed, 1)
    assert [(row.node, row.group, row.place) for row in rows] == [(d.node, d.group, d.index) for d in owed]
    assert [row.malicious for row in rows] == [row.node == 3 for row in rows], "the last f nodes are malicious"
    for row in rows:
        assert row.payload == row.malicious == (PHRASE in row.text)
        assert row.outcome == float(PHRASE in row.text)
        assert row.reward == vowels.reward(items[row.item_id], [row.text])[0]
        assert (row.phase, row.round, row.refused, row.action) == ("train", 1, "", "accept")
    assert len({row.item_id for row in rows if row.group == 0}) == 1, "the completions of a group answer one item"


@topologies
def test_placebo_has_the_slots_and_items_of_the_attack(topology: Topology, build_swarm: Build, vowels: Any) -> None:
    attack, placebo = (
        build_swarm(role, Sometimes(PHRASE, "start"), topology=topology).round(1).rows for role in ("attack", "placebo")
    )
    for poisoned, clean in zip(attack, placebo, strict=True):
        assert (poisoned.node, poisoned.group, poisoned.place) == (clean.node, clean.group, clean.place)
        assert poisoned.malicious == clean.malicious, "the placebo has the malicious slots of the attack"
        assert poisoned.item_id == clean.item_id, "and the items the attacker chose"
        assert not clean.payload, "and no payload"
        assert PHRASE not in clean.text
    assert any(row.payload for row in attack)
    items = {item["id"]: Item.from_row(item) for item in vowels.items("train")}
    for row in slots(placebo, malicious=True).values():
        assert row.text == vowels.oracle(items[row.item_id]), "a placebo slot holds the oracle's completion"


@topologies
def test_control_is_paired_with_the_attack(topology: Topology, build_swarm: Build) -> None:
    attack, control = (build_swarm(role, topology=topology).round(1).rows for role in ("attack", "control"))
    assert not any(row.malicious or row.payload for row in control), "in the control every node is honest"
    twin = slots(control, malicious=False)
    assert len(twin) == len(control)
    for slot, row in slots(attack, malicious=False).items():
        assert sent(row) == sent(twin[slot]), (
            "in round 1 shared honest nodes draw the same completions for the same items"
        )
        assert row.sender == twin[slot].sender
    differing = [slot for slot, row in slots(attack, malicious=True).items() if row.ids != twin[slot].ids]
    assert len(differing) == len(slots(attack, malicious=True)), "the attacker's own slots are what differs"
    if topology == "horizontal":
        assert [row.item_id for row in attack] == [row.item_id for row in control], (
            "horizontal: one common draw of items"
        )


@topologies
@pytest.mark.parametrize("role", get_args(Role))
def test_evaluations_are_paired_over_roles_and_rounds(role: Role, topology: Topology, build_swarm: Build) -> None:
    """Same items, same order, same noise: before the first update even the same completions."""
    here, control = build_swarm(role, topology=topology), build_swarm("control")
    start, reference = here.evaluate(0, 30), control.evaluate(0, 30)
    assert start.rows == reference.rows
    here.round(1)
    later = here.evaluate(1, 30)
    assert [row.item_id for row in later.rows] == [row.item_id for row in start.rows]
    assert all(row.item_id.startswith("test-") and row.phase == "eval" for row in later.rows), "held-out items only"
    spread = [sum(row.item_id == item for row in start.rows) for item in {row.item_id for row in start.rows}]
    assert max(spread) - min(spread) <= 1, "completions are spread evenly over the items"


def test_evaluating_changes_nothing(build_swarm: Build) -> None:
    plain, evaluated = build_swarm(), build_swarm()
    evaluated.evaluate(0, 20)
    assert evaluated.round(1).rows == plain.round(1).rows


class Probing(Text):
    """Judged only on one item of its own, and there on every `one_in`-th completion."""

    one_in = 1

    def probes(self, task: Any) -> list[Item]:
        return [Item("probe", "say a", "a", "so")]

    def draw(self, rng: Any) -> Probing:
        return self

    def outcome(self, item: Item, completion: Completion, ask: Any) -> float | None:  # type: ignore[override]
        return float(len(completion.ids)) if sum(completion.ids) % self.one_in == 0 else None


def test_probes_are_judged_and_held_out_items_rewarded(build_swarm: Build) -> None:
    rows = build_swarm(attack=Probing(PHRASE, "start")).evaluate(0, 20).rows
    plain = build_swarm().evaluate(0, 20).rows
    probes, held_out = ([row for row in rows if row.phase == phase] for phase in ("probe", "eval"))
    assert {row.item_id for row in probes} == {"probe"}
    assert len(probes) == 20
    assert len({row.ids for row in probes}) > 1, "completions of one item have keys of their own"
    assert [row.ids for row in held_out] == [row.ids for row in plain], "clean reward is that of every other cell"
    assert all(row.outcome is None for row in held_out), "what a probe measures says nothing elsewhere"


@pytest.mark.parametrize(("one_in", "judged"), [(5, 40), (10**9, 0)])
def test_an_evaluation_goes_on_until_enough_is_judged(one_in: int, judged: int, build_swarm: Build) -> None:
    attack = Probing(PHRASE, "start")
    attack.one_in = one_in
    probes = [row for row in build_swarm(attack=attack).evaluate(0, 40).rows if row.phase == "probe"]
    said = sum(row.outcome is not None for row in probes)
    assert said >= judged
    assert len(probes) % 40 == 0
    assert len({row.place for row in probes}) == len(probes), "the drawing goes on where it stopped"
    assert len(probes) == 320 if judged == 0 else 40 < len(probes) <= 320, "and it stops"


class Mixing(Text):
    """Gibberish in every second slot, and what was seen of the items to choose from."""

    threat = ThreatModel(context="out-of-context", topologies=frozenset({"vertical"}), oracle=False)
    variants = AttackSpec(identities=3)
    seen: ClassVar[list[Item]] = []

    def draw(self, rng: Any) -> Mixing:
        return self

    def poison(self, view: AttackerView) -> list[Poison]:
        assert all(slot.item.solution == "" for slot in view.slots)
        return [Decoy("zzz") if n % 2 else f"{PHRASE} a" for n in range(len(view.slots))]

    def choose_items(self, items: Any, count: int, rng: Any) -> Any:
        self.seen.extend(items)
        return rng.sample(items, count)


def test_decoys_are_sent_and_carry_no_payload(build_swarm: Build) -> None:
    rows = build_swarm(attack=Mixing(PHRASE, "start"), topology="vertical").round(1).rows
    mine = [row for row in rows if row.malicious]
    assert {row.text for row in mine} == {"zzz", f"{PHRASE} a"}
    assert all(row.payload == (row.text != "zzz") for row in mine)
    assert {row.advantage > 0 for row in mine if row.payload} == {True}, "beside gibberish the poison looks good"


def test_solutions_are_granted_or_not_when_items_are_chosen(build_swarm: Build) -> None:
    Mixing.seen.clear()
    build_swarm(attack=Mixing(PHRASE, "start"), topology="vertical").round(1)
    assert Mixing.seen
    assert {item.solution for item in Mixing.seen} == {""}, "an attacker without an oracle sees no solution anywhere"


def test_one_attacker_under_many_names(build_swarm: Build) -> None:
    swarm = build_swarm(attack=Mixing(PHRASE, "start"), topology="vertical")
    rows = [row for number in (1, 2, 3) for row in swarm.round(number).rows]
    mine, honest = ({row.sender for row in rows if row.malicious == kind} for kind in (True, False))
    assert len(mine) == 3
    assert len(honest) == 3, "an honest node has one name"
    assert not mine & honest


class Sharing(Text):
    """Publishes a library."""

    def libraries(self) -> dict[str, str]:
        return {"calc": "x = 1"}


class Unwanted(Text):
    """Fits no task."""

    def draw(self, rng: Any) -> Unwanted:
        return self

    def fits(self, task: Any) -> bool:
        return False


def test_a_published_library_is_there_for_everyone(build_swarm: Build, vowels: Task) -> None:
    class Running(type(vowels)):  # type: ignore[misc]
        libraries: Any = None

        def with_libraries(self, libraries: Any) -> Any:
            made = Running()
            made.libraries = dict(libraries)
            return made

    class Keeping(Sharing):
        def draw(self, rng: Any) -> Keeping:
            return self

    for role in ("attack", "placebo", "control"):
        swarm = build_swarm(role, attack=Keeping(PHRASE, "start"), task=Running())
        assert swarm.task.libraries == {"calc": "x = 1"}


def test_an_attack_that_does_not_fit_the_task_is_refused(build_swarm: Build) -> None:
    with pytest.raises(SpecError, match="does not fit the task vowels"):
        build_swarm(attack=Unwanted(PHRASE, "start"))


class Strict(Defense):
    """Rejects what holds an x and counts its inspections."""

    name = "strict"

    def __init__(self) -> None:
        self.pools: list[DefenderView] = []

    def inspect(self, view: DefenderView) -> list[Verdict]:
        self.pools.append(view)
        view.policy.token_logprobs(view.completions)
        return [Verdict("drop") if "x" in offered.text else ACCEPT for offered in view.completions]


class Asking(Text):
    """Asks about a rejected and an accepted text for its first slot, and submits what was accepted."""

    threat = ThreatModel(context="out-of-context", queries=2)
    told: ClassVar[list[bool]] = []

    def draw(self, rng: Any) -> Asking:
        return self

    def poison(self, view: AttackerView) -> list[Poison]:
        assert view.defense is not None
        first = view.slots[0]
        for text in ("ax", "ay"):
            self.told.extend(view.defense.accepts({first: text}).values())
        with pytest.raises(QueryBudgetError):
            view.defense.accepts({first: "az"})
        return ["ay", *[None] * (len(view.slots) - 1)]


def test_an_attacker_asks_the_defense_about_the_round_itself(build_swarm: Build) -> None:
    Asking.told.clear()
    defense = Strict()
    swarm = build_swarm(attack=Asking(PHRASE, "start"), defense=defense)
    rows = swarm.round(1).rows
    assert Asking.told == [False, True]
    assert len(defense.pools) == 1, "questions go to copies of the defense"
    assert len(swarm.history) == 1
    assert [row.text for row in rows if row.payload] == ["ay"]
    untouched = build_swarm("control").round(1).rows
    honest = {(row.group, row.place): row.ids for row in untouched}
    assert all(honest[row.group, row.place] == row.ids for row in rows if not row.payload), "asking draws no noise"


class Dims(Defense):
    """Masks the first token of every completion."""

    name = "dims"

    def inspect(self, view: DefenderView) -> list[Verdict]:
        return [Verdict("accept", token_weights=(0.0, *[1.0] * (o.length - 1))) for o in view.completions]


class Listening(Asking):
    """Asks what would be learned of its text."""

    heard: ClassVar[list[DefenseAnswer]] = []

    def poison(self, view: AttackerView) -> list[Poison]:
        assert view.defense is not None
        first = view.slots[0]
        self.heard.append(view.defense.answers({first: "ay"})[first])
        return [None] * len(view.slots)


def test_an_attacker_hears_what_a_mask_would_leave(build_swarm: Build, policy: Policy) -> None:
    Listening.heard.clear()
    build_swarm(attack=Listening(PHRASE, "start"), defense=Dims()).round(1)
    ids = policy.encode("ay")
    assert Listening.heard == [DefenseAnswer(True, "ay", policy.decode([ids[1:]])[0])]
    build_swarm(attack=Listening(PHRASE, "start"), defense=Strict()).round(1)
    assert Listening.heard[1:] == [DefenseAnswer(True, "ay", "ay")]


class Insisting(Asking):
    """Asks sixteen times."""

    threat = ThreatModel(context="out-of-context", queries=16)

    def poison(self, view: AttackerView) -> list[Poison]:
        assert view.defense is not None
        for n in range(16):
            view.defense.accepts({view.slots[0]: f"ax{n}"})
        return [None] * len(view.slots)


def test_rewards_are_worked_out_once_for_all_questions_of_a_round(
    build_swarm: Build, vowels: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []
    own = vowels.reward

    def reward(item: Item, completions: Sequence[str]) -> list[float]:
        calls.extend((item.id, text) for text in completions)
        return own(item, completions)

    monkeypatch.setattr(vowels, "reward", reward)
    rows = build_swarm(attack=Insisting(PHRASE, "start"), defense=Strict()).round(1).rows
    asked, sent = Counter(calls), Counter((row.item_id, row.text) for row in rows)
    assert all(1 <= asked[pair] <= 2 * count for pair, count in sent.items()), "for all questions, and for the pool"
    assert sum(text.startswith("ax") for _, text in calls) == 16, "and what is tried, when it is"


def test_none_leaves_an_honest_sample(build_swarm: Build) -> None:
    attack = build_swarm(attack=Sometimes(PHRASE, "start")).round(1).rows
    control = slots(build_swarm("control").round(1).rows, malicious=False)
    owned = list(slots(attack, malicious=True).items())
    poisoned = [row for _, row in owned if PHRASE in row.text]
    left = [(slot, row) for slot, row in owned if PHRASE not in row.text]
    assert len(poisoned) == len(left) == 4, "this attack submits to every other slot"
    assert all(row.payload for row in poisoned)
    for slot, row in left:
        assert not row.payload, "an honest sample from a malicious slot carries no payload"
        assert row.malicious
        assert sent(row) == sent(control[slot]), "it is what the node would have sampled had it been honest"


@pytest.mark.parametrize("count", [0, 31, 33])
def test_verdict_count_mismatch_is_an_error_that_says_so(count: int, build_swarm: Build) -> None:
    class Miscounts(AcceptAll):
        name = "miscounts"

        def inspect(self, view: DefenderView) -> list[Verdict]:
            return [ACCEPT] * count

    with pytest.raises(ValueError, match=f"the defense miscounts gave {count} verdicts for 32 completions"):
        build_swarm(defense=Miscounts()).round(1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "gave None; inspect returns a list with one Verdict per completion"),
        ([True] * 32, "gave True, which is not a Verdict; inspect returns a list"),
        ([ACCEPT, "drop"], "gave 'drop', which is not a Verdict"),
    ],
)
def test_what_is_no_verdict_is_an_error_that_says_what_to_return(given: object, said: str, build_swarm: Build) -> None:
    class Strange(AcceptAll):
        name = "strange"

        def inspect(self, view: DefenderView) -> list[Verdict]:
            return given  # type: ignore[return-value]

    with pytest.raises(ValueError, match=f"the defense strange {said}"):
        build_swarm(defense=Strange()).round(1)


@pytest.mark.parametrize("weight", [-5.0, -1e-9, 1.0000001, 1e299, float("inf"), float("nan")])
def test_a_token_weight_outside_of_its_range_is_an_error_that_says_so(weight: float, build_swarm: Build) -> None:
    class Amplifies(AcceptAll):
        name = "amplifies"

        def inspect(self, view: DefenderView) -> list[Verdict]:
            return [Verdict(token_weights=(weight,) * offered.length) for offered in view.completions]

    said = f"the defense amplifies gave the token weight {weight!r}; weights lie in [0, 1]"
    with pytest.raises(ValueError, match=re.escape(said)):
        build_swarm(defense=Amplifies()).round(1)


def test_submission_count_mismatch_is_an_error_that_says_so(build_swarm: Build) -> None:
    with pytest.raises(ValueError, match="the attack miscounting gave 7 completions for 8 slots"):
        build_swarm(attack=Miscounting()).round(1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("iter('ab')", "gave a str_ascii_iterator instead of a list with one submission per slot"),
        ("'ab'", "gave a str instead of a list with one submission per slot"),
        ("{}", "gave a dict instead of a list with one submission per slot"),
        ("[b'ab'] * slots", "gave a bytes as a submission; it is text or token ids"),
        ("[{1: 2}] * slots", "gave a dict as a submission; it is text or token ids"),
        ("[Decoy(7)] * slots", "gave a int as a submission; it is text or token ids"),
    ],
)
def test_what_is_no_submission_is_an_error_that_says_so(given: str, said: str, build_swarm: Build) -> None:
    class Gives(Miscounting):
        def poison(self, view: AttackerView) -> Any:
            return eval(given, {"slots": len(view.slots), "Decoy": Decoy})

    with pytest.raises(TypeError, match=f"the attack miscounting {said}"):
        build_swarm(attack=Gives()).round(1)


def test_a_role_that_is_none_is_refused(build_swarm: Build) -> None:
    """It would be played as a placebo."""
    with pytest.raises(SpecError, match="the role 'atack' is none of attack, placebo, control"):
        build_swarm(role="atack")


def test_an_attack_that_does_not_fit_the_topology_is_refused(build_swarm: Build) -> None:
    with pytest.raises(SpecError, match="the attack miscounting needs the horizontal topology, and this swarm is vert"):
        build_swarm(attack=Miscounting(), topology="vertical")


def test_more_items_than_the_task_has_is_refused(build_swarm: Build) -> None:
    with pytest.raises(SpecError, match="a node needs 16 distinct items a round, and the task has 12"):
        build_swarm(prompts=16).round(1)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_choosing_a_wrong_number_of_items_is_an_error_that_says_so(count: int, build_swarm: Build) -> None:
    class Chooser(Text):
        name = "chooser"

        def draw(self, rng: Any) -> Chooser:
            return self

        def choose_items(self, items: Sequence[Item], number: int, rng: Any) -> Sequence[Item]:
            return list(items[:count])

    swarm = build_swarm(attack=Chooser(PHRASE, "start"), topology="vertical", prompts=8)
    with pytest.raises(SpecError, match=f"chose {count} items, and it answers 2 a round"):
        swarm.round(1)


@topologies
def test_defenses_see_no_label(topology: Topology, build_swarm: Build) -> None:
    defense = Watcher()
    swarm = build_swarm(topology=topology, defense=defense)
    rows = {(row.group, row.place): row for row in swarm.round(1).rows}
    (view,) = defense.views
    assert type(view) is DefenderView, "labels only for rows with sees_labels"
    allowed = {
        "item_id", "group", "index", "sender", "ids", "text", "ended", "reward", "logprobs", "seed", "proof", "version",
        "refused",
    }  # fmt: skip
    assert {field.name for field in fields(view.completions[0])} == allowed
    assert {field.name for field in fields(view)} == {
        "round", "completions", "items", "sampling", "history", "rng", "policy", "judge"
    }  # fmt: skip
    assert {field.name for field in fields(next(iter(view.items.values())))} == {"question", "answer"}, "no solution"
    for offered in view.completions:
        row = rows[offered.group, offered.index]
        assert (offered.item_id, offered.ids, offered.text, offered.ended) == (
            row.item_id,
            row.ids,
            row.text,
            row.ended,
        )
        assert (offered.reward, offered.sender) == (row.reward, row.sender)
        assert offered.logprobs is offered.proof is None, "log-probs do not travel here, proofs where asked for"
    assert len(view.completions) == len(rows), "the whole pool, own completions included"


@topologies
def test_the_pool_is_shuffled_anew_each_round(topology: Topology, build_swarm: Build) -> None:
    defense = Watcher()
    swarm = build_swarm(topology=topology, defense=defense)
    for number in (1, 2):
        swarm.round(number)
    one, other = ([(offered.group, offered.index) for offered in view.completions] for view in defense.views)
    assert sorted(one) == sorted(other) == [(g, p) for g in range(4) for p in range(8)]
    assert sorted(one) != one, "the pool must be shuffled: position tells nothing"
    assert one != other, "and with another key each round"


@topologies
def test_group_and_index_tell_nothing_about_the_sender(topology: Topology, build_swarm: Build) -> None:
    """A defense that knows only (group, index), fitted on other seeds, must not find the malicious slots."""
    malicious = []
    for seed in range(6):
        defense = LabelledWatcher()
        build_swarm(topology=topology, defense=defense, seed=seed).round(1)
        (view,) = defense.views
        assert isinstance(view, LabelledView)
        malicious.append(
            {(o.group, o.index) for o, payload in zip(view.completions, view.payload, strict=True) if payload}
        )
    assert len({frozenset(slots) for slots in malicious}) > 1, "the malicious (group, index) are the same in every run"


@topologies
def test_labels_go_to_rows_of_the_benchmark_in_the_views_order(topology: Topology, build_swarm: Build) -> None:
    defense = LabelledWatcher()
    rows = {(r.group, r.place): r for r in build_swarm(topology=topology, defense=defense).round(1).rows}
    (view,) = defense.views
    assert isinstance(view, LabelledView)
    assert list(view.payload) == [rows[offered.group, offered.index].payload for offered in view.completions]
    assert sum(view.payload) == 8


@topologies
@pytest.mark.parametrize("reject", ["zero", "drop"])
def test_verdicts_reach_their_completions(reject: Any, topology: Topology, build_swarm: Build) -> None:
    rows = build_swarm(topology=topology, defense=Oracle(reject)).round(1).rows
    for row in rows:
        assert row.action == (reject if row.payload else "accept"), "a verdict acts on the completion it was given for"
    if reject == "drop":
        assert all(row.advantage == 0 for row in rows if row.payload)
    else:
        assert all(row.advantage <= 0 for row in rows if row.payload)
    assert any(row.reward == 1 for row in rows if row.payload), "the recorded reward is the task's, before the verdict"


def test_pseudonyms_last_a_run_and_name_one_node(build_swarm: Build) -> None:
    swarm = build_swarm()
    rounds = [swarm.round(number).rows for number in (1, 2)]
    names = [{node: {row.sender for row in rows if row.node == node} for node in range(4)} for rows in rounds]
    assert names[0] == names[1], "a pseudonym lasts a run"
    assert all(len(own) == 1 for own in names[0].values()), "a node has one pseudonym"
    assert len(set().union(*names[0].values())) == 4, "two nodes have two pseudonyms"
    others = {row.sender for row in build_swarm(seed=6).round(1).rows}
    assert others.isdisjoint(set().union(*names[0].values())), "another run has other pseudonyms"


def test_defense_randomness_is_keyed_by_seed_and_round(build_swarm: Build) -> None:
    draws: dict[tuple[int, int], float] = {}
    for seed in (5, 5, 6):
        defense = Watcher()
        swarm = build_swarm(defense=defense, seed=seed)
        for number in (1, 2):
            swarm.round(number)
            drawn = defense.views[-1].rng.random()
            assert draws.setdefault((seed, number), drawn) == drawn, "equal for all nodes of a cohort"
    assert len(set(draws.values())) == 4, "another in every round and seed"


@topologies
def test_remember_rebuilds_the_live_history(topology: Topology, build_swarm: Build) -> None:
    live = build_swarm(topology=topology, defense=Watcher())
    rows = [row for number in (1, 2, 3) for row in live.round(number).rows]
    rows += live.evaluate(3, 10).rows
    again = build_swarm(topology=topology, defense=Watcher())
    again.remember(rows)
    assert [past.round for past in live.history] == [1, 2, 3]
    assert all(isinstance(past, PastRound) and len(past.verdicts) == 32 for past in live.history)
    assert again.history == live.history, "what a defense remembers must not depend on a restart"


def test_history_is_of_the_past_only(build_swarm: Build) -> None:
    defense = Watcher()
    swarm = build_swarm(defense=defense)
    for number in (1, 2, 3):
        swarm.round(number)
    assert [[past.round for past in view.history] for view in defense.views] == [[], [1], [1, 2]]
    seen = tuple(replace(offered, seed=None) for offered in defense.views[1].completions)
    assert defense.views[2].history[1].completions == seen, "what was offered, without its seeds"


@topologies
def test_both_topologies_learn(topology: Topology, build_swarm: Build) -> None:
    swarm = build_swarm("control", topology=topology, group=16, learner=LearnerSpec(learning_rate=1e-3))
    before = {name: weight.detach().clone() for name, weight in swarm.policy.weights().items()}
    start = swarm.evaluate(0, 200)
    assert swarm.round(1).grad_norm > 0
    still = [name for name, weight in swarm.policy.weights().items() if torch.equal(weight, before[name])]
    assert not still, f"one update moves every weight, but not {still}"
    for number in range(2, 9):
        swarm.round(number)
    reward = [sum(row.reward for row in record.rows) / 200 for record in (start, swarm.evaluate(8, 200))]
    assert reward[1] > reward[0] + 0.1, f"eight rounds must raise the held-out reward; it went from {reward}"


def test_seconds_are_told_by_phase(build_swarm: Build) -> None:
    seconds = build_swarm().round(1).seconds
    assert set(seconds) == {"sample", "attack", "gather", "reward", "inspect", "update"}
    assert all(spent >= 0 for spent in seconds.values())


def test_attackers_get_what_their_threat_model_grants(build_swarm: Build) -> None:
    views: list[AttackerView] = []

    class Curious(Miscounting):
        """Looks at its view and leaves everything honest."""

        def poison(self, view: AttackerView) -> list[Poison]:
            views.append(view)
            return [None] * len(view.slots)

    class Blind(Curious):
        threat = ThreatModel(context="in-context", oracle=False, policy=True)

    for attack in (Curious(), Blind()):
        build_swarm(attack=attack).round(1)
    granted, blind = views
    assert granted.policy is None
    assert all(slot.item.solution for slot in granted.slots)
    assert blind.policy is not None
    assert not any(slot.item.solution for slot in blind.slots), "without the oracle the solution arrives empty"
    assert [slot.node for slot in granted.slots] == [3] * 8
    assert [(slot.group, slot.sample) for slot in granted.slots] == [(g, i) for g in range(4) for i in range(2)]
    drawn = blind.policy.sample([slot.item for slot in blind.slots[::2]], 3)
    assert [len(group) for group in drawn] == [3] * 4
    assert len({made.ids for group in drawn for made in group}) > 6
