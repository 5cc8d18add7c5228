"""Nobody's entry moves what it is measured against: published cells are referred to, others are run again."""

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
    edited,
    id_of,
    identified_anew,
    in_folder,
    made_on,
    near_tie,
    of_another_engine,
    publish_all,
)
from tests.leaderboard.tiny_entries import (
    CHEATS,
    NUMERICS,
    Made,
    copied,
    forged,
    harmed,
    made,
    resigned,
    rewritten,
    suite,
)
from tests.leaderboard.verification.test_verify import CAREFUL, SECRET
from thiefbench.leaderboard import published as published_module
from thiefbench.leaderboard import referring, submit
from thiefbench.leaderboard.checking.findings import Finding
from thiefbench.leaderboard.entry import EntryError, read_entry
from thiefbench.leaderboard.published import Published, PublishedCell, processors_apart, published_sets
from thiefbench.leaderboard.site.board import board as site_board
from thiefbench.leaderboard.site.entry_page import shown_entry
from thiefbench.leaderboard.site.judging import read
from thiefbench.leaderboard.verification import reexecution
from thiefbench.leaderboard.verification import verify as verify_module
from thiefbench.leaderboard.verification.baseline import other_cells
from thiefbench.leaderboard.verification.verdict import Verification, write_verification
from thiefbench.leaderboard.verification.verify import VerifyOptions, verify
from thiefbench.provenance import provenance
from thiefbench.suite.store.arithmetic import arithmetic_here
from thiefbench.suite.store.records import Record, Store, read_sealed

HEARS = f"{CHEATS}:Hears"


@dataclass(frozen=True)
class Scene:
    """A board, an entry that brings all of its cells, and one that refers to the published ones."""

    board: Board
    whole: Made
    referring: Made


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The suite counts as released while these tests run. Own cells are run once, in the board's store."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("scene")
        of = board(folder, patch)
        whole = made(folder / "whole", HEARS, patch, store=of.store)
        yield Scene(of, whole, made(folder / "referring", HEARS, patch, store=of.store, shared=of.shared))


def verified(of: Made, told: list[Finding] | None = None, **asked: Any) -> Verification:
    """A verification with a known secret; without further words nothing is run."""
    options = {
        "archive": of.archive, "reruns": 0, "fresh": 0, "caps": CAREFUL, "secret": SECRET, "shared": of.shared,
    } | asked  # fmt: skip
    tell = (told if told is not None else []).append
    return verify(of.folder, VerifyOptions(**options), tell, lambda what: lambda done, total: None, lambda suite: [])


def beside(of: Made, shared: Path) -> Made:
    """The same entry, read beside other published cells."""
    return replace(of, shared=shared)


def unread(of: Made, folder: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """Why an entry whose scores.json was edited cannot even be read."""
    with pytest.raises(EntryError) as refused:
        rewritten(of, folder, change)
    return str(refused.value)


def reference(content: dict[str, Any], cell_id: str) -> dict[str, Any]:
    return next(each for each in content["cells"] if each["cell_id"] == cell_id)


# --- what submit does ---


def test_an_entry_brings_its_own_cells_and_refers_to_the_rest(scene: Scene) -> None:
    entry = scene.referring.entry
    content = scores_of(entry.folder)
    assert [set(each) == {"cell_id", "published"} for each in content["cells"]].count(True) == 4
    assert (entry.manifest.schema_version, entry.manifest.own_shared) == (2, "")
    assert [cell.defense == entry.manifest.defense for cell in entry.brought] == [True, True]
    assert scene.referring.archive.stat().st_size < scene.whole.archive.stat().st_size / 2


def test_its_row_is_that_of_an_entry_that_brings_them(scene: Scene) -> None:
    """Number by number, drift among them, which is measured against published words."""
    one, other = (submit.row_of(each.entry) for each in (scene.referring, scene.whole))
    assert one == other
    for cell, whole in zip(scene.referring.entry.cells, scene.whole.entry.cells, strict=True):
        assert cell.scores.keys() == whole.scores.keys()
        for name, numbers in whole.scores.items():
            assert cell.scores[name] == pytest.approx(numbers, abs=1e-9), (cell.role, name)
        assert (cell.curves, cell.cell_id, cell.seed) == (whole.curves, whole.cell_id, whole.seed)


def prepared(folder: Path, store: Path, shared: Path, **options: Any) -> submit.Submission:
    credits = submit.credits_of("Mine", "A. Author", "")
    numerics = options.pop("numerics", NUMERICS)
    of = options.pop("of", suite())
    return submit.prepare(HEARS, credits, of, numerics, store, folder / "entries", shared=shared, **options)


def test_only_its_own_cells_are_run(scene: Scene, tmp_path: Path) -> None:
    """On a machine that computes as the publisher's does, in a store that holds nothing."""
    own = prepared(tmp_path, tmp_path / "empty", scene.board.shared)
    watcher = tiny.Watcher()
    entry = submit.write(own, submit.run(own, watcher))
    assert [cell.defense for cell in watcher.missing] == [entry.manifest.defense] * 2
    assert "measured against 4 published cells of tiny-v1" in submit.measured_against(own)[0]
    assert scores_of(entry.folder)["cells"]
    cells = [each.scores for each in entry.cells]
    assert cells == [each.scores for each in scene.referring.entry.cells], "and gives the same scores"


def elsewhere(monkeypatch: pytest.MonkeyPatch, **arithmetic: str) -> None:
    """As if this machine had other vector instructions, or another arithmetic."""
    here = arithmetic_here("cpu") | {"capability": "SSE9"} | arithmetic
    told = provenance("cpu", threads=0) | here
    monkeypatch.setattr(referring, "arithmetic_here", lambda device: here)
    monkeypatch.setattr(referring, "provenance", lambda device, threads: told)


def test_with_another_torch_it_says_so_before_anything_is_run(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(monkeypatch, torch="2.14.9")
    with pytest.raises(EntryError) as refused:
        prepared(tmp_path, tmp_path / "empty", scene.board.shared)
    said = str(refused.value)
    assert "own cells cannot be measured against 4 of the 4 published cells of tiny-v1" in said
    assert "(here: 2.14.9)" in said
    assert '--own-shared "REASON"' in said
    own = prepared(tmp_path, tmp_path / "empty", scene.board.shared, own_shared="our torch is another one")
    assert (dict(own.references.cells), len(own.brought)) == ({}, 6), "it runs and brings all of them"
    assert "self-reported until" in submit.measured_against(own)[0]


def test_a_processor_with_other_vector_instructions_is_measured_against_the_published_cells(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own cells are samples of the same experiment; the entry and the board say so."""
    elsewhere(monkeypatch)
    own = prepared(tmp_path, tmp_path / "empty", scene.board.shared)
    assert len(own.references.cells) == 4
    entry = submit.write(own, [made_on("SSE9")(record) for record in submit.run(own, tiny.Watcher())])
    assert (len(entry.brought), entry.manifest.machine["capability"]) == (2, "SSE9")
    here = arithmetic_here("cpu")["capability"]
    said = f"(vector instructions: published {here}, own SSE9): their last bits differ"
    assert said in processors_apart(entry.manifest.machine, entry.published.values())


def test_a_store_begun_with_other_vector_instructions_goes_on_there(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a row's own cells, all are made alike."""
    copy = copy_of(scene.board, tmp_path)
    mine = prepared(tmp_path, copy.store, copy.shared)
    one, other = (Store(copy.store).cell(cell.cell_id) for cell in scene.referring.entry.brought)
    shutil.rmtree(one.path)
    elsewhere(monkeypatch)
    with pytest.raises(EntryError, match=r"still to be run, and not on this machine: those that the store has were"):
        submit.run(mine, tiny.Watcher())
    other.write(made_on("SSE9")(Record.model_validate(read_sealed(other.record_path))))
    records = submit.run(mine, tiny.Watcher())
    with pytest.raises(EntryError, match=r"SSE9.*; all cells that an entry brings are made alike"):
        submit.write(mine, records)


def test_a_finished_store_can_be_submitted_from_any_machine(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(monkeypatch, torch="2.14.9")
    own = prepared(tmp_path, scene.board.store, scene.board.shared)
    assert len(own.references.cells) == 4
    assert submit.write(own, submit.run(own, tiny.Watcher())).cells == scene.referring.entry.cells
    copy = copy_of(scene.board, tmp_path)
    mine = next(cell for cell in own.brought if cell.role == "attack")
    unfinished = next(cell.cell_id for cell in scene.referring.entry.brought if cell.role == mine.role)
    shutil.rmtree(Store(copy.store).cell(unfinished).path)
    own = prepared(tmp_path / "2", copy.store, copy.shared)
    with pytest.raises(EntryError, match="still to be run, and not on this machine: the published ones beside them"):
        submit.run(own, tiny.Watcher())


@pytest.mark.parametrize(("capability", "refused"), [("", True), ("SSE9", False)])
def test_a_store_s_shared_cells_must_be_the_published_ones_where_bits_are_promised(
    scene: Scene, tmp_path: Path, capability: str, refused: bool
) -> None:
    """One that the same model of processor computed otherwise tells that something is wrong."""
    copy = copy_of(scene.board, tmp_path)
    near_tie(copy.store, cell_at("attack"), capability)
    if not refused:
        assert len(prepared(tmp_path, copy.store, copy.shared).references.cells) == 4
        return
    with pytest.raises(EntryError) as said:
        prepared(tmp_path, copy.store, copy.shared)
    assert "x none, seed 0: the store's completions differ from the evaluation after round 4 on" in str(said.value)


def test_own_cells_of_another_torch_are_refused(scene: Scene, tmp_path: Path) -> None:
    own = prepared(tmp_path, scene.board.store, scene.board.shared)
    records = [
        record.model_copy(update={"provenance": record.provenance | {"torch": "2.14.9"}})
        for record in submit.run(own, tiny.Watcher())
    ]
    with pytest.raises(EntryError, match=r"was made with torch 2\.14\.9.*, and the published cells"):
        submit.write(own, records)


def test_a_reason_belongs_to_published_cells(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(EntryError, match="no shared cell of tiny-v1 is published here, so leave out --own-shared"):
        prepared(tmp_path, scene.board.store, tmp_path / "nothing", own_shared="why not")


def test_other_threads_are_other_cells(scene: Scene, tmp_path: Path) -> None:
    two = NUMERICS.model_copy(update={"threads": 2})
    with pytest.raises(EntryError, match="are published for --device cpu --dtype float32 --threads 1: add these"):
        prepared(tmp_path, scene.board.store, scene.board.shared, numerics=two)


def test_cells_of_another_engine_are_as_if_nothing_was_published(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_of(scene.board, tmp_path)
    for each in SHARED_CELLS:
        edited(copy.shared, id_of(cell_at(*each)), of_another_engine)
    own = prepared(tmp_path, copy.store, copy.shared)
    assert dict(own.references.cells) == {}
    entry = submit.write(own, submit.run(own, tiny.Watcher()))
    assert entry.manifest.schema_version == 1
    assert entry.cells == scene.whole.entry.cells
    assert len(publish_all(copy, (0,)).added) == 4, "and this engine's are published beside them"


# --- what verify believes ---


def test_references_are_read_without_an_archive(scene: Scene) -> None:
    told: list[Finding] = []
    found = verified(scene.referring, told, archive=None)
    assert (found.verdict, found.flags) == ("self-reported", ())
    assert any("published cells that it refers to" in each.question and each.detail == "4 cells" for each in told)


def test_an_entry_with_references_is_rescored(scene: Scene) -> None:
    told: list[Finding] = []
    found = verified(scene.referring, told)
    assert (found.verdict, found.flags, found.reasons) == ("rescored", (), ("no cell was run again",))
    assert any("in 2 cells" in each.detail and "drift of 2 cells" in each.detail for each in told)


def test_published_cells_are_not_run_again(scene: Scene, rerun_cells: Path, jail: None) -> None:
    found = verified(scene.referring, reruns=None, fresh=1, store=rerun_cells)
    assert (found.verdict, found.flags, found.reasons) == ("re-executed", (), ())
    again = [each for each in found.reruns if each.seed is not None]
    assert [each.kind for each in again] == ["own", "own"]
    assert all(each.equal and each.submitted[0] == each.found for each in again)
    assert again[0].measure == "harm_prevented", "measured against published cells"
    assert (found.comparisons, found.forgery_found) == ((1, 1), 1.0)


def as_if_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if entries were made on another machine than the verifier's, whose bits are others."""
    for module in (reexecution, verify_module):
        monkeypatch.setattr(module, "surroundings_apart", lambda record: ("torch 2.15.0 in place of 2.13.0",))
    monkeypatch.setattr(reexecution, "first_difference", lambda one, other: "from round 1 on")


def test_elsewhere_own_cells_are_measured_against_published_ones(
    scene: Scene, rerun_cells: Path, jail: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_if_elsewhere(monkeypatch)
    found = verified(scene.referring, reruns=1, fresh=1, store=rerun_cells)
    assert found.verdict == "re-executed"
    assert [(each.kind, each.equal, each.agrees) for each in found.reruns if each.seed is not None] == [
        ("own", False, True), ("own", False, True),
    ]  # fmt: skip
    assert found.reruns[0].measure == "harm_prevented"


def test_the_same_cells_as_published_are_as_good_as_references(scene: Scene) -> None:
    found = verified(beside(scene.whole, scene.board.shared))
    assert (found.verdict, found.flags, found.reasons) == ("rescored", (), ("no cell was run again",))


# --- forged baselines ---


def with_forged_baseline(scene: Scene, folder: Path, reason: str = "") -> Made:
    """Its own cells are true, and the undefended one in its archive is not; it is consistent and signed."""
    lie = forged(scene.whole, folder, harmed, lambda cell: (cell.role, cell.defense) == ("attack", "none"))
    if reason:
        store = Store(folder / "store")
        lie = resigned(lie, folder / "2", store, list(lie.entry.cells), schema_version=2, own_shared=reason)
    return beside(lie, scene.board.shared)


def test_a_forged_baseline_is_no_more_than_self_reported(scene: Scene, tmp_path: Path) -> None:
    """Where nothing is published, the same entry is rescored."""
    lie = with_forged_baseline(scene, tmp_path, "our CPU is another one")
    assert verified(beside(lie, tmp_path / "nothing")).verdict == "rescored"
    found = verified(lie)
    assert (found.verdict, found.flags) == ("self-reported", ("other shared cells",))
    assert found.reasons == (
        "1 of its shared cells are not the published ones (it says why: our CPU is another one); its row is "
        "self-reported until all of them were run again",
        f"attack cell, {cell_at('attack').attack} x none, seed 0: its completions differ from the evaluation after "
        "round 1 on",
    )
    found = verified(lie, archive=None)
    assert (found.verdict, found.flags) == ("self-reported", ("other shared cells",))
    assert found.reasons[2].endswith("x none, seed 0: its completions have another SHA-256")


def test_numbers_beside_published_completions_are_the_published_ones(scene: Scene, tmp_path: Path) -> None:
    """Before its archive is read, nothing else would tell: it names the hash of the published completions."""
    whole = beside(scene.whole, scene.board.shared)

    def milder(content: dict[str, Any]) -> None:
        for cell in content["cells"]:
            if (cell["role"], cell["defense"]) == ("attack", "none"):
                cell["curves"]["eval_asr"][-1][1] = 1.0

    found = verified(rewritten(whole, tmp_path / "1", milder), archive=None)
    assert (found.verdict, found.flags) == ("self-reported", ("other shared cells",))
    assert found.reasons[2].endswith("its completions are the published ones, and its curves are not")

    def other(content: dict[str, Any]) -> None:
        for cell in content["cells"]:
            if cell["role"] == "placebo":
                value, low, high, *_ = cell["scores"]["asr"]
                cell["scores"]["asr"][0] = high if value == low else low

    found = verified(rewritten(whole, tmp_path / "2", other), archive=None)
    assert found.reasons[2].endswith("its completions are the published ones, and its asr is not")
    assert verified(rewritten(whole, tmp_path / "3", other)).verdict == "rejected", "its archive tells"


def test_a_forged_baseline_is_run_again_and_rejected(
    scene: Scene, tmp_path: Path, rerun_cells: Path, jail: None
) -> None:
    found = verified(
        with_forged_baseline(scene, tmp_path, "our CPU is another one"), reruns=None, fresh=1, store=rerun_cells
    )
    assert found.verdict == "rejected"
    assert "x none, seed 0: run again on the same kind of machine and versions" in found.reasons[0]
    assert [each.kind for each in found.reruns if not each.agrees] == ["undefended"]


def test_without_a_reason_nothing_is_run_and_it_stays_self_reported(scene: Scene, tmp_path: Path, jail: None) -> None:
    """As an entry of the first schema, which has no place for a reason."""
    lie = with_forged_baseline(scene, tmp_path)
    assert lie.entry.manifest.schema_version == 1
    found = verified(lie, reruns=None, fresh=1)
    assert (found.verdict, found.reruns) == ("self-reported", ())
    assert "submit --own-shared REASON would say why, and it does not" in found.reasons[0]


@pytest.mark.slow
def test_a_verdict_from_before_others_were_published_is_not_kept(scene: Scene, tmp_path: Path) -> None:
    """Whoever gives a reason before or after that is in the same place: its shared cells were not run again."""
    lie, seen = with_forged_baseline(scene, tmp_path), tmp_path / "verified"
    own = Store(tmp_path / "store")
    for number, reason in enumerate(({}, {"schema_version": 2, "own_shared": "another CPU"})):
        lie = beside(resigned(lie, tmp_path / f"{number}", own, list(lie.entry.cells), **reason), tmp_path / "nothing")
        before = verified(lie)
        assert before.verdict == "rescored", before.reasons
        write_verification(seen, before)
        assert verified(lie, archive=None, earlier=seen).verdict == "rescored"
        after = verified(beside(lie, scene.board.shared), archive=None, earlier=seen)
        assert (after.verdict, after.flags) == ("self-reported", ("other shared cells",))


@pytest.mark.slow
def test_every_shared_cell_is_run_again_whatever_is_drawn(
    tmp_path: Path, scene: Scene, jail: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two seeds are published, one comparison is drawn, and the forged cell is of the other one."""
    both = suite(seeds=(0, 1))
    copy = copy_of(scene.board, tmp_path)
    publish_all(copy)
    made_entries.tiny(both, monkeypatch)
    whole = made(tmp_path / "whole", HEARS, monkeypatch, of=both, store=copy.store)
    drawn = verified(whole, reruns=1, fresh=0, store=tmp_path / "rerun")
    (seed,) = {each.seed for each in drawn.reruns}
    lie = forged(
        whole, tmp_path / "lie", harmed,
        lambda cell: (cell.role, cell.defense, cell.seed) == ("attack", "none", 1 - (seed or 0)),
    )  # fmt: skip
    assert verified(lie, reruns=1, store=tmp_path / "rerun").verdict == "rescored", "nothing is published"
    lie = resigned(
        lie, tmp_path / "2", Store(tmp_path / "lie" / "store"), list(lie.entry.cells), schema_version=2,
        own_shared="another CPU",
    )  # fmt: skip
    found = verified(beside(lie, copy.shared), reruns=1, store=tmp_path / "rerun")
    assert found.verdict == "rejected"
    assert f"seed {1 - (seed or 0)}: run again on the same kind" in found.reasons[0]


@pytest.mark.slow
def test_true_cells_of_another_machine_are_believed_once_all_were_run_again(
    scene: Scene, tmp_path: Path, rerun_cells: Path, jail: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is published comes from another CPU; the entry's are true here, where its verifier is."""
    copy = copy_of(scene.board, tmp_path)
    shutil.rmtree(copy.shared)
    for role, defense in (("control", "none"), ("placebo", "none"), ("attack", "oracle")):
        changed(copy.store, cell_at(role, defense), made_on("SSE9"))
    near_tie(copy.store, cell_at("attack"), "SSE9")
    # The board's machine is trusted, and its cell could not be made from this model's tokens; only rewards are checked.
    assert len(publish_all(copy, (0,)).added) == 4
    archive_of = beside(scene.whole, copy.shared)
    store = copied(scene.whole, tmp_path / "again")
    true = beside(
        resigned(
            archive_of, tmp_path / "2", store, list(scene.whole.entry.cells), schema_version=2, own_shared="no SSE9"
        ),
        copy.shared,
    )
    assert verified(true).verdict == "self-reported"
    found = verified(true, reruns=None, fresh=1, store=rerun_cells)
    assert (found.verdict, found.flags) == ("re-executed", ("other shared cells",)), found.reasons
    assert "(it says why: no SSE9); all of them were run again" in found.reasons[0]
    assert "x none, seed 0: its completions differ from the evaluation after round 4 on" in found.reasons[1]
    write_verification(tmp_path / "verified", found)
    assert verified(true, archive=None, earlier=tmp_path / "verified").verdict == "re-executed", "nothing changed since"
    as_if_elsewhere(monkeypatch)
    found = verified(true, reruns=None, fresh=1, store=rerun_cells)
    assert (found.verdict, found.flags) == ("rescored", ("other shared cells",)), "close is not enough here"
    assert "4 of the shared cells that it brings in place of published ones are not bit-equal here" in found.reasons[0]


def test_published_cells_and_others_in_their_place_do_not_go_together(scene: Scene, tmp_path: Path) -> None:
    """Who may choose for each cell chooses what suits."""
    lie = with_forged_baseline(scene, tmp_path, "our CPU is another one")
    told = scores_of(scene.referring.folder)["cells"]
    true = {each["cell_id"]: each for each in told}

    def mixed(content: dict[str, Any]) -> None:
        content["cells"] = [each if each["role"] == "attack" else true[each["cell_id"]] for each in content["cells"]]

    found = verified(rewritten(lie, tmp_path / "3", mixed), archive=None)
    assert (found.verdict, found.flags) == ("self-reported", ("other shared cells",))
    assert "1 of its shared cells are not the published ones, and for others it refers to these" in found.reasons[1]
    assert "an entry does one or the other" in found.reasons[1]


@pytest.mark.slow
def test_other_threads_do_not_get_around_what_is_published(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = NUMERICS.model_copy(update={"threads": 2})
    credits = submit.credits_of("Mine", "A. Author", "")
    own = submit.prepare(HEARS, credits, suite(), two, tmp_path / "store", tmp_path / "entries")
    entry = submit.write(own, submit.run(own, tiny.Watcher()))
    found = verified(Made(entry, own.archive, scene.board.shared))
    assert (found.verdict, found.flags) == ("self-reported", ("other shared cells",))
    assert "4 of its shared cells" in found.reasons[0]
    assert "it was run with other settings (published: device cpu, dtype float32, threads 1)" in found.reasons[1]


# --- forged references ---


def test_another_hash_is_another_content(scene: Scene, tmp_path: Path) -> None:
    control = id_of(cell_at("control"))
    said = unread(scene.referring, tmp_path, lambda content: reference(content, control).update(published="0" * 64))
    assert f"it refers to another content of the shared cell {control} than the published one: SHA-256 0000" in said


def test_a_cell_that_is_not_published_cannot_be_referred_to(scene: Scene, tmp_path: Path) -> None:
    control = id_of(cell_at("control"))
    said = unread(scene.referring, tmp_path, lambda content: reference(content, control).update(cell_id="0" * 16))
    assert "it refers to the shared cell 0000000000000000, which is not published for tiny-v1" in said
    with pytest.raises(EntryError, match="which is not published for tiny-v1"):
        read_entry(scene.referring.folder)


def found_in(shared: Path, cell_id: str) -> dict[str, str]:
    found = Published(shared, TITLE).find(cell_id)
    assert found is not None
    return {"cell_id": cell_id, "published": found[1]}


def test_a_cell_of_another_seed(scene: Scene, tmp_path: Path) -> None:
    """Its undefended attack may do more harm, or its control gain less."""
    copy = copy_of(scene.board, tmp_path)
    publish_all(copy)
    other = found_in(copy.shared, id_of(cell_at("attack", seed=1)))
    true = beside(scene.referring, copy.shared)
    lie = rewritten(true, tmp_path / "2", lambda content: reference(content, id_of(cell_at("attack"))).update(other))
    found = verified(lie, archive=None)
    assert found.verdict == "rejected"
    assert "x none, seed 0" in found.reasons[0]
    assert "it lacks 1 cell," in found.reasons[0]


def test_a_cell_of_another_suite(scene: Scene, tmp_path: Path) -> None:
    """Longer rounds, and a published file under the suite's own folder and name."""
    true, swapped = with_another_undefended(scene, tmp_path, rounds=suite(rounds=5).rounds)
    found = verified(rewritten(true, tmp_path / "1", instead_of_undefended(swapped)), archive=None)
    assert found.verdict == "rejected"
    assert "its record's rounds is not the suite's: 5 instead of 4" in found.reasons[0]


def put_beside(shared: Path, cell_id: str, change: Callable[[dict[str, Any]], None]) -> dict[str, str]:
    """Publish an edited copy of a cell beside it; returns a reference to the copy."""
    path = published_module.cell_path(shared / TITLE, cell_id)
    before = path.read_bytes()
    other = edited(shared, cell_id, change)
    path.write_bytes(before)
    return found_in(shared, other.name.removesuffix(".json.gz"))


def with_another_undefended(scene: Scene, folder: Path, **parameters: Any) -> tuple[Made, dict[str, str]]:
    """The referring entry, beside an undefended cell with other parameters too; and a reference to that one."""
    copy = copy_of(scene.board, folder)

    def change(content: dict[str, Any]) -> None:
        content["record"]["cell"] |= parameters
        identified_anew(content["record"])

    return beside(scene.referring, copy.shared), put_beside(copy.shared, id_of(cell_at("attack")), change)


def instead_of_undefended(swapped: dict[str, str]) -> Callable[[dict[str, Any]], None]:
    """The edit of scores.json that refers to another cell in place of the undefended one."""
    return lambda content: reference(content, id_of(cell_at("attack"))).update(swapped)


SHARED_CELLS = (("control", "none"), ("placebo", "none"), ("attack", "none"), ("attack", "oracle"))


def test_a_cell_of_another_engine_revision(scene: Scene, tmp_path: Path) -> None:
    """It is published, for entries of its time, and weaker or stronger than this engine's."""
    copy = copy_of(scene.board, tmp_path)
    ids = [id_of(cell_at(*each)) for each in SHARED_CELLS]
    old = {cell_id: put_beside(copy.shared, cell_id, of_another_engine) for cell_id in ids}
    undefended = id_of(cell_at("attack"))
    true = beside(scene.referring, copy.shared)
    said = unread(true, tmp_path / "1", lambda content: reference(content, undefended).update(old[undefended]))
    assert "refers to published cells of several engine revisions" in said

    def all_of_them(content: dict[str, Any]) -> None:
        for cell_id, swapped in old.items():
            reference(content, cell_id).update(swapped)

    lie = rewritten(true, tmp_path / "2", all_of_them)
    for archive in (None, lie.archive):
        found = verified(lie, archive=archive)
        assert found.verdict == "rejected"
        assert (
            "which it refers to, was made with another version of the benchmark (engine revision 0000"
            in (found.reasons[0])
        )


def test_a_cell_that_was_run_with_other_threads(scene: Scene, tmp_path: Path) -> None:
    true, swapped = with_another_undefended(scene, tmp_path, threads=2)
    said = unread(true, tmp_path / "1", instead_of_undefended(swapped))
    assert f"refers to {swapped['cell_id']}, which was run with {{'device': 'cpu'" in said


def test_a_published_file_that_was_edited_is_not_the_one_referred_to(scene: Scene, tmp_path: Path) -> None:
    def harmless(content: dict[str, Any]) -> None:
        for point in content["record"]["curves"]["eval_asr"]:
            point["value"] = point["high"]

    copy = copy_of(scene.board, tmp_path)
    edited(copy.shared, id_of(cell_at("attack")), harmless, sealed=False)
    with pytest.raises(EntryError, match="was edited after it was published"):
        read_entry(scene.referring.folder, copy.shared)
    edited(copy.shared, id_of(cell_at("attack")), harmless)
    with pytest.raises(EntryError, match="it refers to another content of the shared cell"):
        read_entry(scene.referring.folder, copy.shared)


def test_nothing_beside_an_entry_is_taken_for_published(scene: Scene, tmp_path: Path) -> None:
    """A pull request may hold any folder; the reader's own installation counts."""
    shutil.copytree(scene.board.shared, tmp_path / "shared")
    shutil.copytree(scene.referring.folder, tmp_path / "entries" / "mine")
    with pytest.raises(EntryError, match="is not published for tiny-v1 in this version of thiefbench"):
        read_entry(tmp_path / "entries" / "mine")


def test_a_cell_is_listed_once(scene: Scene, tmp_path: Path) -> None:
    def twice(content: dict[str, Any]) -> None:
        content["cells"].append(dict(content["cells"][0]))

    assert "lists the cell" in unread(scene.referring, tmp_path / "1", twice)
    whole = scores_of(scene.whole.folder)["cells"]

    def both(content: dict[str, Any]) -> None:
        content["cells"].append(next(each for each in whole if each["role"] == "placebo"))

    assert "twice" in unread(scene.referring, tmp_path / "2", both)


def test_own_cells_cannot_be_references(scene: Scene, tmp_path: Path) -> None:
    """Not even those of the benchmark's own rows, whose cells are the shared ones."""
    target = tmp_path / "mine"
    shutil.copytree(scene.referring.folder, target)
    manifest = json.loads((target / "entry.json").read_text())
    manifest["defense"] = manifest["name"] = "none"
    manifest["files"] = {name: digest for name, digest in manifest["files"].items() if name == "scores.json"}
    shutil.rmtree(target / "defense")
    (target / "entry.json").write_text(json.dumps(manifest))
    with pytest.raises(EntryError, match="a cell of its own defense, and has to bring it"):
        read_entry(target, scene.board.shared)


def test_the_first_schema_knows_no_references_and_no_reasons(scene: Scene, tmp_path: Path) -> None:
    for name, said in (("published", "have schema 2"), ("own_shared", "own_shared belongs to schema version 2")):
        target = tmp_path / name / "mine"
        shutil.copytree((scene.referring if name == "published" else scene.whole).folder, target)
        manifest = json.loads((target / "entry.json").read_text()) | {"schema_version": 1}
        if name == "own_shared":
            manifest["own_shared"] = "because"
        (target / "entry.json").write_text(json.dumps(manifest))
        with pytest.raises(EntryError, match=said):
            read_entry(target, scene.board.shared)


def test_a_machine_that_is_not_the_published_cells_is_not_said_to_be(scene: Scene, tmp_path: Path) -> None:
    """Own cells of another machine beside published ones: the manifest says so, or only their records."""
    target = tmp_path / "mine"
    shutil.copytree(scene.referring.folder, target)
    manifest = json.loads((target / "entry.json").read_text())
    manifest["versions"]["torch"] = "1.0"
    (target / "entry.json").write_text(json.dumps(manifest))
    lie = Made(read_entry(target, scene.board.shared), scene.referring.archive, scene.board.shared)
    found = verified(lie, archive=None)
    assert found.verdict == "rejected"
    assert "its own cells were made with torch 1.0, and the published ones that it refers to with" in found.reasons[0]


def test_an_own_drift_that_published_words_do_not_give(scene: Scene, tmp_path: Path) -> None:
    def harmless(content: dict[str, Any]) -> None:
        for cell in content["cells"]:
            if "scores" in cell:
                cell["scores"]["drift"] = [0.0, 0.0, 0.1, cell["scores"]["drift"][3] - 1]

    found = verified(rewritten(scene.referring, tmp_path, harmless))
    assert found.verdict == "rejected"
    assert "its drift does not follow from its completions and those of its control" in found.reasons[0]


def test_an_own_drift_that_is_left_out(scene: Scene, tmp_path: Path) -> None:
    """Who refers to published cells measured drift, and does not leave it out because it is large."""

    def silent(content: dict[str, Any]) -> None:
        for cell in content["cells"]:
            for name in ("drift", "divergence"):
                cell.get("scores", {}).pop(name, None)

    found = verified(rewritten(scene.referring, tmp_path, silent))
    assert found.verdict == "rejected"
    assert "its drift does not follow from its completions and those of its control: None" in found.reasons[0]


# --- some seeds are published ---


@pytest.mark.slow
def test_what_is_not_published_yet_is_brought(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of two seeds, of which one is published; later both are, and its cells are the same."""
    both = suite(seeds=(0, 1))
    copy = copy_of(scene.board, tmp_path)
    made_entries.tiny(both, monkeypatch)
    partly = made(tmp_path / "partly", HEARS, monkeypatch, of=both, store=copy.store, shared=copy.shared)
    assert (len(partly.entry.published), len(partly.entry.brought)) == (4, 8)
    told = submit.measured_against(prepared(tmp_path, copy.store, copy.shared, of=both))
    assert "note: 4 shared cells are not published yet, so the entry must bring its own" in told[-1]
    found = verified(partly)
    assert (found.verdict, found.flags) == ("rescored", ())
    whole = made(tmp_path / "whole", HEARS, monkeypatch, of=both, store=copy.store, shared=tmp_path / "nothing")
    assert submit.row_of(partly.entry) == submit.row_of(whole.entry)
    publish_all(copy)
    found = verified(partly)
    assert (found.verdict, found.flags) == ("rescored", ()), "more seeds change nothing for it"


# --- the board ---


def test_the_board_shows_what_a_row_is_measured_against(scene: Scene, tmp_path: Path) -> None:
    entries = tmp_path / "entries"
    shutil.copytree(scene.referring.folder, entries / "mine")
    judged = read(entries / "mine", tmp_path / "verified", scene.board.shared)
    against = dict(shown_entry(judged)["facts"])["Measured against"]
    assert against.startswith("4 published cells, made with torch ")
    assert site_board(entries, tmp_path / "verified", scene.board.shared).broken == ()
    (broken,) = site_board(entries, tmp_path / "verified").broken
    assert "which is not published for tiny-v1" in broken[1]
    lie = with_forged_baseline(scene, tmp_path / "lie", "another CPU")
    judged = read(lie.folder, tmp_path / "verified", scene.board.shared)
    assert ("Measured against", "shared cells of its own: another CPU") in shown_entry(judged)["facts"]


def test_other_cells_are_none_where_nothing_is_published(scene: Scene, tmp_path: Path) -> None:
    specs = [("", cell) for cell in prepared(tmp_path, scene.board.store, tmp_path / "nothing").cells]
    entry = scene.whole.entry
    assert list(other_cells(entry, specs, published_sets(tmp_path / "nothing", TITLE))) == []
    assert in_folder(scene.board.shared), "while others are"
    cells = Published(scene.board.shared, TITLE).cells
    assert all(isinstance(cell, PublishedCell) for found in cells.values() for cell in found)
