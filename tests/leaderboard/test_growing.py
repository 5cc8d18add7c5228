"""An entry grows seed by seed, on other days and other machines, and what does not belong together is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench import tiny
from tests.leaderboard import made_entries
from tests.leaderboard.scores_files import put_scores, scores_of, scores_sha256, scores_text
from tests.leaderboard.tiny_entries import CHEATS, NUMERICS, Made, made, suite
from thiefbench.engine.keys import SECRET_BYTES
from thiefbench.leaderboard import growing, rows, submit
from thiefbench.leaderboard.archive import WrongArchiveError
from thiefbench.leaderboard.deliveries import delivery_sha256s
from thiefbench.leaderboard.entry import Entry, EntryError, read_entry
from thiefbench.leaderboard.verification.verdict import Verification, read_verification, write_verification
from thiefbench.leaderboard.verification.verify import VerifyOptions, verify
from thiefbench.suite.execution import cell_identity
from thiefbench.suite.scenario import Suite

SECRET = bytes([2]) * SECRET_BYTES
FIRST, SECOND = "mine.tar", "mine.seed-1.tar"
SUITE = suite(seeds=(0, 1, 2))


@dataclass(frozen=True)
class Grown:
    """An entry with one seed, the same with two, and the defense's file; the archives lie beside the entries."""

    file: Path
    one: Made
    two: Made

    def archive(self, name: str) -> Path:
        return self.two.archive.with_name(name)


def file_in(folder: Path, text: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "cheats.py"
    file.write_text(text or CHEATS.read_text())
    return file


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grown]:
    """The second seed is run in an empty store; the suite counts as released while these tests run."""
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("growing")
        file = file_in(root / "source")
        one = made(root / "one", f"{file}:Hears", patch, SUITE, seeds=1)
        shutil.copytree(root / "one/entries", root / "two/entries")
        shutil.copy(one.archive, root / "two")
        two = made(root / "two", f"{file}:Hears", patch, SUITE, seeds=2)
        yield Grown(file, one, two)


def copied(of: Made, folder: Path) -> Made:
    """A copy to edit, with its archives beside it."""
    shutil.copytree(of.folder, folder / "entries/mine")
    for archive in of.archive.parent.glob("*.tar"):
        shutil.copy(archive, folder)
    return replace(of, entry=read_entry(folder / "entries/mine", of.shared), archive=folder / of.archive.name)


def resigned(of: Made, manifest: Callable[[dict[str, Any]], None] = lambda told: None, **scores: Any) -> Path:
    """Edit an entry's two files and make their hashes fit; `scores` has `change`, a function of scores.json."""
    told = scores_of(of.folder)
    scores.get("change", lambda content: None)(told)
    put_scores(of.folder, json.dumps(told))
    entry = json.loads((of.folder / "entry.json").read_text())
    entry["files"]["scores.json"] = scores_sha256(of.folder)
    manifest(entry)
    (of.folder / "entry.json").write_text(json.dumps(entry))
    return of.folder


def verified(folder: Path, *archives: Path, **asked: Any) -> Verification:
    """A verification that runs nothing."""
    options: dict[str, Any] = {"reruns": 0, "fresh": 0, "secret": SECRET} | asked
    if archives:
        options |= {"archive": archives[0], "further": archives[1:]}
    return verify(
        folder, VerifyOptions(**options), lambda told: None, lambda what: lambda done, total: None, lambda suite: []
    )


def rejected(folder: Path, *archives: Path) -> str:
    found = verified(folder, *archives)
    assert found.verdict == "rejected", found
    return "\n".join(found.reasons)


def prepared(grown: Grown, folder: Path, seeds: int | None = 3, **changes: Any) -> submit.Submission:
    """The submission of further seeds of the entry in a folder, with an empty store."""
    fields: dict[str, Any] = {"of": SUITE, "numerics": NUMERICS, "file": grown.file, "own_shared": ""} | changes
    credits = submit.credits_of("Mine", "A. Author", "")
    return submit.prepare(
        f"{fields['file']}:{fields.get('named', 'Hears')}", credits, fields["of"], fields["numerics"],
        folder / "empty", folder / "entries", own_shared=fields["own_shared"], seeds=seeds,
    )  # fmt: skip


def refused(grown: Grown, folder: Path, **changes: Any) -> str:
    """Why the entry of two seeds cannot grow otherwise than it was begun."""
    with pytest.raises(EntryError) as error:
        prepared(grown, copied(grown.two, folder).archive.parent, **changes)
    said = str(error.value)
    assert said.endswith("remove the folder and submit all seeds again with --seeds"), said
    return said


# --- what submit does ---


def test_earlier_cells_stay_as_they_stand_and_each_delivery_names_its_own_archive(grown: Grown) -> None:
    before, after = grown.one.entry.manifest, grown.two.entry.manifest
    assert (before.seeds, before.schema_version, before.later) == ((0,), 1, ())
    assert (after.seeds, after.schema_version) == ((0, 1), 3)
    assert [(each.seeds, each.archive.name) for each in after.deliveries] == [((0,), FIRST), ((1,), SECOND)]
    assert after.deliveries[0] == before.deliveries[0]
    assert grown.archive(FIRST).read_bytes() == grown.one.archive.read_bytes()
    old, new = (scores_text(each.folder).splitlines() for each in (grown.one, grown.two))
    cells = [line.strip().strip(",") for line in new]
    assert all(line.strip().strip(",") in cells for line in old), "not a byte of an earlier cell changes"
    assert [cell.seed for cell in grown.two.entry.cells].count(1) == 6


def test_a_grown_entry_has_the_cells_of_one_that_was_made_at_once(
    grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    for each in (grown.one, grown.two):
        shutil.copytree(each.archive.parent / "store/cells", store / "cells", dirs_exist_ok=True)
    at_once = made(tmp_path / "all", f"{grown.file}:Hears", monkeypatch, SUITE, store=store, seeds=2)
    assert [len(each.manifest.deliveries) for each in (at_once.entry, grown.two.entry)] == [1, 2]

    def numbers(of: Made) -> list[tuple[Any, ...]]:
        """Without the drift of shared cells: a control's is measured against one that was brought with it."""
        own = of.entry.manifest.defense
        return [
            (cell.cell_id, cell.completions_sha256, cell.curves, cell.scores if cell.defense == own else None)
            for cell in of.entry.cells
        ]

    assert numbers(at_once) == numbers(grown.two)


def test_what_the_entry_has_already_is_not_run(grown: Grown, tmp_path: Path) -> None:
    copied(grown.two, tmp_path)
    again = prepared(grown, tmp_path, seeds=2)
    assert (again.seeds, again.cells) == ((), ())
    more = prepared(grown, tmp_path, seeds=3)
    assert (more.seeds, {cell.seed for cell in more.brought}) == ((2,), {2})
    assert more.archive.name == "mine.seed-2.tar"
    with pytest.raises(EntryError, match="tiny-v1 has 3 seeds, and --seeds asks for the first 4"):
        prepared(grown, tmp_path, seeds=4)


def test_what_several_deliveries_would_lose_is_said(grown: Grown, tmp_path: Path) -> None:
    copied(grown.two, tmp_path)
    anew = prepared(grown, tmp_path, seeds=None)
    assert submit.replaced(anew) == [
        f"note: {anew.folder} has seeds 0, 1 in 2 deliveries, which will be replaced; --seeds adds to them"
    ]
    assert submit.replaced(prepared(grown, tmp_path, seeds=3)) == []
    copied(grown.one, tmp_path / "one")
    assert submit.replaced(prepared(grown, tmp_path / "one", seeds=None)) == [], "one delivery is one store's"


def test_it_grows_only_as_it_was_begun(grown: Grown, tmp_path: Path) -> None:
    said = refused(grown, tmp_path / "1", numerics=NUMERICS.model_copy(update={"threads": 2}))
    assert "has seeds 0, 1 already, made with another settings" in said and "--threads 1" in said
    said = refused(grown, tmp_path / "2", named="Accepts")
    assert "another defense: defense/cheats.py:Hears" in said
    edited = file_in(tmp_path / "edited", CHEATS.read_text().replace('{2}"', '{3}"'))
    assert "another source of the defense" in refused(grown, tmp_path / "3", file=edited)
    other: Suite = replace(SUITE, rounds=5)
    assert "another content of the suite" in refused(grown, tmp_path / "4", of=other)
    assert "another shared cells" in refused(grown, tmp_path / "5", own_shared="my machine")


def test_another_engine_does_not_add_to_it(grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_identity, "engine_revision", lambda: "f" * 16)
    assert "another version of the benchmark (another engine revision" in refused(grown, tmp_path)


def test_where_shared_cells_are_brought_another_machine_runs_nothing(
    grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(grown.two, tmp_path)
    own = prepared(grown, tmp_path)
    here = growing.arithmetic_here("cpu")
    for name in ("torch", "capability"):
        monkeypatch.setattr(growing, "arithmetic_here", lambda device, name=name: here | {name: "another"})
        with pytest.raises(EntryError, match=f"made with another arithmetic: .*{here[name]} and another here"):
            submit.run(own, tiny.Watcher())
    assert not (tmp_path / "empty/cells").exists()


def test_a_store_of_another_machine_is_not_added(grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied(grown.one, tmp_path)
    submission = prepared(grown, tmp_path, seeds=2)
    shutil.copytree(grown.two.archive.parent / "store/cells", tmp_path / "empty/cells")
    records = submit.run(submission, tiny.Watcher())
    moved = [each.model_copy(update={"provenance": each.provenance | {"capability": "NEON"}}) for each in records]
    with pytest.raises(EntryError, match=r"another arithmetic than the cell \w+: .* and NEON"):
        submit.write(submission, moved)
    assert read_entry(tmp_path / "entries/mine").manifest.seeds == (0,), "nothing was written"


# --- what verify does ---


def test_each_archive_is_verified_for_the_seeds_that_it_holds(grown: Grown) -> None:
    folder, first, second = grown.two.folder, grown.archive(FIRST), grown.archive(SECOND)
    found = verified(folder, second, first)
    assert found.verdict == "rescored"
    assert [(each.seeds, each.verdict) for each in found.deliveries] == [((0,), "rescored"), ((1,), "rescored")]
    found = verified(folder, second)
    assert found.verdict == "self-reported", "the lowest of its seeds"
    assert [(each.seeds, each.verdict) for each in found.deliveries] == [((0,), "self-reported"), ((1,), "rescored")]
    assert found.reasons[0] == ("no archive of seed 0 was given, so the scores there are those that its authors report")
    assert {each.verdict for each in verified(folder).deliveries} == {"self-reported"}


@pytest.mark.slow
def test_code_is_seen_delivery_by_delivery(grown: Grown, tmp_path: Path) -> None:
    """What one delivery's code gave again says nothing of another's, whichever archive is at hand."""
    seen = tmp_path / "verified"
    write_verification(seen, verified(grown.two.folder, grown.archive(FIRST)))
    found = verified(grown.two.folder, grown.archive(SECOND), earlier=seen, judged=True)
    assert [(each.seeds, each.code_seen) for each in found.deliveries] == [((0,), False), ((1,), True)]
    write_verification(seen, found)
    found = verified(grown.two.folder, grown.archive(FIRST), earlier=seen, judged=True)
    assert all(each.code_seen for each in found.deliveries)
    write_verification(seen, found)
    kept = verified(grown.two.folder, grown.archive(FIRST), grown.archive(SECOND), earlier=seen)
    assert all(each.code_seen for each in kept.deliveries), "nothing was changed since"


@pytest.mark.slow
def test_seeds_without_an_archive_keep_the_verdict_of_the_same_hashes(grown: Grown, tmp_path: Path) -> None:
    seen = tmp_path / "verified"
    write_verification(seen, verified(grown.one.folder, grown.archive(FIRST)))
    found = verified(grown.two.folder, grown.archive(SECOND), earlier=seen)
    assert (found.verdict, {each.verdict for each in found.deliveries}) == ("rescored", {"rescored"})
    write_verification(seen, found)
    assert verified(grown.two.folder, earlier=seen).verdict == "rescored", "nothing changed since"

    flattered = copied(grown.two, tmp_path)

    def flatter(told: dict[str, Any]) -> None:
        cell = next(each for each in told["cells"] if (each["seed"], each["role"]) == (0, "attack"))
        cell["scores"]["asr"][0] += 0.01

    found = verified(resigned(flattered, change=flatter), grown.archive(SECOND), earlier=seen)
    assert [each.verdict for each in found.deliveries] == ["self-reported", "rescored"], "other scores, other hashes"
    older = verified(grown.two.folder, grown.archive(FIRST), grown.archive(SECOND))
    write_verification(seen, older.model_copy(update={"engine_revision": "0" * 16}))
    assert verified(grown.two.folder, earlier=seen).verdict == "self-reported", "of another engine revision"


def test_a_verdict_of_another_version_s_attack_is_not_kept(
    grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's revision covers no attack, task or model; the ids of cells do."""
    seen = tmp_path / "verified"
    write_verification(seen, verified(grown.two.folder, grown.archive(FIRST), grown.archive(SECOND)))
    assert verified(grown.two.folder, earlier=seen).verdict == "rescored"
    monkeypatch.setattr(cell_identity.RegistryFactory, "attack_hash", lambda self, spec: "another")
    found = verified(grown.two.folder, earlier=seen)
    assert {each.verdict for each in found.deliveries} == {"self-reported"}


def test_a_verdict_is_of_every_file_of_the_source(tmp_path: Path) -> None:
    """Two sources may have one hash in cells' identities, which do not tell in which folder of it a file lies."""
    entry = made_entries.grown(tmp_path)
    first = entry.manifest.deliveries[0]
    before = delivery_sha256s(entry, first)[0]
    other = entry.manifest.files | {"defense/mine.py": "0" * 64}
    scores = entry.manifest.files | {"scores.json": "0" * 64}
    for files, same in ((other, False), (scores, True)):
        manifest = entry.manifest.model_copy(update={"files": files})
        assert (delivery_sha256s(Entry(entry.folder, manifest, entry.cells), first)[0] == before) == same


def test_a_hash_of_an_earlier_version_keeps_its_verdict(grown: Grown, tmp_path: Path) -> None:
    """An entry may have been verified before its cells had all the fields that they have now."""
    seen = tmp_path / "verified"
    found = verified(grown.two.folder, grown.archive(FIRST), grown.archive(SECOND))
    entry = read_entry(grown.two.folder)
    named = [delivery_sha256s(entry, each) for each in entry.manifest.deliveries]
    assert {len({*each}) for each in named} == {3}, "of now, with the field that was added, and before"
    for hashes in zip(*named, strict=True):
        pairs = zip(found.deliveries, hashes, strict=True)
        told = [each.model_copy(update={"sha256": sha256}) for each, sha256 in pairs]
        write_verification(seen, found.model_copy(update={"deliveries": tuple(told)}))
        kept = verified(grown.two.folder, earlier=seen)
        assert {each.verdict for each in kept.deliveries} == {"rescored"}


def test_rows_of_the_board_may_go_on_without_losing_their_verdicts() -> None:
    """Their archives are not here, so a field that is added to cells must not change the hashes of their deliveries."""
    board = Path(__file__).parents[2] / "leaderboard"
    counted = 0
    for manifest in sorted(board.glob("entries/*/entry.json")):  # attacks have another file
        if len(json.loads(manifest.read_text())["seeds"]) == 5:
            continue  # all that there are
        entry = read_entry(manifest.parent)
        seen = read_verification(board / "verified", entry)
        if seen is not None and seen.deliveries and entry.published and seen.verdict != "self-reported":
            known = {each.sha256 for each in seen.deliveries}
            for delivery in entry.manifest.deliveries:
                assert not known.isdisjoint(delivery_sha256s(entry, delivery)), entry.manifest.slug
                counted += 1
    assert counted


def test_an_archive_belongs_to_one_delivery(grown: Grown, tmp_path: Path) -> None:
    folder, first, second = grown.two.folder, grown.archive(FIRST), grown.archive(SECOND)
    with pytest.raises(WrongArchiveError, match="which was given twice"):
        verified(folder, second, second)
    strange = tmp_path / "strange.tar"
    strange.write_bytes(bytes(first.stat().st_size))
    named = r"is not an archive of the entry, which names mine.tar \(seed 0\), mine.seed-1.tar \(seed 1\)"
    with pytest.raises(WrongArchiveError, match=named):
        verified(folder, first, strange)

    def swapped(told: dict[str, Any]) -> None:
        for name in ("sha256", "bytes"):
            one, other = told["archive"], told["later"][0]["archive"]
            one[name], other[name] = other[name], one[name]

    wrong = resigned(copied(grown.two, tmp_path / "1"), swapped)
    assert "where cells/" in rejected(wrong, first), "the archive of seed 0 does not hold the cells of seed 1"

    def same(told: dict[str, Any]) -> None:
        told["later"][0]["archive"] |= {name: told["archive"][name] for name in ("sha256", "bytes")}

    with pytest.raises(EntryError, match="two deliveries name the same archive"):
        read_entry(resigned(copied(grown.two, tmp_path / "2"), same))


def test_seeds_are_the_first_ones_of_the_suite_once(grown: Grown, tmp_path: Path) -> None:
    def claims(seeds: list[int], later: list[int] | None = None) -> Callable[[dict[str, Any]], None]:
        def change(told: dict[str, Any]) -> None:
            told["seeds"] = seeds
            if later is not None:
                told["later"][0] |= {"seeds": later}
                told["later"][0]["archive"]["name"] = f"mine.seed-{'-'.join(map(str, later))}.tar"

        return change

    def edited(number: int, change: Callable[[dict[str, Any]], None]) -> Path:
        return resigned(copied(grown.two, tmp_path / str(number)), change)

    for number, (wrong, why) in enumerate(
        (
            (claims([0, 0]), "the seed 0 is listed twice"),
            (claims([0, 1], [0]), "the later deliveries hold the seeds"),
            (claims([0, 1], [0, 1]), "the later deliveries hold the seeds"),
            (lambda told: told.update(schema_version=2), "later deliveries belong to schema version 3"),
        )
    ):
        with pytest.raises(EntryError, match=why):
            read_entry(edited(number, wrong))
    assert "lacks 6 cells" in rejected(edited(10, claims([0, 1, 2], [1, 2]))), "what it claims, it has to have"
    assert "the first ones of tiny-v1" in rejected(edited(11, claims([0, 7], [7])))

    def the_good_one(told: dict[str, Any]) -> None:
        claims([1])(told)
        told |= {name: value for name, value in told.pop("later")[0].items() if name != "seeds"}
        told["archive"]["name"] = FIRST

    def cells_of_it(told: dict[str, Any]) -> None:
        told["cells"] = [cell for cell in told["cells"] if cell["seed"] == 1]

    chosen = resigned(copied(grown.two, tmp_path / "12"), the_good_one, change=cells_of_it)
    assert "the first ones of tiny-v1" in rejected(chosen, grown.archive(SECOND))


@pytest.mark.slow
def test_a_delivery_of_another_source_or_another_machine(
    grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = file_in(tmp_path / "other", CHEATS.read_text().replace('{2}"', '{1}"'))
    mixed = copied(grown.one, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(growing, "continued", lambda folder, *rest: read_entry(folder))
        submission = prepared(grown, tmp_path, seeds=2, file=other)
        submit.write(submission, submit.run(submission, tiny.Watcher()))
    archives = mixed.archive, submission.archive
    assert "the submitted source is not the one" in rejected(mixed.folder), "the entry has the second one's file"
    shutil.copy(grown.one.folder / "defense/cheats.py", mixed.folder / "defense/cheats.py")
    source = hashlib.sha256((mixed.folder / "defense/cheats.py").read_bytes()).hexdigest()
    resigned(mixed, lambda told: told["files"].update({"defense/cheats.py": source}))
    assert verified(mixed.folder).verdict == "self-reported"
    assert "source" in rejected(mixed.folder, *archives), "the records say with which one they were run"

    def moved(told: dict[str, Any]) -> None:
        told["later"][0]["versions"]["torch"] = "1.0"

    apart = resigned(copied(grown.two, tmp_path / "moved"), moved)
    assert "were not made alike: torch 1.0 and" in rejected(apart)

    def lies(told: dict[str, Any]) -> None:
        moved(told)
        told["versions"]["torch"] = "1.0"

    assert "was not made as its delivery says: torch" in rejected(
        resigned(copied(grown.two, tmp_path / "lies"), lies), grown.archive(FIRST)
    )


def test_the_cells_of_a_grown_entry_are_of_their_own_machines(grown: Grown, tmp_path: Path) -> None:
    def moved(told: dict[str, Any]) -> None:
        told["later"][0]["machine"]["processor"] = "Another CPU"

    entry = read_entry(resigned(copied(grown.two, tmp_path), moved))
    processors = {cell.seed: cell.record.provenance["processor"] for cell in rows.cells(entry) if cell.record}
    assert processors[1] == "Another CPU" != processors[0], "round times are compared within a machine"
