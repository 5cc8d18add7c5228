"""Submitted attacks on exchanged weights and on pipelines: run, written as entries, verified, shown on the board."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bench import tiny
from tests.bench.averaging.test_averaging import suite as averaging_suite
from tests.bench.pipeline.test_pipeline import suite as pipeline_suite
from tests.leaderboard import tiny_entries
from tests.leaderboard.tiny_entries import Made
from tests.variants import at_length
from thiefbench import registry, trust
from thiefbench.leaderboard import archive
from thiefbench.leaderboard.attacking import measured
from thiefbench.leaderboard.attacking import submit as attacking
from thiefbench.leaderboard.attacking.entry import AttackEntry, write_attack_entry
from thiefbench.leaderboard.attacking.manifest import granted
from thiefbench.leaderboard.attacking.scores import AttackCell, AttackScores
from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.isolation.isolated_tensor_attacks import isolated_attack
from thiefbench.leaderboard.made_with import COST
from thiefbench.leaderboard.site.writing import write_site
from thiefbench.leaderboard.submit import credits_of
from thiefbench.leaderboard.verification.attack_verification import verify_attack
from thiefbench.leaderboard.verification.verdict import Verification, write_verification
from thiefbench.leaderboard.verification.verify import VerifyOptions
from thiefbench.suite.scenario import Suite
from thiefbench.suite.store.records import Store, file_sha256
from thiefbench.tasks.sandbox import SandboxUnavailable

HERE = Path(__file__).parent.parent
ADDS, PUSHES = f"{HERE / 'pipeline_attacks.py'}:Adds", f"{HERE / 'tensor_attacks.py'}:Pushes"


@dataclass(frozen=True)
class Attacked:
    entry: AttackEntry
    archive: Path
    suite: Suite
    store: Store


def attacked(of: Made, suite: Suite, spec: str) -> Attacked:
    store, credits = of.archive.parent / "store", credits_of("Shoves", "B. Breaker", "")
    own = attacking.prepare_attack(of.folder, spec, credits, store, of.folder.parent)
    records = attacking.run_attack(own, lambda cell: lambda done, total: None)
    return Attacked(attacking.write_attack(own, records), own.archive, suite, own.store)


@pytest.fixture(scope="module", params=["pipeline", *at_length("weights")])
def shoves(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """Against a built-in stage check, or a stranger's aggregation; its suite counts as released meanwhile."""
    folder, shared = tmp_path_factory.mktemp(request.param), {"placebo": True, "utility": True, "seeds": (0,)}
    with pytest.MonkeyPatch.context() as patch, trust.plugins():
        try:
            warm = isolated_attack(ADDS if request.param == "pipeline" else PUSHES)
        except SandboxUnavailable as error:
            pytest.skip(str(error))
        if request.param == "pipeline":
            of, spec = pipeline_suite(**shared), "recomputation(share=0.5)"
        else:
            of, spec = averaging_suite(**shared, method="diloco"), f"{HERE / 'rules.py'}:Nearby"
        yield attacked(tiny_entries.made(folder, spec, patch, of), of, warm.spec)
        warm.close()


def verified(of: Attacked, **options: Any) -> Verification:
    chosen = VerifyOptions(of.archive, **({"reruns": 0, "fresh": 0} | options))
    return verify_attack(of.entry.folder, chosen, lambda finding: None, lambda cell: lambda done, total: None)


def resigned(of: Attacked, folder: Path, store: Store, cells: Sequence[AttackCell], **changes: Any) -> Attacked:
    """An entry of these cells beside a copy of the defense's, with other fields of its manifest and fitting hashes."""
    packed = archive.pack(folder / of.archive.name, store, cells)
    shutil.copytree(of.entry.folder.parent, folder / "entries", ignore=shutil.ignore_patterns("shoves"))
    forged = write_attack_entry(
        folder / "entries" / "shoves",
        of.entry.manifest.model_copy(update={"archive": packed} | changes),
        AttackScores(cells=tuple(cells), examples=of.entry.examples),
        {path.relative_to(of.entry.folder).as_posix(): path.read_bytes() for path in of.entry.source},
    )
    return replace(of, entry=forged, archive=folder / of.archive.name)


def test_an_entry_has_its_cells_and_costs(shoves: Attacked) -> None:
    manifest, cells = shoves.entry.manifest, shoves.entry.cells
    assert [(cell.role, cell.target, cell.status) for cell in cells] == [
        ("control", "", "ok"), ("placebo", "", "ok"), ("attack", "", "ok"), ("attack", "mine", "ok"),
    ]  # fmt: skip
    costs = [(cell.cost.rounds, cell.cost.sent, cell.cost.steps) for cell in cells]
    if shoves.suite.scenes[0].pipeline:
        assert costs == [(0, 0, 0), (0, 0, 4), (2, 3, 4), (1, 2, 4)], (
            "it learns once, adds in round 1, lies until rejected"
        )
        assert manifest.threat.kind == "stage_attack"
        assert manifest.threat.in_words()[0].startswith("it is a stage of a pipeline, and knows the start weights of")
        assert all(cell.stages_sha256 for cell in cells)
    else:
        assert costs == [(0, 0, 0), (0, 0, 0), (2, 2, 4), (2, 2, 4)], "two exchanges"
        assert manifest.threat.kind == "weight_attack"
        assert all(cell.exchanges_sha256 for cell in cells)
    assert not manifest.threat.black_box
    (result,) = measured.results(shoves.entry, shoves.suite.ranking)
    assert result.target == "mine"


def test_a_true_entry_is_rescored(shoves: Attacked) -> None:
    found = verified(shoves)
    assert (found.verdict, found.reasons) == ("rescored", ("no cell was run again",))


@pytest.mark.slow
def test_a_true_entry_is_run_again_to_the_bit(shoves: Attacked) -> None:
    found = verified(shoves, reruns=None, fresh=1)
    assert found.verdict == "re-executed" or "fresh seed" in str(found.reasons), found.reasons
    again = [(each.kind, each.equal) for each in found.reruns if each.seed is not None]
    assert again == [("control", True), ("placebo", True), ("undefended", True), ("own", True)]


def test_a_forged_table_beside_the_completions_is_rejected(shoves: Attacked, tmp_path: Path) -> None:
    """Who is malicious is turned around in the undefended cell, and every hash is made to fit."""
    entry, (table, why) = (
        shoves.entry,
        (
            ("stages", "its record's stage_false_rejection_rate does not follow from its completions")
            if shoves.suite.scenes[0].pipeline
            else ("exchanges", "its record's vector_stop_rate does not follow from its completions")
        ),
    )
    unpacked, cell = archive.unpack(shoves.archive, entry, tmp_path / "store"), entry.cells[2]
    directory = unpacked.cell(cell.cell_id)
    path = getattr(directory, f"{table}_path")
    rows = pq.read_table(path)
    place = rows.schema.get_field_index("malicious")
    turned = [[not each for each in rows["malicious"].to_pylist()]]
    pq.write_table(rows.set_column(place, rows.schema.field(place), turned), path)
    record = directory.read()
    assert record is not None
    directory.write(
        record.model_copy(update={"provenance": record.provenance | {f"{table}_sha256": file_sha256(path)}})
    )
    digests = {f"{table}_sha256": file_sha256(path), "record_sha256": file_sha256(directory.record_path)}
    cells = tuple(each.model_copy(update=digests) if each is cell else each for each in entry.cells)
    found = verified(resigned(shoves, tmp_path, unpacked, cells))
    assert found.verdict == "rejected"
    assert why in found.reasons[0]


@pytest.mark.slow
def test_a_forged_verdict_is_found_where_cells_are_run_again(shoves: Attacked, tmp_path: Path) -> None:
    """The reasons of verdicts are in no score, and follow from nothing that is stored."""
    unpacked, cell = archive.unpack(shoves.archive, shoves.entry, tmp_path / "store"), shoves.entry.cells[-1]
    directory, table = unpacked.cell(cell.cell_id), "stages" if shoves.suite.scenes[0].pipeline else "exchanges"
    path = getattr(directory, f"{table}_path")
    rows = pq.read_table(path)
    place = rows.schema.get_field_index("reason")
    pairs = zip(rows["reason"].to_pylist(), rows["action"].to_pylist(), strict=True)
    told = pa.array([f"{reason}?" if action == "accept" else reason for reason, action in pairs], rows["reason"].type)
    pq.write_table(rows.set_column(place, rows.schema.field(place), told), path)
    record = directory.read()
    assert record is not None
    directory.write(
        record.model_copy(update={"provenance": record.provenance | {f"{table}_sha256": file_sha256(path)}})
    )
    digests = {f"{table}_sha256": file_sha256(path), "record_sha256": file_sha256(directory.record_path)}
    cells = [each.model_copy(update=digests) if each is cell else each for each in shoves.entry.cells]
    found = resigned(shoves, tmp_path, unpacked, cells)
    assert verified(found).verdict == "rescored"
    again = verified(found, reruns=1)
    assert again.verdict == "rejected"
    assert f"its {table} differ from" in again.reasons[0]


@pytest.mark.slow
def test_costs_below_what_honest_nodes_saw_are_rejected(shoves: Attacked, tmp_path: Path) -> None:
    entry = shoves.entry
    unpacked, cells = archive.unpack(shoves.archive, entry, tmp_path / "store"), []
    for cell in entry.cells:
        directory = unpacked.cell(cell.cell_id)
        record = directory.read()
        assert record is not None
        used = record.provenance[COST] | {"sent": 0, "rounds": 0}
        directory.write(record.model_copy(update={"provenance": record.provenance | {COST: used}}))
        digest = file_sha256(directory.record_path)
        cost = cell.cost.model_copy(update={"sent": 0, "rounds": 0})
        cells.append(cell.model_copy(update={"cost": cost, "record_sha256": digest}))
    found = verified(resigned(shoves, tmp_path, unpacked, cells))
    assert found.verdict == "rejected"
    assert "sent or added something 0 times, in 0 rounds, and honest nodes saw it" in found.reasons[0]


def test_a_manifest_of_another_kind_is_not_read(shoves: Attacked, tmp_path: Path) -> None:
    unpacked = archive.unpack(shoves.archive, shoves.entry, tmp_path / "store")
    threat = shoves.entry.manifest.threat.model_copy(update={"kind": "attack"})
    resigned(shoves, tmp_path, unpacked, shoves.entry.cells, threat=threat)
    written = write_site(tmp_path / "site", tmp_path / "entries", tmp_path / "verified")
    assert any("it says that it is an attack on completions" in reason for _, reason in written.broken)


def test_the_board_shows_it(shoves: Attacked, tmp_path: Path) -> None:
    write_verification(tmp_path / "verified", verified(shoves))
    written = write_site(tmp_path / "site", shoves.entry.folder.parent, tmp_path / "verified")
    assert written.broken == ()
    page = (tmp_path / "site/entries/shoves.html").read_text()
    assert shoves.entry.manifest.threat.in_words()[0] in page
    data = json.loads((tmp_path / "site/board.json").read_text())
    (said,) = data["suites"][0]["attacks_by_outsiders"]
    assert (said["slug"], said["trust"]) == ("shoves", "rescored")


@pytest.mark.slow
def test_an_attack_of_another_kind_is_refused(shoves: Attacked, tmp_path: Path) -> None:
    target, by_stage = shoves.entry.folder.parent / "mine", shoves.suite.scenes[0].pipeline is not None
    why = "the node is a pipeline there" if by_stage else "nodes exchange weights there"
    for spec in ("text", PUSHES if by_stage else ADDS):
        with pytest.raises(EntryError, match=why):
            attacking.prepare_attack(target, spec, credits_of("Other", "B. Breaker", ""), tmp_path, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slug", "attack", "why"),
    [
        (
            "guard-on-trial",
            "boosted",
            "boosted fits no part of trial-v1: it is an attack on exchanged weights, and nodes",
        ),
        ("neighbour-distance", "boosted", "the node is a pipeline there; write a StageAttack"),
    ],
)
def test_the_command_says_where_an_attack_belongs(slug: str, attack: str, why: str, tmp_path: Path) -> None:
    entry = HERE.parents[1] / "leaderboard" / "entries" / slug
    credits = (
        "--name",
        "Elsewhere",
        "--authors",
        "B. Breaker",
        "--store",
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
    )
    done = tiny.command("leaderboard", "attack", str(entry), attack, *credits)
    _, said = done.communicate()
    assert done.returncode == 2
    assert why in " ".join(said.split())


@pytest.mark.slow
def test_entries_of_earlier_versions_say_no_kind() -> None:
    threat = granted(registry.make("attack", "text").threat)
    assert type(threat).model_validate(threat.model_dump(exclude={"kind"})) == threat
