"""Several sets of published cells of one suite: a row is measured against one of them, which its own cells are like."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench import tiny
from tests.leaderboard import made_entries
from tests.leaderboard.scores_files import scores_of
from tests.leaderboard.shared_cells import (
    TITLE,
    Board,
    board,
    cell_at,
    changed,
    copy_of,
    id_of,
    in_folder,
    made_on,
    near_tie,
    publish_all,
)
from tests.leaderboard.tiny_entries import CHEATS, NUMERICS, Made, copied, made, resigned, rewritten, suite
from tests.leaderboard.verification.test_verify import CAREFUL, SECRET
from thiefbench.leaderboard import growing, referring, rows, submit
from thiefbench.leaderboard.deliveries import apart_from_published, check_alike
from thiefbench.leaderboard.entry import Entry, EntryError, read_entry
from thiefbench.leaderboard.published import PublishedError, published_sets, set_name
from thiefbench.leaderboard.publishing import ConflictError
from thiefbench.leaderboard.referring import published_threads
from thiefbench.leaderboard.site.board import board as site_board
from thiefbench.leaderboard.site.entry_page import shown_entry
from thiefbench.leaderboard.site.index_page import shown_suite
from thiefbench.leaderboard.site.judging import read, timed_elsewhere
from thiefbench.leaderboard.verification.verdict import Verification
from thiefbench.leaderboard.verification.verify import VerifyOptions, verify
from thiefbench.provenance import provenance
from thiefbench.suite.execution.runner import run_suite
from thiefbench.suite.scenario import Suite
from thiefbench.suite.store.arithmetic import arithmetic_here, maker_of
from thiefbench.suite.store.records import Record, Store, read_sealed

HEARS = f"{CHEATS}:Hears"
OTHER = "SSE9"
"""Vector instructions of another machine."""
TWO_THREADS = NUMERICS.model_copy(update={"threads": 2})
ROLES = (("control", "none"), ("placebo", "none"), ("attack", "none"), ("attack", "oracle"))


@dataclass(frozen=True)
class Scene:
    """A suite of two seeds with two sets of published cells, and an entry for each.

    The first set has both seeds, and was made here. The further one has seed 0 and says to be made on another machine,
    whose store is `there`; there, the attack does some harm more.
    """

    board: Board
    there: Path
    first: Made
    further: Made
    name: str


def on_another_machine(store: Path, seeds: tuple[int, ...] = (0,)) -> None:
    """Edit every cell of a store: as another machine would have made it, with an undefended answer of its own."""
    for seed in seeds:
        near_tie(store, cell_at("attack", seed=seed), OTHER)
    for record in Store(store).records():
        if record.cell["seed"] in seeds:
            Store(store).cell(record.cell_id).write(made_on(OTHER)(record))


def two_seeds(monkeypatch: pytest.MonkeyPatch) -> Suite:
    """The suite with two seeds, which counts as released while a test runs."""
    both = suite(seeds=(0, 1))
    made_entries.tiny(both, monkeypatch)
    return both


def computing(monkeypatch: pytest.MonkeyPatch, capability: str, **arithmetic: str) -> None:
    """As if this machine had these vector instructions, or another arithmetic."""
    here = arithmetic_here("cpu") | {"capability": capability} | arithmetic
    told = provenance("cpu", threads=0) | here
    monkeypatch.setattr(referring, "arithmetic_here", lambda device: here)
    monkeypatch.setattr(referring, "provenance", lambda device, threads: told)
    monkeypatch.setattr("thiefbench.leaderboard.growing.arithmetic_here", lambda device: here)


def says(store: Path, cell_id: str, **provenance: object) -> None:
    """Make the record of a cell say this of its making."""
    directory = Store(store).cell(cell_id)
    record = Record.model_validate(read_sealed(directory.record_path))
    directory.write(record.model_copy(update={"provenance": record.provenance | provenance}))


def run_with_two_threads(store: Path) -> list[str]:
    """Run the shared cells of seed 0; their ids."""
    cells = rows.shared_cells(suite(), (0,), TWO_THREADS)
    return [record.cell_id for record in run_suite(suite(), cells, Store(store), tiny.Watcher())]


def of_torch(store: Path, version: str, seeds: tuple[int, ...]) -> None:
    """Edit the shared cells of a store: as another version of torch would have made them."""
    for seed in seeds:
        for role in ROLES:
            changed(
                store,
                cell_at(*role, seed=seed),
                lambda record: record.model_copy(update={"provenance": record.provenance | {"torch": version}}),
            )


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The suite counts as released while these tests run."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("sets")
        of = board(folder, patch)
        first = made(folder / "first", HEARS, patch, store=of.store, shared=of.shared)
        there = Path(shutil.copytree(of.store, folder / "there"))
        on_another_machine(there)
        outcome = publish_all(Board(there, of.shared), (0,), beside=True)
        assert (len(outcome.added), outcome.equal) == (4, [])
        publish_all(of, (0, 1))
        further = made(folder / "further", HEARS, patch, store=there, shared=of.shared)
        yield Scene(of, there, first, further, outcome.folder.name)


def verified(of: Made, **asked: Any) -> Verification:
    """A verification with a known secret, which runs nothing."""
    options: dict[str, Any] = {
        "archive": of.archive, "reruns": 0, "fresh": 0, "caps": CAREFUL, "secret": SECRET, "shared": of.shared,
    } | asked  # fmt: skip
    return verify(
        of.folder, VerifyOptions(**options), lambda told: None, lambda what: lambda done, total: None, lambda suite: []
    )


def prepared(folder: Path, store: Path, shared: Path, **options: Any) -> submit.Submission:
    credits = submit.credits_of("Mine", "A. Author", "")
    of, numerics = options.pop("of", suite()), options.pop("numerics", NUMERICS)
    return submit.prepare(HEARS, credits, of, numerics, store, folder / "entries", shared=shared, **options)


def cells_in(made_entry: Made) -> dict[str, dict[str, Any]]:
    """The cells of an entry as they stand in its scores.json, by id."""
    told = scores_of(made_entry.folder)["cells"]
    return {each["cell_id"]: each for each in told}


def taking(*ids: str, of: Made) -> Callable[[dict[str, Any]], None]:
    """Puts another entry's lines in place of those with these ids."""
    theirs = cells_in(of)
    return lambda told: told.update(
        cells=[theirs[each["cell_id"]] if each["cell_id"] in ids else each for each in told["cells"]]
    )


# --- publishing ---


def test_a_further_set_lies_beside_the_first_one(scene: Scene) -> None:
    first, further = published_sets(scene.board.shared, TITLE)
    assert (first.name, further.name) == ("", scene.name)
    assert scene.name.startswith("cpu-sse9-float32-1-threads-torch-")
    for role in ROLES:
        cell_id = id_of(cell_at(*role))
        here, there = first.find(cell_id), further.find(cell_id)
        assert here is not None
        assert there is not None
        assert here[1] != there[1], "two files of one id"
        assert set_name(there[0].record) == scene.name != set_name(here[0].record)
    assert further.find(id_of(cell_at("control", seed=1))) is None


def test_a_further_set_is_made_on_request_only(scene: Scene, tmp_path: Path) -> None:
    copy = copy_of(Board(scene.there, scene.board.shared), tmp_path)
    shutil.rmtree(copy.shared / TITLE / "sets")
    before = in_folder(copy.shared)
    with pytest.raises(ConflictError, match="--beside publishes cells that another arithmetic made as a further set"):
        publish_all(copy, (0,))
    assert in_folder(copy.shared) == before


def test_more_cells_join_the_set_that_was_made_as_they_were(scene: Scene, tmp_path: Path) -> None:
    copy = copy_of(Board(scene.there, scene.board.shared), tmp_path)
    before = in_folder(copy.shared)
    assert len(publish_all(copy, (0,)).equal) == 4
    on_another_machine(copy.store, (1,))
    outcome = publish_all(copy)
    assert (len(outcome.added), len(outcome.equal), outcome.folder.name) == (4, 4, scene.name)
    after = in_folder(copy.shared)
    assert {name: content for name, content in after.items() if name in before} == before
    assert all(name.startswith(f"{TITLE}/sets/{scene.name}/") for name in after.keys() - before.keys())


def test_what_is_published_in_a_further_set_stays(scene: Scene, tmp_path: Path) -> None:
    copy = copy_of(Board(scene.there, scene.board.shared), tmp_path)
    near_tie(copy.store, cell_at("placebo"), OTHER)
    before = in_folder(copy.shared)
    with pytest.raises(ConflictError, match="is published with other completions"):
        publish_all(copy, (0,), beside=True)
    assert in_folder(copy.shared) == before


def test_a_store_of_two_machines_is_no_set(scene: Scene, tmp_path: Path) -> None:
    copy = copy_of(Board(scene.there, scene.board.shared), tmp_path)
    changed(copy.store, cell_at("control"), made_on("SSE10"))
    before = in_folder(copy.shared)
    with pytest.raises(ConflictError):
        publish_all(copy, (0,), beside=True)
    assert in_folder(copy.shared) == before


def test_failed_cells_of_another_machine_are_of_no_set(scene: Scene, tmp_path: Path) -> None:
    """They are not published, so what made them decides nothing; nor is there a set of failures alone."""
    copy = copy_of(Board(scene.there, scene.board.shared), tmp_path)
    before = in_folder(copy.shared)
    failed = {"status": "error", "error": "out of memory", "scores": {}, "curves": {}, "completions_sha256": ""}
    for roles, equal in ((ROLES[2:3], 3), (ROLES, 0)):
        for role in roles:
            changed(copy.store, cell_at(*role), lambda record: made_on("SSE10")(record).model_copy(update=failed))
        outcome = publish_all(copy, (0,), beside=True)
        assert (len(outcome.failed), len(outcome.equal)) == (len(roles), equal)
        assert in_folder(copy.shared) == before


def test_a_cell_in_the_folder_of_another_set_is_not_read(scene: Scene, tmp_path: Path) -> None:
    """Such as one with the wrong version of torch."""
    copy = copy_of(scene.board, tmp_path)
    sets = copy.shared / TITLE / "sets"
    (sets / scene.name).rename(sets / "cpu-sse9-float32-1-threads-torch-1.0")
    of = published_sets(copy.shared, TITLE)[1]
    with pytest.raises(PublishedError, match=f"holds a cell of the set {scene.name}, which belongs elsewhere"):
        of.find(id_of(cell_at("control")))
    with pytest.raises(EntryError, match="belongs elsewhere"):
        read_entry(scene.further.folder, copy.shared)


# --- submitting ---


def test_each_machine_is_measured_against_its_own_set(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = prepared(tmp_path / "1", tmp_path / "empty", scene.board.shared)
    computing(monkeypatch, OTHER)
    there = prepared(tmp_path / "2", tmp_path / "empty", scene.board.shared)
    chosen = [
        {cell.record.provenance["capability"] for cell, _ in each.references.cells.values()} for each in (here, there)
    ]
    assert chosen == [{arithmetic_here("cpu")["capability"]}, {OTHER}]
    assert f"capability {OTHER}" in submit.measured_against(there)[0]
    assert published_threads(suite(), scene.board.shared) == 1
    computing(monkeypatch, "SSE10")
    neither = prepared(tmp_path / "3", tmp_path / "empty", scene.board.shared)
    assert neither.references.of is not None
    assert neither.references.of.name == "", "the first one"
    computing(monkeypatch, "SSE10", torch="2.14.9")
    with pytest.raises(EntryError) as refused:
        prepared(tmp_path / "4", tmp_path / "empty", scene.board.shared)
    said = str(refused.value)
    assert "no set of published cells of tiny-v1 is one for this store and machine: cpu-" in said
    assert f"; {scene.name}: the entry's own cells cannot be measured against 4 of the 4 published cells" in said
    assert "(here: 2.14.9)" in said


def test_own_cells_decide_which_set_is_theirs(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they are submitted from."""
    computing(monkeypatch, OTHER)
    own = prepared(tmp_path / "1", scene.board.store, scene.board.shared)
    computing(monkeypatch, "SSE10")
    of_there = prepared(tmp_path / "2", scene.there, scene.board.shared)
    for each, name in ((own, ""), (of_there, scene.name)):
        assert each.references.of is not None
        assert each.references.of.name == name


def test_entries_of_two_sets_are_rescored_and_shown(scene: Scene, tmp_path: Path) -> None:
    assert (scene.first.entry.shared_set, scene.further.entry.shared_set) == ("", scene.name)
    for each in (scene.first, scene.further):
        found = verified(each)
        assert (found.verdict, found.flags, found.reasons) == ("rescored", (), ("no cell was run again",))
    entries = tmp_path / "entries"
    shutil.copytree(scene.further.folder, entries / "mine")
    shown = shown_entry(read(entries / "mine", tmp_path / "verified", scene.board.shared))
    assert f"capability {OTHER}" in dict(shown["facts"])["Measured against"]
    (of_suite,) = site_board(entries, tmp_path / "verified", scene.board.shared).suites
    (row,) = [row for row in shown_suite(of_suite, 0)["rows"] if row["page"]]
    assert any(f"capability {OTHER}" in note for note in row["footnotes"])


def test_a_processor_of_another_maker_is_measured_against_the_set_and_says_so(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = prepared(tmp_path / "1", tmp_path / "empty", scene.board.shared)
    assert len(submit.measured_against(own)) == 1
    maker = maker_of(provenance("cpu", threads=0))
    said = submit.measured_against(replace(own, made_on={"processor_model": "Amber family 1"}))[1]
    assert f"on different processors (maker: published {maker}, own Amber): their last bits differ" in said
    folder = Path(shutil.copytree(scene.first.folder, tmp_path / "entries/mine"))
    told = json.loads((folder / "entry.json").read_text())
    told["machine"]["processor_model"] = "Amber family 1"
    for entry, noted in ((scene.first.folder, False), (folder, True)):
        if noted:
            (folder / "entry.json").write_text(json.dumps(told))
        (of_suite,) = site_board(entry.parent, tmp_path / "verified", scene.board.shared).suites
        (row,) = [row for row in shown_suite(of_suite, 0)["rows"] if row["page"]]
        assert row["other_processor"] == noted
        assert timed_elsewhere(read_entry(entry, scene.board.shared)) == noted
        assert not (noted and row["cost"]), "a round took longer or shorter on another machine"
        facts = shown_entry(read(entry, tmp_path / "verified", scene.board.shared))["facts"]
        assert ("own Amber): their last bits differ" in dict(facts).get("Processors", "")) == noted


def test_a_set_that_lacks_seeds_is_not_mixed_with_one_that_has_them(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At seed 1 the further set has nothing, and the first one has: both seeds are measured against the first one."""
    both = two_seeds(monkeypatch)
    computing(monkeypatch, OTHER)
    whole = prepared(tmp_path, tmp_path / "empty", scene.board.shared, of=both)
    assert whole.references.of is not None
    assert (len(whole.references.cells), whole.references.of.name) == (8, "")
    one = prepared(tmp_path, tmp_path / "empty", scene.board.shared, of=both, seeds=1)
    assert one.references.of is not None
    assert (len(one.references.cells), one.seeds, one.references.of.name) == (4, (0,), scene.name)


@pytest.mark.slow
def test_a_set_of_another_torch_that_has_further_seeds_is_no_choice(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the entry has those seeds that the set of this torch has."""
    both = two_seeds(monkeypatch)
    copy = copy_of(scene.board, tmp_path)
    shutil.rmtree(copy.shared / TITLE / "cells")
    publish_all(Board(scene.board.store, copy.shared), (0,))
    of_torch(copy.store, "2.14.9", (0, 1))
    publish_all(copy, (0, 1), beside=True)
    with pytest.raises(EntryError) as refused:
        prepared(tmp_path, tmp_path / "empty", copy.shared, of=both)
    assert "4 cells of tiny-v1 that another set has published are not in the one that goes with this" in str(
        refused.value
    )
    assert "submit the first 1 seed alone (--seeds 1)" in str(refused.value)
    one = prepared(tmp_path, tmp_path / "empty", copy.shared, of=both, seeds=1)
    assert (len(one.references.cells), one.seeds) == (4, (0,))


# --- choosing what suits ---


def test_cells_of_two_sets_cannot_be_mixed(scene: Scene, tmp_path: Path) -> None:
    """The undefended attack of the set in which it does more harm, the control of the one in which it learns less."""
    change = taking(id_of(cell_at("attack")), of=scene.further)
    with pytest.raises(EntryError, match=r"it refers to shared cells of several sets .*, not of one"):
        rewritten(scene.first, tmp_path / "1", change)


def test_own_cells_do_not_go_with_another_set(scene: Scene, tmp_path: Path) -> None:
    """Its own cells as they are, and all that it is measured against from the set that suits better."""
    shared_ids = [id_of(cell_at(*role)) for role in ROLES]
    lie = rewritten(scene.first, tmp_path / "1", taking(*shared_ids, of=scene.further))
    assert lie.entry.shared_set == scene.name
    for archive in (None, lie.archive):
        found = verified(lie, archive=archive)
        assert found.verdict == "rejected"
        assert found.reasons[0].startswith(f"it is measured against the set {scene.name} of published cells, and with")
        assert "it belongs to the first set; remove its folder and submit it again" in found.reasons[0]


@pytest.mark.slow
def test_own_cells_go_with_another_set_where_none_is_theirs(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a set of theirs is published; then the row is written anew, from the cells that it has."""
    computing(monkeypatch, "SSE10")
    store = Path(shutil.copytree(scene.board.store, tmp_path / "store"))
    for cell in scene.first.entry.brought:
        directory = Store(store).cell(cell.cell_id)
        directory.write(made_on("SSE10")(Record.model_validate(read_sealed(directory.record_path))))
    of = made(tmp_path / "made", HEARS, monkeypatch, store=store, shared=scene.board.shared)
    found = verified(of)
    assert (found.verdict, found.flags, of.entry.shared_set) == ("rescored", (), "")
    copy = copy_of(Board(store, scene.board.shared), tmp_path / "copy")
    for role in ROLES:
        changed(copy.store, cell_at(*role), made_on("SSE10"))
    name = publish_all(copy, (0,), beside=True).folder.name
    found = verified(of, shared=copy.shared)
    assert found.verdict == "rejected"
    assert f"it belongs to the set {name}; remove its folder and submit it again" in found.reasons[0]
    again = made(tmp_path / "again", HEARS, monkeypatch, store=store, shared=copy.shared)
    assert (verified(again, shared=copy.shared).verdict, again.entry.shared_set) == ("rescored", name)


def test_a_manifest_that_says_another_machine_does_not_help(scene: Scene, tmp_path: Path) -> None:
    """Then its records say otherwise."""
    shared_ids = [id_of(cell_at(*role)) for role in ROLES]
    lie = rewritten(scene.first, tmp_path / "1", taking(*shared_ids, of=scene.further))
    path = lie.folder / "entry.json"
    told = json.loads(path.read_text())
    told["machine"]["capability"] = OTHER
    path.write_text(json.dumps(told))
    found = verified(lie)
    assert found.verdict == "rejected"
    assert any("was not made as its delivery says" in reason and OTHER in reason for reason in found.reasons)


def test_brought_cells_are_compared_with_the_set_that_they_say_they_are_like(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that brings the first set's cells and says that the other machine made them."""
    nothing = tmp_path / "nothing"
    own = made(tmp_path / "own", HEARS, monkeypatch, store=scene.board.store, shared=nothing)
    of_there = made(tmp_path / "there", HEARS, monkeypatch, store=scene.there, shared=nothing)
    for each, flags in ((own, ()), (of_there, ())):
        found = verified(Made(each.entry, each.archive, scene.board.shared))
        assert (found.verdict, found.flags) == ("rescored", flags), "each brings the cells of its own set"
    machine = own.entry.manifest.machine | {"capability": OTHER}
    store = copied(own, tmp_path / "store")
    lie = resigned(own, tmp_path / "2", store, list(own.entry.cells), machine=machine)
    found = verified(Made(lie.entry, lie.archive, scene.board.shared))
    assert found.verdict == "rejected"
    assert (
        f"was not made as its delivery says: vector capability {arithmetic_here('cpu')['capability']} and {OTHER}"
        in (found.reasons[0])
    )


@pytest.mark.slow
def test_cells_of_another_torch_that_say_to_be_of_this_one_are_other_shared_cells(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are compared with the set that the row belongs to, not with the first one, whose completions they have."""
    old, shared = Path(shutil.copytree(scene.board.store, tmp_path / "old")), tmp_path / "shared"
    of_torch(old, "2.14.9", (0,))
    publish_all(Board(old, shared), (0,))
    name = publish_all(Board(scene.there, shared), (0,), beside=True).folder.name
    honest = made(tmp_path / "honest", HEARS, monkeypatch, store=scene.board.store, shared=shared)
    assert (honest.entry.shared_set, verified(honest, shared=shared).verdict) == (name, "rescored")
    of_torch(old, arithmetic_here("cpu")["torch"], (0,))
    lie = made(tmp_path / "lie", HEARS, monkeypatch, store=old, shared=tmp_path / "nothing")
    assert not lie.entry.published
    found = verified(lie, shared=shared)
    assert (found.verdict, found.flags) == ("self-reported", ("other shared cells",))


def test_cells_that_only_another_set_has_are_not_the_entry_s_to_bring(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that refers to the further set at seed 0, and at seed 1, where that has nothing, brings its own."""
    both = suite(seeds=(0, 1))
    copy = copy_of(scene.board, tmp_path)
    made(tmp_path / "run", HEARS, monkeypatch, of=both, store=copy.store, shared=tmp_path / "nothing")
    on_another_machine(copy.store, (0, 1))
    alone = tmp_path / "alone"
    shutil.copytree(copy.shared, alone)
    for path in (alone / TITLE / "cells").iterdir():
        path.unlink()
    mixed = made(tmp_path / "mixed", HEARS, monkeypatch, of=both, store=copy.store, shared=alone)
    assert (len(mixed.entry.published), len(mixed.entry.brought)) == (4, 8), "no other set has seed 1"
    assert verified(mixed).verdict == "rescored"
    found = verified(Made(mixed.entry, mixed.archive, copy.shared))
    assert found.verdict == "rejected"
    assert "it belongs to the first set" in found.reasons[0], "which has all seeds, although it is not of its kind"


@pytest.mark.slow
def test_cells_that_only_a_set_of_another_torch_has_are_not_the_entry_s_to_bring(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 0 is measured against the set of this torch; seed 1 would be what the author computed in place of that."""
    both, copy = suite(seeds=(0, 1)), copy_of(scene.board, tmp_path)
    publish_all(Board(copy.store, tmp_path / "alone"), (0,))
    mixed = made(tmp_path / "mixed", HEARS, monkeypatch, of=both, store=copy.store, shared=tmp_path / "alone")
    assert (len(mixed.entry.published), len(mixed.entry.brought)) == (4, 8), "no other set has seed 1"
    full = Path(shutil.copytree(tmp_path / "alone", tmp_path / "full"))
    of_torch(copy.store, "2.14.9", (0, 1))
    publish_all(Board(copy.store, full), (0, 1), beside=True)
    found = verified(Made(mixed.entry, mixed.archive, full))
    assert (found.verdict, found.flags) == ("self-reported", ("other shared cells",))
    assert any("not in the set that the row is measured against" in reason for reason in found.reasons)


def test_an_entry_does_not_grow_into_another_set(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With seed 0 of the further set, seed 1 of the first one would be a choice."""
    both = two_seeds(monkeypatch)
    begun = prepared(tmp_path, scene.there, scene.board.shared, of=both, seeds=1)
    submit.write(begun, submit.run(begun, tiny.Watcher()))
    with pytest.raises(EntryError, match="it belongs to the first set; remove its folder and submit it again"):
        prepared(tmp_path, scene.board.store, scene.board.shared, of=both, seeds=2)


@pytest.mark.slow
def test_settings_decide_before_the_machine(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set with another number of threads serves those who ask for it, on the machine of the first one too."""
    copy = copy_of(scene.board, tmp_path)
    shutil.rmtree(copy.shared / TITLE / "sets")
    run_with_two_threads(copy.store)
    name = publish_all(copy, (0,), beside=True, threads=2).folder.name
    for capability in (arithmetic_here("cpu")["capability"], "SSE10"):
        computing(monkeypatch, capability)
        own = prepared(tmp_path / "1", tmp_path / "empty", copy.shared, numerics=TWO_THREADS)
        assert own.references.of is not None
        assert own.references.of.name == name
        assert {cell.threads for cell in own.references.cells} == {2}


def test_where_no_set_is_its_own_a_row_belongs_to_the_first_one(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that lacks the first set is no way to another one."""
    computing(monkeypatch, "SSE10")
    copy = copy_of(scene.board, tmp_path)
    shutil.rmtree(copy.shared / TITLE / "cells")
    store = Path(shutil.copytree(scene.board.store, tmp_path / "sse10"))
    for cell in scene.first.entry.brought:
        says(store, cell.cell_id, capability="SSE10")
    of = made(tmp_path / "made", HEARS, monkeypatch, store=store, shared=copy.shared)
    assert of.entry.shared_set == scene.name
    assert verified(of, shared=copy.shared).verdict == "rescored"
    found = verified(of, shared=scene.board.shared)
    assert found.verdict == "rejected"
    assert "it belongs to the first set" in found.reasons[0]


def test_all_that_an_entry_brings_is_made_alike(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own cells of one machine and copies of the published ones of another, or two own cells of two machines."""
    store = Path(shutil.copytree(scene.board.store, tmp_path / "store"))
    for number, brought in enumerate((scene.first.entry.brought, scene.first.entry.brought[:1])):
        for cell in brought:
            says(store, cell.cell_id, capability=f"SSE{number + 10}")
        with pytest.raises(EntryError, match="all cells that an entry brings are made alike"):
            made(tmp_path / str(number), HEARS, monkeypatch, store=store, shared=tmp_path / "nothing")
    whole = made(tmp_path / "whole", HEARS, monkeypatch, store=scene.board.store, shared=tmp_path / "nothing")
    machine = whole.entry.manifest.machine | {"capability": f"{arithmetic_here('cpu')['capability']} / SSE10"}
    store = copied(whole, tmp_path / "copy")
    lie = resigned(whole, tmp_path / "lie", store, list(whole.entry.cells), machine=machine)
    found = verified(Made(lie.entry, lie.archive, scene.board.shared))
    assert found.verdict == "rejected"
    assert "of the vector instructions that torch used" in found.reasons[0]


@pytest.mark.parametrize("capability", [None, "", "avx2", "AVX2 ", "AVX2\n", "A" * 1500])
def test_a_machine_that_does_not_say_how_it_computes_is_not_believed(
    scene: Scene, tmp_path: Path, capability: object
) -> None:
    """Otherwise own cells would be like no set, and the author could choose one."""
    folder = Path(shutil.copytree(scene.first.folder, tmp_path / "mine"))
    path = folder / "entry.json"
    told = json.loads(path.read_text())
    told["machine"]["capability"] = capability
    path.write_text(json.dumps(told))
    entry = read_entry(folder, scene.board.shared)
    found = verified(Made(entry, scene.first.archive, scene.board.shared))
    assert found.verdict == "rejected"
    assert "of the vector instructions that torch used" in found.reasons[0]


def test_an_entry_does_not_grow_once_another_set_is_its_own(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be rejected afterwards."""
    both = two_seeds(monkeypatch)
    computing(monkeypatch, "SSE10")
    copy = copy_of(scene.board, tmp_path)
    shutil.rmtree(copy.shared / TITLE / "sets")
    begun = prepared(tmp_path, copy.store, copy.shared, of=both, seeds=1)
    for record in submit.run(begun, tiny.Watcher()):
        says(copy.store, record.cell_id, capability="SSE10")
    begun = prepared(tmp_path, copy.store, copy.shared, of=both, seeds=1)
    submit.write(begun, submit.run(begun, tiny.Watcher()))
    for seed in (0, 1):
        for role in ROLES:
            changed(copy.store, cell_at(*role, seed=seed), made_on("SSE10"))
    name = publish_all(copy, (0, 1), beside=True).folder.name
    with pytest.raises(EntryError, match=f"it belongs to the set {name}; remove its folder and submit it again"):
        prepared(tmp_path, copy.store, copy.shared, of=both, seeds=2)


@pytest.mark.slow
def test_an_entry_does_not_grow_where_it_would_belong_to_another_set(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first set, seed 0 alone was made as its own cells were; of the further one, both seeds."""
    both = two_seeds(monkeypatch)
    copy = copy_of(scene.board, tmp_path)
    shutil.rmtree(copy.shared / TITLE)
    publish_all(copy, (0,))
    begun = prepared(tmp_path, copy.store, copy.shared, of=both, seeds=1)
    submit.write(begun, submit.run(begun, tiny.Watcher()))
    there = Board(Path(shutil.copytree(copy.store, tmp_path / "there")), copy.shared)
    for role in ROLES:
        changed(there.store, cell_at(*role, seed=1), made_on(OTHER))
    publish_all(there, (0, 1))
    name = publish_all(copy, (0, 1), beside=True).folder.name
    with pytest.raises(EntryError, match=f"it belongs to the set {name}; remove its folder and submit it again"):
        prepared(tmp_path, copy.store, copy.shared, of=both, seeds=2)


def test_the_note_on_processors_is_about_the_own_cells(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not about the machine that submits them."""
    of_there = prepared(tmp_path / "1", scene.there, scene.board.shared)
    assert (of_there.references.of is not None, len(submit.measured_against(of_there))) == (True, 1)


@pytest.mark.slow
def test_the_number_of_threads_is_that_of_a_set_that_can_be_used(scene: Scene, tmp_path: Path) -> None:
    copy = copy_of(scene.board, tmp_path)
    shutil.rmtree(copy.shared / TITLE)
    of_torch(copy.store, "2.14.9", (0, 1))
    publish_all(copy, (0, 1))
    assert published_threads(suite(), copy.shared) == 1, "nothing else is there"
    two = copy_of(Board(scene.there, copy.shared), tmp_path / "two")
    for cell_id in run_with_two_threads(two.store):
        says(two.store, cell_id, capability=OTHER)
    publish_all(two, (0,), beside=True, threads=2)
    assert published_threads(suite(), two.shared) == 2


def test_a_stranger_s_set_is_not_read(scene: Scene, tmp_path: Path) -> None:
    """Names that are none are left out, and so is a set that lies beside the entry."""
    copy = copy_of(scene.board, tmp_path)
    sets = copy.shared / TITLE / "sets"
    for name in ("..x", ".hidden", "A", "a b"):
        shutil.copytree(sets / scene.name, sets / name)
    assert [each.name for each in published_sets(copy.shared, TITLE)] == ["", scene.name]
    shutil.rmtree(sets)
    with pytest.raises(EntryError, match="another content of the shared cell"):
        read_entry(scene.further.folder, copy.shared)
    assert all(isinstance(each, Record) for each in Store(copy.store).records())


def grown_on_two_machines(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published_first: bool
) -> tuple[Made, Path]:
    """An entry whose second seed was computed elsewhere, verified, and the published cells that it is measured against.

    Args:
        published_first: whether they were there when its first seed was submitted.
    """
    both = two_seeds(monkeypatch)
    store, shared = Path(shutil.copytree(scene.board.store, tmp_path / "store")), tmp_path / "shared"
    made(tmp_path / "whole", HEARS, monkeypatch, of=both, store=store, shared=tmp_path / "nothing")
    if published_first:
        publish_all(Board(store, shared), (0, 1))
    made(tmp_path / "grown", HEARS, monkeypatch, of=both, store=store, shared=shared, seeds=1)
    if not published_first:
        publish_all(Board(store, shared), (0, 1))
    for role in ROLES:
        shutil.rmtree(Store(store).cell(id_of(cell_at(*role, seed=1))).path)
    for record in [each for each in Store(store).records() if each.cell["seed"] == 1]:
        Store(store).cell(record.cell_id).write(made_on(OTHER)(record))
    grown = made(tmp_path / "grown", HEARS, monkeypatch, of=both, store=store, shared=shared, seeds=2)
    assert [each.machine["capability"] == OTHER for each in grown.entry.manifest.deliveries] == [False, True]
    archives = grown.archive.with_name("mine.tar"), grown.archive.with_name("mine.seed-1.tar")
    found = verified(grown, shared=shared, archive=archives[0], further=archives[1:])
    assert [(each.seeds, each.verdict) for each in found.deliveries] == [((0,), "rescored"), ((1,), "rescored")]
    return grown, shared


@pytest.mark.slow
def test_an_entry_goes_on_where_other_instructions_are_used_if_all_shared_cells_are_published(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown, _ = grown_on_two_machines(scene, tmp_path, monkeypatch, published_first=True)
    assert apart_from_published(grown.entry).startswith("seed 1: the published cells and the defense's own")


@pytest.mark.slow
def test_cells_that_were_brought_before_they_were_published_keep_nobody_from_going_on_elsewhere(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown, shared = grown_on_two_machines(scene, tmp_path, monkeypatch, published_first=False)
    entry = grown.entry
    brought = [cell for cell in entry.brought if cell.defense != entry.manifest.defense]
    assert {cell.seed for cell in brought} == {0}, "the later seed refers to published ones"
    assert not entry.further
    numbers = {**brought[0].scores, "clean_reward": brought[0].scores["asr"]}
    for change in ({"record_sha256": "0" * 64}, {"scores": numbers}, {"schema_version": 1}, {"curves": {}}):
        cells = [cell.model_copy(update=change) if cell == brought[0] else cell for cell in entry.cells]
        edited = Entry(entry.folder, entry.manifest, cells, entry.published, entry.shared_set, entry.sha256, shared)
        assert [cell.cell_id for cell in edited.further] == [brought[0].cell_id], change
        with pytest.raises(EntryError, match="its seed 1 and its seed 0 were not made alike"):
            check_alike(edited)


@pytest.mark.slow
def test_seeds_verified_one_at_a_time_are_held_to_the_set_of_the_whole_entry(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first seed brings cells of a further set, and its second refers to the first set."""
    both = two_seeds(monkeypatch)
    store, shared = Path(shutil.copytree(scene.there, tmp_path / "store")), scene.board.shared
    whole = Path(shutil.copytree(scene.board.store, tmp_path / "whole store"))
    made(tmp_path / "whole", HEARS, monkeypatch, of=both, store=whole, shared=tmp_path / "nothing")
    for record in [each for each in Store(whole).records() if each.cell["defense"] not in ("none", "oracle")]:
        cell = Store(store).cell(record.cell_id)
        shutil.copytree(Store(whole).cell(record.cell_id).path, cell.path, dirs_exist_ok=True)
        cell.write(made_on(OTHER)(record))
    made(tmp_path / "grown", HEARS, monkeypatch, of=both, store=store, shared=tmp_path / "nothing", seeds=1)
    with monkeypatch.context() as patch:
        patch.setattr(growing, "other_cells", lambda *_: iter(()))
        computing(patch, OTHER)
        grown = made(tmp_path / "grown", HEARS, patch, of=both, store=store, shared=shared, seeds=2)
    assert (grown.entry.shared_set, bool(grown.entry.published)) == ("", True)
    first, second = grown.archive.with_name("mine.tar"), grown.archive.with_name("mine.seed-1.tar")
    together = verified(grown, shared=shared, archive=first, further=(second,))
    assert (together.verdict, together.flags) == ("self-reported", ("other shared cells",))
    alone = verified(grown, shared=shared, archive=first)
    assert [each.verdict for each in alone.deliveries] == ["self-reported", "self-reported"]
    assert alone.flags == ("other shared cells",)
