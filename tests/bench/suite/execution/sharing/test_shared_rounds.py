"""A cell that shares rounds is equal, bit for bit, to one that was trained from the start."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from tests.bench import tiny
from tests.bench.tiny import Attacked, Watcher, run, suite
from thiefbench import registry
from thiefbench.attacks import auto
from thiefbench.attacks.auto import Auto
from thiefbench.attacks.base import Attack, Rehearsal
from thiefbench.engine.backends import local
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.spec import LearnerSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.suite.execution import cell_run, checkpoints
from thiefbench.suite.execution.cell_identity import identity
from thiefbench.suite.execution.sharing import marks, shared_rounds
from thiefbench.suite.scenario import CellSpec, Evaluation, Suite
from thiefbench.suite.store.records import CellDir, Record, Store, identify, rounds_taken
from thiefbench.tasks.base import Sampling

ROUNDS = 6
FILE = Path(__file__).with_name("shared_plugins.py")
TEXT = "text(phrase='All hail to the thief', position='start')"
ATTACKS = {
    "plain": TEXT,
    "policy": f"own(attack={TEXT!r})",
    "queries": f"adaptive(attack={TEXT!r}, mode='black-box', budget=3)",
    "both": f"dodge(attack={TEXT!r})",
    "history": f"{FILE}:Echoes",
    "memory": f"{FILE}:Remembers",
    "memory and policy": f"{FILE}:RemembersDraws",
    "memory of outcomes": f"{FILE}:CountsOutcomes",
    "leaves slots": f"varied(attack={TEXT!r}, share=0.5)",
}


class _Forgets(dict[str, Any]):
    """So that every cell evaluates its own start: an attack that counts is asked as often in each."""

    def __contains__(self, name: object) -> bool:
        return False


@pytest.fixture(autouse=True)
def every_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_run, "_started", _Forgets())


@pytest.fixture(autouse=True)
def kept_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_rounds, "KEEP_EVERY", 2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def of(*defenses: str, attack: str = TEXT, **changes: Any) -> Suite:
    """A suite of attacked cells that really learn."""
    learner, short = LearnerSpec(learning_rate=3e-3), Sampling(max_new_tokens=8)
    fields: dict[str, Any] = {
        "swarm": replace(tiny.SWARM, prompts=6, learner=learner, sampling=short),
        "task": f"{FILE}:Vowels", "rounds": ROUNDS, "evaluation": Evaluation(every=2, completions=16, final=16),
    }  # fmt: skip
    return suite(*defenses, **({"kind": Attacked, "attacks": (attack,)} | fields | changes))


@dataclass(frozen=True)
class AttackedAndPlacebo(Suite):
    """Without the control."""

    def cells(self, device: str, dtype: Literal["float32", "bfloat16"], threads: int) -> list[CellSpec]:
        return [spec for spec in super().cells(device, dtype, threads) if spec.role != "control"]


def until(round_: int, kind: str = "Until", then: str = "payload", seed: int = 0) -> str:
    """A defense that accepts all until a round and then rejects as it is told."""
    return f"{FILE}:{kind}(start={round_}, then={then!r}, seed={seed})"


def directories(of: Suite, store: Path) -> list[CellDir]:
    return [Store(store).cell(identify(identity(spec))) for spec in tiny.cells(of)]


def records(of: Suite, store: Path) -> list[Record]:
    found = [directory.read() for directory in directories(of, store)]
    assert None not in found
    return [record for record in found if record is not None]


def taken(record: Record) -> set[int]:
    """The rounds that a cell took over."""
    return set(rounds_taken(record))


def equal(of: Suite, one: Path, other: Path) -> None:
    """Records and the bytes of all completions are the same."""
    for ours, theirs in zip(records(of, one), records(of, other), strict=True):
        apart = {"seconds", "pace", "provenance"}
        assert ours.status == "ok", ours.error
        assert ours.model_dump(exclude=apart) == theirs.model_dump(exclude=apart), ours.cell["defense"]


def shared_and_alone(of: Suite, folder: Path) -> list[Record]:
    """Run a suite both ways, see that it comes out the same, and give the records of the one that shared."""
    run(of, folder / "shared")
    run(of, folder / "alone", share=False)
    equal(of, folder / "shared", folder / "alone")
    assert not any(map(taken, records(of, folder / "alone")))
    return records(of, folder / "shared")


# One attack that keeps nothing; the others take up to twice as long.
QUICK = ("plain",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ATTACKS]
)
@pytest.mark.parametrize("seed", [1])
def test_random_defenses_that_differ_at_random_rounds(attack: str, seed: int, tmp_path: Path) -> None:
    draw = random.Random(f"{attack} {seed}")
    kinds = ["Until", "Until", "Measures", "MeasuresInParts"]
    defenses = [
        until(
            draw.randint(1, ROUNDS + 1),
            draw.choice(kinds),
            draw.choice(["payload", "some", "mask"]),
            draw.randint(0, 1),
        )
        for _ in range(5)
    ]
    defenses = list(dict.fromkeys(["none", *defenses]))
    found = shared_and_alone(of(*defenses, attack=ATTACKS[attack]), tmp_path)
    if "memory and" not in attack:
        assert any(map(taken, found)), "something was shared"


def test_a_cell_follows_as_far_as_it_goes_the_same_way(tmp_path: Path) -> None:
    swarm = of("none", until(4), until(4, "Measures"), until(4, then="some"), until(9))
    none, fourth, _, other, never = shared_and_alone(swarm, tmp_path)
    assert taken(none) == set()
    assert taken(fourth) == {1, 2, 3}, "the round in which it differs is its own"
    assert taken(never) == set(range(1, ROUNDS + 1))
    assert taken(other) == {1, 2, 3}
    assert none.cell_id in rounds_taken(never).values()


def test_nothing_is_sampled_trained_or_evaluated_where_all_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(of("none"), tmp_path)
    for owner, name in ((local, "sample"), (Cohort, "accumulate"), (Swarm, "evaluate")):
        monkeypatch.setattr(owner, name, _unused)
    run(of("none", until(9)), tmp_path)
    assert taken(records(of(until(9)), tmp_path)[0]) == set(range(1, ROUNDS + 1))


def _unused(*_: Any, **__: Any) -> Any:
    raise AssertionError("this is not needed")


@pytest.mark.slow
def test_two_readings_of_one_pool_are_two_trajectories(tmp_path: Path) -> None:
    """Whoever measures half of a pool first has it run in other chunks; the last bits of the update may differ."""
    swarm = of(until(9, "Measures"), until(9, "MeasuresInParts"), until(9, "MeasuresInParts", seed=1))
    _, parts, again = shared_and_alone(swarm, tmp_path)
    assert taken(again) == set(range(1, ROUNDS + 1)), "equal calls, equal chunks"
    assert 1 not in taken(parts), "other chunks"


@pytest.mark.parametrize(
    ("stop", "attack"),
    [
        (5, "queries"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in
          ((2, "policy"), (2, "plain"), (2, "queries"), (5, "plain"), (5, "policy"))),
    ],
)  # fmt: skip
def test_a_cell_that_is_stopped_goes_on_sharing(
    stop: int, attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0.0)
    both = of("none", until(5, then="some"), attack=ATTACKS[attack])
    run(of("none", attack=ATTACKS[attack]), tmp_path / "shared")
    with pytest.raises(KeyboardInterrupt):
        run(both, tmp_path / "shared", Watcher(stop_after=stop))
    assert shared_and_alone(both, tmp_path)[1].provenance["ended"] == "resumed"
    assert taken(records(both, tmp_path / "shared")[1]) == {1, 2, 3, 4}


def test_what_is_owed_is_made_where_the_other_cell_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0.0)
    both = of("none", until(6))
    run(of("none"), tmp_path / "shared")
    with pytest.raises(KeyboardInterrupt):
        run(both, tmp_path / "shared", Watcher(stop_after=4))
    directory = directories(of("none"), tmp_path / "shared")[0]
    directory.completions_path.write_bytes(b"gone")
    only = of(until(6))
    run(only, tmp_path / "shared")
    run(only, tmp_path / "alone", share=False)
    equal(only, tmp_path / "shared", tmp_path / "alone")
    assert taken(records(only, tmp_path / "shared")[0]) == {1, 2, 3, 4}


@pytest.mark.slow
def test_weights_that_were_kept_shorten_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, accumulate = [], Cohort.accumulate
    monkeypatch.setattr(Cohort, "accumulate", lambda *parts: made.append(1) or accumulate(*parts))
    both = of("none", until(6), evaluation=Evaluation(every=6, completions=16, final=16))
    found = shared_and_alone(both, tmp_path)
    assert taken(found[1]) == {1, 2, 3, 4, 5}
    assert len(made) == ROUNDS + 2 + 2 * ROUNDS, "of five updates that were owed, one was made: the fifth, to compare"
    assert states(tmp_path) == (2, 3)
    size = next((tmp_path / "shared" / "shared").glob("*/states/*.safetensors")).stat().st_size
    run(of("none", seeds=(7,)), tmp_path / "shared", shared_gb=2.5 * size / 1e9)
    assert states(tmp_path) == (2, 0), "spare ones make room, then the oldest"
    run(of("none", seeds=(8,)), tmp_path / "shared", shared_gb=1.5 * size / 1e9)
    assert states(tmp_path) == (1, 0), "the newest"


def states(store: Path) -> tuple[int, int]:
    """How many states a store's cells share, and how many of them are spare."""
    names = [path.name for path in (store / "shared" / "shared").glob("*/states/*.safetensors")]
    spare = sum(".spare." in name for name in names)
    return len(names) - spare, spare


def test_without_spare_states_updates_fill_the_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, accumulate = [], Cohort.accumulate
    monkeypatch.setattr(Cohort, "accumulate", lambda *parts: made.append(1) or accumulate(*parts))
    run(of("none"), tmp_path / "shared")
    for path in (tmp_path / "shared" / "shared").glob("*/states/*.spare.*"):
        path.unlink()
    made.clear()
    only = of(until(6))
    run(only, tmp_path / "shared")
    assert len(made) == 2, "the fifth, which was owed, and its own"
    run(only, tmp_path / "alone", share=False)
    equal(only, tmp_path / "shared", tmp_path / "alone")


def test_a_defense_that_asks_the_policy_makes_no_update_that_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, accumulate = [], Cohort.accumulate
    monkeypatch.setattr(Cohort, "accumulate", lambda *parts: made.append(1) or accumulate(*parts))
    run(of("none"), tmp_path / "shared")
    made.clear()
    only = of("repetition")
    run(only, tmp_path / "shared")
    assert taken(records(only, tmp_path / "shared")[0]) == set(range(1, ROUNDS + 1))
    assert len(made) == 2, "the first, to compare, and the last, after which nothing is stored"
    run(only, tmp_path / "alone", share=False)
    equal(only, tmp_path / "shared", tmp_path / "alone")


@dataclass(frozen=True)
class Controls(Suite):
    """A suite of cells without an attack alone."""

    def cells(self, *numerics: Any) -> list[CellSpec]:
        return [cell for cell in super().cells(*numerics) if cell.role == "control"]


def controls(*attacks: str, **changes: Any) -> Suite:
    """Their controls."""
    base = of("none", **changes)
    return Controls(**({f.name: getattr(base, f.name) for f in fields(base)} | {"attacks": attacks}))


@pytest.mark.slow
def test_the_controls_of_all_attacks_are_one_swarm(tmp_path: Path) -> None:
    others = (ATTACKS["memory of outcomes"], f"{FILE}:SaysLittle", ATTACKS["policy"])
    first, *rest = shared_and_alone(controls(TEXT, *others), tmp_path)
    assert not taken(first)
    assert [taken(record) for record in rest] == [set(range(1, ROUNDS + 1))] * len(others)
    assert len({record.completions_sha256 for record in rest}) == len(others), "each attack measured its own outcome"


def test_an_answer_that_another_attack_measured_is_not_sampled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(controls(TEXT), tmp_path)
    for owner, name in ((local, "sample"), (Cohort, "accumulate")):
        monkeypatch.setattr(owner, name, _unused)
    run(controls(ATTACKS["policy"]), tmp_path)
    monkeypatch.undo()
    more = controls(f"{FILE}:SaysLittle")
    run(more, tmp_path)
    counts = [CellDir.read_rows(directory).num_rows for directory in directories(more, tmp_path)]
    assert min(counts) > max(CellDir.read_rows(each).num_rows for each in directories(controls(TEXT), tmp_path)), (
        "what was not recorded is sampled"
    )


def test_controls_in_which_other_libraries_can_be_imported_are_apart(tmp_path: Path) -> None:
    run(controls(TEXT), tmp_path)
    published = controls(f"{FILE}:Publishes")
    run(published, tmp_path)
    assert not taken(records(published, tmp_path)[0])


@pytest.mark.parametrize("name", registry.names("attack"))
def test_the_fields_of_every_attack_can_be_written_down(name: str) -> None:
    attack = registry.make("attack", name)
    assert marks.fields_of(attack) == marks.fields_of(registry.make("attack", name)) is not None


def test_what_an_attack_keeps_is_seen() -> None:
    attack = registry.make("attack", TEXT)
    before = marks.fields_of(attack)
    attack.kept = [1]
    after = marks.fields_of(attack)
    attack.kept.append(2)
    assert len({before, after, marks.fields_of(attack)}) == 3
    for unreadable in (torch.zeros(1), iter(()), lambda: None, random):
        attack.kept = unreadable
        assert marks.fields_of(attack) is None


def test_a_folder_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    victim, store = tmp_path / "victim", tmp_path / "store"
    victim.mkdir()
    store.mkdir()
    (store / "shared").symlink_to(victim)
    run(of("none", until(9)), store)
    assert not list(victim.iterdir())
    assert not any(map(taken, records(of("none", until(9)), store)))


@pytest.mark.slow
def test_only_who_begins_alike_is_followed(tmp_path: Path) -> None:
    run(of("none"), tmp_path)
    others = [of(until(9), **each) for each in ({"seeds": (7,)}, {"rounds": 4}, {"attack": ATTACKS["policy"]})]
    for other in others:
        run(other, tmp_path)
        assert not taken(records(other, tmp_path)[0])


@pytest.mark.slow
def test_a_defense_that_reads_a_clock_corrupts_nobody(tmp_path: Path) -> None:
    clock = f"{FILE}:Clock"
    swarm = of(clock, "none", until(9))
    run(swarm, tmp_path / "shared")
    run(swarm, tmp_path / "alone", share=False)
    rest = of("none", until(9))
    equal(rest, tmp_path / "shared", tmp_path / "alone")


def test_a_defense_that_changes_what_it_was_shown_corrupts_nobody(tmp_path: Path) -> None:
    overwriting = f"{FILE}:Overwrites"
    both = of(overwriting, until(999))
    first, second = [record for record in shared_and_alone(both, tmp_path) if record.cell["defense"] != "none"]
    assert first.curves == second.curves, "both accept all, with the rewards that came"


@pytest.mark.slow
def test_weights_that_do_not_come_out_again_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the other cell was trained on a machine that looks the same and is not."""
    run(of("none"), tmp_path / "shared")
    norm = shared_rounds._Followed.grad_norm
    monkeypatch.setattr(shared_rounds._Followed, "grad_norm", lambda *parts: norm(*parts) * (1 + 1e-12))
    watcher, both = Watcher(), of("none", until(4))
    run(both, tmp_path / "shared", watcher)
    assert any("begins again" in note for note in watcher.notes)
    run(both, tmp_path / "alone", share=False)
    equal(both, tmp_path / "shared", tmp_path / "alone")
    assert taken(records(both, tmp_path / "shared")[1]) == set()


@pytest.mark.slow
def test_a_placebo_plays_what_the_attack_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed = []

    def prepared(attack: Auto, rehearsal: Rehearsal) -> Attack:
        rehearsed.append(attack)
        return prepare(attack, rehearsal)

    prepare = Auto.prepared
    monkeypatch.setattr(Auto, "prepared", prepared)
    monkeypatch.setattr(auto, "ROUNDS", 1)
    monkeypatch.setattr(auto, "COMPLETIONS", 16)
    both = of("none", attack=f"{FILE}:Picks(attack={TEXT!r})", kind=AttackedAndPlacebo, placebo=True, rounds=1)
    run(both, tmp_path / "shared")
    assert len(rehearsed) == 1
    run(both, tmp_path / "alone", share=False)
    assert len(rehearsed) == 3
    equal(both, tmp_path / "shared", tmp_path / "alone")

    attacked, placebo = directories(both, tmp_path / "shared")
    attacked.record_path.write_text("{")
    placebo.record_path.unlink()
    spec = tiny.cells(both)[1]
    assert cell_run.run_cell(spec, identity(spec), placebo, share=True).payload["member"]
    assert len(rehearsed) == 4, "beside a damaged record it rehearses itself"
