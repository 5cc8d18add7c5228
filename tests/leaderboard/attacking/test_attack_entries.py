"""An outsider's attack on a listed defense: run, written as an entry, verified, shown on the board; and forged ones."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.leaderboard import made_attacks, made_entries, tiny_entries
from tests.leaderboard.scores_files import put_scores, scores_of, scores_sha256
from tests.leaderboard.tiny_entries import Made
from tests.variants import at_length
from thiefbench import registry, trust
from thiefbench.cli import app
from thiefbench.engine.compatibility import drawn
from thiefbench.engine.keys import SECRET_BYTES
from thiefbench.errors import UserError
from thiefbench.leaderboard import archive
from thiefbench.leaderboard.attacking import measured
from thiefbench.leaderboard.attacking import submit as attacking
from thiefbench.leaderboard.attacking.cells import wanted
from thiefbench.leaderboard.attacking.entry import AttackEntry, read_attack_entry, write_attack_entry
from thiefbench.leaderboard.attacking.running import AttackFactory, Guarded, run_attack_cell
from thiefbench.leaderboard.attacking.scores import AttackScores
from thiefbench.leaderboard.checking.findings import Finding
from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.isolation.guest import Said
from thiefbench.leaderboard.isolation.isolated import Isolated
from thiefbench.leaderboard.isolation.isolated_attack import AttackError, IsolatedAttack
from thiefbench.leaderboard.made_with import COST
from thiefbench.leaderboard.site.board import board
from thiefbench.leaderboard.site.writing import write_site
from thiefbench.leaderboard.submit import credits_of
from thiefbench.leaderboard.verification import attack_verification
from thiefbench.leaderboard.verification.attack_verification import ASKED_AGAIN, TargetError, verify_attack
from thiefbench.leaderboard.verification.verdict import Verification, write_verification
from thiefbench.leaderboard.verification.verify import VerifyOptions
from thiefbench.suite.execution import cell_identity, checkpoints
from thiefbench.suite.execution.cell_run import Progress
from thiefbench.suite.scenario import Evaluation, Suite
from thiefbench.suite.store.records import Store, file_sha256, rows_table, table_rows
from thiefbench.tasks.sandbox import SandboxUnavailable

HERE = Path(__file__).parent.parent
HUMS, LISTED = HERE / "hums.py", HERE / "listed.py"


def suite() -> Suite:
    return tiny_entries.suite(evaluation=Evaluation(every=1, completions=32, final=32))


@dataclass(frozen=True)
class Attacked:
    """An attack's entry beside the defense's that it was run against."""

    entry: AttackEntry
    archive: Path
    store: Path

    @property
    def folder(self) -> Path:
        return self.entry.folder


@pytest.fixture(scope="module")
def patched() -> Iterator[pytest.MonkeyPatch]:
    try:
        warm = IsolatedAttack(f"{HUMS}:Hums")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch, trust.plugins():
        made_entries.tiny(suite(), patch)
        yield patch
    warm.close()


@pytest.fixture(scope="module")
def listed(patched: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A defense that stops nothing; its entry's store is used for the attacks, too."""
    return tiny_entries.made(tmp_path_factory.mktemp("listed"), f"{LISTED}:Deaf", patched, suite())


def submitted(of: Made, cls: str, name: str = "Hums at will") -> attacking.AttackSubmission:
    store, credits = of.archive.parent / "store", credits_of(name, "B. Breaker", "")
    return attacking.prepare_attack(of.folder, f"{HUMS}:{cls}", credits, store, of.folder.parent)


def attacked(of: Made, cls: str, name: str = "Hums at will") -> Attacked:
    own = submitted(of, cls, name)
    entry = attacking.write_attack(own, attacking.run_attack(own, lambda cell: lambda done, total: None))
    return Attacked(entry, own.archive, own.store.root)


@pytest.fixture(scope="module")
def hums(listed: Made) -> Attacked:
    return attacked(listed, "Hums")


def verified(of: Attacked, **options: Any) -> Verification:
    options = {"reruns": 0, "fresh": 0} | options
    chosen = VerifyOptions(of.archive, **options)
    return verify_attack(of.folder, chosen, lambda finding: None, lambda cell: lambda done, total: None)


def forged(of: Attacked, folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Attacked:
    """A copy of the entry beside a copy of the defense's, whose JSON files were edited, with hashes made to fit."""
    for each in of.folder.parent.iterdir():
        shutil.copytree(each, folder / each.name)
    target = folder / of.folder.name
    manifest, scores = json.loads((target / "attack.json").read_text()), scores_of(target)
    change(manifest, scores)
    put_scores(target, json.dumps(scores))
    manifest["files"]["scores.json"] = scores_sha256(target)
    (target / "attack.json").write_text(json.dumps(manifest))
    return Attacked(read_attack_entry(target), of.archive, of.store)


# --- an entry ---


def test_an_entry_has_its_own_control_placebo_and_undefended_cells(hums: Attacked) -> None:
    roles = [(cell.role, cell.target, cell.status) for cell in hums.entry.cells]
    assert roles == [("control", "", "ok"), ("placebo", "", "ok"), ("attack", "", "ok"), ("attack", "mine", "ok")]
    manifest = hums.entry.manifest
    assert (manifest.slug, manifest.attack, manifest.parts) == ("hums-at-will", "attack/hums.py:Hums", ("",))
    assert [target.slug for target in manifest.targets] == ["mine"]
    assert "cannot query the defense" in " ".join(manifest.threat.in_words())
    assert manifest.about == "Teaches honest models to repeat one letter."


def test_the_cost_and_the_completions_are_in_it(hums: Attacked) -> None:
    costs = [cell.cost for cell in hums.entry.cells]
    assert [cost.rounds for cost in costs] == [0, 0, 4, 4]
    assert [cost.sent for cost in costs] == [0, 0, 32, 32], "8 slots in each of 4 rounds"
    sent = next(each for each in hums.entry.examples if each.kind == "sent")
    assert sent.payload["letters"] in sent.text


def test_a_plan_counts_what_is_missing(hums: Attacked, listed: Made) -> None:
    seeds = len(suite().seeds)
    (planned,) = attacking.estimate(submitted(listed, "Hums"))
    assert planned == f"{suite().title}: 0 cells to run, {4 * seeds} in the store already"
    planned, *pace = attacking.estimate(submitted(listed, "Samples", "Another"))
    assert planned == f"{suite().title}: {4 * seeds} cells to run, 0 in the store already"
    assert re.search(r"with one process, measured on \d+ stored cells of this machine$", pace[0]), pace


def test_the_same_command_gives_the_same_bytes(listed: Made, hums: Attacked) -> None:
    before = (hums.folder / "attack.json").read_bytes(), file_sha256(hums.archive)
    again = attacked(listed, "Hums")
    assert ((again.folder / "attack.json").read_bytes(), file_sha256(again.archive)) == before


def test_a_defense_that_stops_nothing_prevents_nothing(hums: Attacked) -> None:
    (result,) = measured.results(hums.entry, suite().ranking)
    assert result.prevented is not None, result.problem
    assert result.prevented.mean == pytest.approx(0, abs=1e-9), "its cell is the undefended one"
    assert (result.target, result.crashed) == ("mine", "")


# --- what is not taken ---


def test_an_outcome_that_clean_text_satisfies_is_not_taken(listed: Made) -> None:
    own = submitted(listed, "TrueOfAnything", "Anything")
    with pytest.raises(EntryError, match=r"clean text satisfies its outcome: without an attacker, 1.000 of"):
        attacking.run_attack(own, lambda cell: lambda done, total: None)


@pytest.mark.parametrize("cls", ["Measures", "Rehearses", "Greedy"])
def test_what_no_submitted_attack_may_have_is_refused(listed: Made, cls: str) -> None:
    with pytest.raises(AttackError):
        submitted(listed, cls)


@pytest.mark.slow
def test_a_crash_is_an_error_of_the_defense(patched: pytest.MonkeyPatch, listed: Made, tmp_path: Path) -> None:
    fragile = tiny_entries.made(tmp_path, f"{LISTED}:Fragile", patched, suite(), listed.archive.parent / "store")
    broken = attacked(Made(fragile.entry, listed.archive), "Breaks", "Breaks it")
    (result,) = measured.results(broken.entry, suite().ranking)
    assert result.prevented is None, "it is no success of the attack"
    assert "a word that it does not know" in result.crashed
    assert "an error of the defense and no success of the attack" in result.problem
    found = verified(broken)
    assert found.verdict == "rescored"
    assert "in 1 cell the defense failed, as the entry says, of which nothing can be computed again" in found.reasons


def test_a_listed_defense_is_isolated_by_its_suite_and_not_by_what_it_imports(
    patched: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An unused import made it fail under every attack."""
    unused, file = "from thiefbench.defenses.aggregation.base import Aggregate\n", tmp_path / "mine.py"
    file.write_text(LISTED.read_text().replace("from typing", f"{unused}from typing"))
    target = Guarded("mine", f"{file}:Deaf", "", isolated=True, kind="defense")
    made = AttackFactory("text", "text", "", target).make("mine")
    assert isinstance(made, Isolated)
    made.close()


def test_the_copy_of_a_target_is_used_again(listed: Made, tmp_path: Path) -> None:
    one, other = (attacking.guarded_of(listed.entry, None, tmp_path / "listed") for _ in range(2))
    assert one == other
    (copy,) = (tmp_path / "listed").iterdir()
    assert one.spec.startswith(str(copy))


def test_an_anchor_and_an_attack_are_no_targets(hums: Attacked, listed: Made, tmp_path: Path) -> None:
    with pytest.raises(EntryError, match="is an attack's entry; name the entry of the defense"):
        attacking.prepare_attack(
            hums.folder, f"{HUMS}:Hums", credits_of("Again", "B", ""), tmp_path, listed.folder.parent
        )


def test_a_folder_without_an_entry_is_no_target(tmp_path: Path) -> None:
    with pytest.raises(EntryError, match=r"there is no entry of a defense in .*; name the folder of one, such as"):
        attacking.prepare_attack(tmp_path / "none", f"{HUMS}:Hums", credits_of("Again", "B", ""), tmp_path, tmp_path)


def test_an_entry_of_something_else_is_not_replaced(hums: Attacked, listed: Made) -> None:
    with pytest.raises(
        EntryError, match=r"is an entry of the attack attack/hums.py:Hums, and this one, of the attack "
    ):
        submitted(listed, "Samples", "Hums, at will!")  # whose folder is the same
    own = submitted(listed, "Hums")
    other = replace(own, numerics=own.numerics.model_copy(update={"threads": 7}))
    with pytest.raises(EntryError, match=r"is an entry with .*--threads 1, and this one, with .*--threads 7, would"):
        attacking._earlier(other)
    other = replace(own, suite=replace(own.suite, name="another"))
    with pytest.raises(EntryError, match=r"is an entry on tiny-v1, and this one, on another-v1, would replace it"):
        attacking._earlier(other)
    assert [each.slug for each in attacking._earlier(own)] == ["mine"], "the attack itself goes on"


def test_results_that_a_changed_attack_loses_are_named(hums: Attacked, listed: Made) -> None:
    assert attacking.replaced(submitted(listed, "Hums")) == []
    (said,) = attacking.replaced(submitted(listed, "Samples"))  # under the same name
    assert "has results of another version of this attack (attack/hums.py:Hums) against mine, which will be" in said


def test_what_a_file_may_not_import_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import torch\n" + HUMS.read_text())
    with pytest.raises(EntryError, match=r"line 1 of mine.py imports torch; it may import only .* thiefbench.attacks"):
        attacking.checked_spec(f"{file}:Hums")


# --- verification ---


def test_a_true_entry_is_rescored(hums: Attacked) -> None:
    told: list[Finding] = []
    found = verify_attack(
        hums.folder, VerifyOptions(hums.archive, reruns=0, fresh=0), told.append, lambda c: lambda d, t: None
    )
    assert (found.verdict, found.reasons) == ("rescored", ("no cell was run again",))
    (judged,) = [each.detail for each in told if each.question == "its outcome depends on item and completion alone"]
    there = {"headline": 3 * 32, "earlier": 2 * 32, "train": 4 * 16}
    assert judged == f"{4 * sum(min(most, there[name]) for name, most in ASKED_AGAIN.items())} completions"
    assert verify_attack(hums.folder, VerifyOptions(), lambda f: None, lambda c: lambda d, t: None).verdict == (
        "self-reported"
    )


@pytest.mark.slow
def test_a_true_entry_is_run_again_to_the_bit(hums: Attacked) -> None:
    found = verified(hums, reruns=None, fresh=1)
    assert found.verdict in ("re-executed", "rescored"), found.reasons
    again = [each for each in found.reruns if each.seed is not None]
    assert [(each.kind, each.equal) for each in again] == [
        ("control", True), ("placebo", True), ("undefended", True), ("own", True),
    ]  # fmt: skip
    assert found.fresh_trials == 1
    assert found.key


def test_what_an_attack_says_is_known_from_the_first_round_on(
    hums: Attacked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, where a verification is stopped between two cells, what is said in them could not be compared."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0.0)
    manifest, store = hums.entry.manifest, Store(tmp_path)
    due = wanted(suite(), manifest.parts, manifest.attack, manifest.targets, manifest.numerics)
    (spec,) = [each.spec for each in due if each.spec.role == "attack" and not each.target]

    def run(stop: int | None = None) -> tuple[set[Said], list[int], Path]:
        factory = AttackFactory(manifest.attack, f"{HUMS}:Hums", manifest.source_sha256, said=set())
        rounds: list[int] = []

        def progress(done: int, total: int) -> None:
            rounds.append(done)
            if done == stop:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            run_attack_cell(spec, store, factory, progress)
        assert factory.said is not None
        return factory.said, rounds, next(store.root.glob("cells/*"))

    _, stopped, cell = run(stop=2)
    assert stopped == [0, 1, 2]
    assert (cell / "checkpoint").is_dir(), "from which a cell goes on elsewhere"
    said, rounds, _ = run()
    assert rounds == [0, 1, 2, 3, 4], "a cell that was stopped begins again"
    assert len(said) > 4
    assert run()[:2] == (said, []), "what was said in a finished one is kept"
    (cell / "said.bin").unlink()
    assert run()[:2] == (said, rounds), "or it is run again"


@pytest.mark.parametrize("guarded", [False, True])
def test_a_damaged_checkpoint_begins_the_cell_again(
    guarded: bool, hums: Attacked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once counted as a failure of the attacked defense, and without one it ended the command at every try."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0.0)
    manifest, store = hums.entry.manifest, Store(tmp_path)
    due = wanted(suite(), manifest.parts, manifest.attack, manifest.targets, manifest.numerics)
    spec = next(each.spec for each in due if each.spec.role == "attack" and bool(each.target) == guarded)
    target = Guarded(spec.defense, "none", "", isolated=False) if guarded else None
    factory = AttackFactory(manifest.attack, f"{HUMS}:Hums", manifest.source_sha256, target)
    rounds: list[int] = []

    def progress(done: int, total: int) -> None:
        rounds.append(done)
        if done == 2 and len(rounds) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_attack_cell(spec, store, factory, progress)
    (state,) = store.root.glob("cells/*/checkpoint/state.json")
    state.write_text("{")
    record = run_attack_cell(spec, store, factory, progress)
    assert record.status == "ok"
    assert rounds == [0, 1, 2, 0, 1, 2, 3, 4]
    assert record.provenance[COST]["rounds"] == 4, "what was used before the damage is not counted again"


@pytest.mark.slow
def test_cells_are_run_again_in_an_order_that_nobody_can_know(hums: Attacked, tmp_path: Path) -> None:
    orders, kinds = set(), set()
    for secret in (bytes([number]) * SECRET_BYTES for number in range(4)):
        told: list[str] = []

        def watch(cell: str, told: list[str] = told) -> Progress:
            told.append(cell)
            return lambda done, total: None

        options = VerifyOptions(hums.archive, reruns=1, fresh=0, store=tmp_path, secret=secret)
        found = verify_attack(hums.folder, options, lambda finding: None, watch)
        orders.add(tuple(told))
        kinds.add(tuple(each.kind for each in found.reruns))
    assert len(orders) > 1
    assert kinds == {("control", "placebo", "undefended", "own")}, "and they are published in that of the entry"


@pytest.mark.slow
def test_an_outcome_that_is_one_at_known_seeds_only_is_rejected(listed: Made) -> None:
    """The submitted cells are those of a true attack, and computing them again shows nothing."""
    (part,) = suite().scenes
    known = drawn(IsolatedAttack(f"{HUMS}:Table"), suite().seeds[0], part.swarm, registry.make("task", part.task))
    table = attacked(listed, f"Table(known={known.describe()['mark']!r})", "Table")
    assert verified(table).verdict == "rescored"
    found = verified(table, fresh=1)
    assert found.verdict == "rejected"
    assert "at a fresh seed, clean text satisfies its outcome" in found.reasons[0]
    shutil.rmtree(table.folder)


@pytest.mark.slow
def test_an_attack_that_does_little_where_it_is_not_known_is_not_called_re_executed(listed: Made) -> None:
    """Whatever it claims to do to the defense, a share of next to no harm would be in the range that is predicted."""
    (part,) = suite().scenes
    known = drawn(IsolatedAttack(f"{HUMS}:Fades"), suite().seeds[0], part.swarm, registry.make("task", part.task))
    fades = attacked(listed, f"Fades(known={known.describe()['mark']!r})", "Fades")
    found = verified(fades, reruns=None, fresh=2)
    assert found.verdict == "rescored"
    assert found.inconclusive == found.fresh_trials == 2
    assert "its trials at fresh seeds say nothing of mine: undefended, it does too little harm" in found.reasons[0]
    shutil.rmtree(fades.folder)


@pytest.mark.slow
def test_a_judge_that_remembers_what_it_saw_is_rejected(listed: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """By two rules, of which a forger may evade the one on the submitted cells: their completions are known."""
    sees = attacked(listed, "SeesItsTune", "Sees its tune")
    compared = attack_verification.outcomes_apart
    assert "the outcome of a completion is" in verified(sees).reasons[0]
    with monkeypatch.context() as patch:
        patch.setattr(attack_verification, "outcomes_apart", lambda tables: "")
        found = verified(sees)
        assert found.verdict == "rejected"
        assert "judged in a new process in another order" in found.reasons[0]
    with monkeypatch.context() as patch:
        submitted_cells = iter(suite().seeds)

        def at_fresh_seeds(tables: Iterable[pa.Table]) -> str:
            return "" if next(submitted_cells, None) is not None else compared(tables)

        patch.setattr(attack_verification, "outcomes_apart", at_fresh_seeds)
        patch.setattr(attack_verification, "other_outcomes", lambda *_: "")
        found = verified(sees, fresh=1, secret=bytes([7]) * SECRET_BYTES)
        assert found.verdict == "rejected"
        assert "at a fresh seed, the outcome of a completion is" in found.reasons[0]
    shutil.rmtree(sees.folder)


@pytest.mark.slow
def test_bits_that_are_not_equal_elsewhere_are_said(hums: Attacked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack_verification, "surroundings_apart", lambda record: ("another processor",))
    monkeypatch.setattr(attack_verification, "cell_difference", lambda *cells: "completions differ from round 1 on")
    found = verified(hums, reruns=None, fresh=0)
    assert [each.equal for each in found.reruns] == [False] * 4
    assert any("4 of 4 cells that were run again are not bit-equal" in reason for reason in found.reasons)


@pytest.mark.slow
def test_elsewhere_shares_are_compared_and_not_asrs_alone(hums: Attacked, monkeypatch: pytest.MonkeyPatch) -> None:
    """A little less undefended and a little more defended are each close, and together another result."""
    shares = iter([(0.6, 0.05), (0.85, 0.05)])  # as submitted, and here
    monkeypatch.setattr(attack_verification, "surroundings_apart", lambda record: ("another processor",))
    monkeypatch.setattr(attack_verification, "prevented", lambda *records: next(shares))
    found = verified(hums, reruns=None, fresh=0)
    assert found.verdict == "rejected"
    assert "mine: run again, it prevents 0.850 of the harm, and 0.600 in the entry" in found.reasons[0]


def test_an_anchor_is_no_target_in_a_verification_either(tmp_path: Path) -> None:
    anchor = made_entries.entry(tmp_path, defense="reject_all")
    made_attacks.attack(tmp_path, [anchor], slug="breaker")
    found = verify_attack(tmp_path / "breaker", VerifyOptions(), lambda f: None, lambda c: lambda d, t: None)
    assert found.verdict == "rejected"
    assert "reject_all is a row of the benchmark itself" in found.reasons[0]


@pytest.mark.parametrize("name", ["asr", "curve", "reference", *at_length("cost", "threat", "about", "example")])
def test_an_edited_entry_is_rejected(hums: Attacked, tmp_path: Path, name: str) -> None:
    def change(manifest: dict[str, Any], scores: dict[str, Any]) -> None:
        cell = scores["cells"][-1]
        if name == "asr":
            cell["scores"]["asr"][0] = cell["scores"]["asr"][1]
        elif name == "curve":
            cell["curves"]["eval_asr"][-1][1] = 0.9
        elif name == "cost":
            cell["cost"]["sent"] = 1
        elif name == "threat":
            manifest["threat"]["oracle"] = False
        elif name == "reference":
            manifest["reference"] = "control"
        elif name == "about":
            manifest["about"] = "Verified by the maintainers."
        else:
            scores["examples"][0]["text"] = "something nicer"

    found = verified(forged(hums, tmp_path, change))
    assert found.verdict == "rejected", name
    words = {
        "asr": "scores", "curve": "curves", "cost": "cost", "threat": "threat model", "about": "describes its attack",
        "example": "completions", "reference": "is measured against the control, and its attack says placebo",
    }  # fmt: skip
    assert words[name] in found.reasons[0]


def test_outcomes_that_do_not_follow_from_the_completions_are_rejected(hums: Attacked, tmp_path: Path) -> None:
    """Records, completions and entry agree with each other, and the attack says otherwise."""
    first = tmp_path / "store"
    archive.unpack(hums.archive, hums.entry, first)
    store, cells = Store(first), list(hums.entry.cells)
    directory = store.cell(cells[-1].cell_id)
    record = directory.read()
    assert record is not None
    rows = [replace(row, outcome=1.0) if row.phase == "eval" and row.round else row for row in
            table_rows(directory.read_rows())]  # fmt: skip
    table = rows_table(rows)
    scored = tiny_entries.cell_scores(table), tiny_entries.cell_curves(table)
    record = record.model_copy(
        update={
            "completions_sha256": directory.write_rows(table),
            "scores": scored[0],
            "curves": scored[1] | {"grad_norm": record.curves["grad_norm"]},
        }
    )
    directory.write(record)
    cells[-1] = attacking.attack_cell(record, "", "mine", file_sha256(directory.record_path))
    entries = tmp_path / "entries"
    for each in hums.folder.parent.iterdir():
        shutil.copytree(each, entries / each.name)
    target = tmp_path / f"{hums.entry.manifest.slug}.tar"
    manifest = hums.entry.manifest.model_copy(update={"archive": archive.pack(target, store, cells)})
    shown = attacking.examples(cells, {c.cell_id: r for c in cells if (r := store.cell(c.cell_id).read())}, store)
    source = {path.relative_to(hums.folder).as_posix(): path.read_bytes() for path in hums.entry.source}
    made = write_attack_entry(
        entries / hums.folder.name, manifest, AttackScores(cells=tuple(cells), examples=shown), source
    )
    found = verified(Attacked(made, target, hums.store))
    assert found.verdict == "rejected"
    assert "its outcome does not follow" in found.reasons[0]


def test_an_attack_s_entry_says_how_its_cells_were_made(hums: Attacked, tmp_path: Path) -> None:
    def change(manifest: dict[str, Any], scores: dict[str, Any]) -> None:
        manifest["machine"]["processor"] = "another"

    found = verified(forged(hums, tmp_path, change))
    assert found.verdict == "rejected"
    assert "it does not say how its cells were made: of processor it says “another”" in found.reasons[0]


@pytest.mark.slow
def test_without_its_archive_an_attack_keeps_its_verdict(hums: Attacked, tmp_path: Path) -> None:
    before = verified(hums)
    assert before.verdict == "rescored"
    write_verification(tmp_path, before)
    unread = Attacked(hums.entry, None, hums.store)  # type: ignore[arg-type]  # as where none is given
    assert verified(unread, earlier=tmp_path) == before
    assert verified(unread).verdict == "self-reported"

    write_verification(tmp_path, before.model_copy(update={"verdict": "rejected"}))
    assert verified(unread, earlier=tmp_path).verdict == "rejected", "reading an entry clears it of nothing"
    write_verification(tmp_path, before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cell_identity, "weights_fingerprint", lambda model: "another")
        assert verified(unread, earlier=tmp_path).verdict == "self-reported", "that was with another model"
        write_verification(tmp_path, before.model_copy(update={"verdict": "rejected", "key": "0" * 64}))
        assert verified(unread, earlier=tmp_path).verdict == "rejected", "what cells have shown takes cells to refute"
    write_verification(tmp_path, before)

    def change(manifest: dict[str, Any], scores: dict[str, Any]) -> None:
        manifest["about"] = "something else"

    other = forged(hums, tmp_path / "other", change)
    unread = Attacked(other.entry, None, hums.store)  # type: ignore[arg-type]
    assert verified(unread, earlier=tmp_path).verdict == "self-reported", "that was of another content"


def test_a_defense_that_changed_since_is_noticed(hums: Attacked, tmp_path: Path) -> None:
    def change(manifest: dict[str, Any], scores: dict[str, Any]) -> None:
        manifest["targets"][0]["source_sha256"] = "0" * 64

    found = verified(forged(hums, tmp_path, change))
    assert found.verdict == "rejected"
    assert "another version of mine than the listed one" in found.reasons[0]


@pytest.mark.parametrize("how", ["missing", "broken"])
def test_a_defense_that_cannot_be_read_says_nothing_of_the_attack(hums: Attacked, tmp_path: Path, how: str) -> None:
    for each in hums.folder.parent.iterdir():
        shutil.copytree(each, tmp_path / each.name)
    if how == "missing":
        shutil.rmtree(tmp_path / "mine")
    else:
        (tmp_path / "mine" / ".DS_Store").touch()
    alone = Attacked(read_attack_entry(tmp_path / hums.folder.name), hums.archive, hums.store)
    with pytest.raises(
        TargetError, match=r"was run against mine, whose entry in .* cannot be read, which says nothing"
    ):
        verified(alone)


def test_an_archive_too_many_says_nothing_of_the_attack(hums: Attacked, tmp_path: Path) -> None:
    words = ["leaderboard", "verify", str(hums.folder), "--write", str(tmp_path)]
    done = CliRunner().invoke(app, [*words, "--archive", str(hums.archive), "--archive", str(hums.archive)])
    assert "an attack's entry has one archive" in str(done.exception), done.output
    assert isinstance(done.exception, UserError), "the command line ends with code 2"
    assert not isinstance(done.exception, EntryError), "and not with that of a rejected entry"
    assert not list(tmp_path.iterdir())


def test_no_page_quotes_an_error_which_may_be_forged(tmp_path: Path) -> None:
    entries, seen = tmp_path / "entries", tmp_path / "verified"
    made_attacks.attack(entries, [made_entries.entry(entries)], crashes=True)
    breaker = read_attack_entry(entries / "breaker")
    for verdict, said in (("rescored", "its author reports that the"), ("re-executed", "an error of the")):
        write_verification(
            seen,
            Verification(slug="breaker", entry_sha256=breaker.sha256, verdict=verdict, verified=date(2026, 11, 23),
                         engine_revision=1),
        )  # fmt: skip
        write_site(tmp_path / "site", entries, seen)
        for name in ("index.html", "entries/breaker.html", "board.json"):
            page = (tmp_path / "site" / name).read_text()
            assert "it gave up" not in page, name
            assert said in page, name


def test_a_path_out_of_the_entry_is_refused(hums: Attacked, tmp_path: Path) -> None:
    def change(manifest: dict[str, Any], scores: dict[str, Any]) -> None:
        manifest["attack"] = "../hums.py:Hums"

    with pytest.raises(EntryError, match=r"attack names the file \.\./hums\.py, which is not part of the entry"):
        forged(hums, tmp_path, change)


# --- the board ---


def test_the_board_says_who_broke_what(hums: Attacked, listed: Made, tmp_path: Path) -> None:
    entries, verifications = hums.folder.parent, tmp_path / "verified"
    write_verification(verifications, verified(hums))
    (shown,) = board(entries, verifications).suites
    assert [attack.entry.manifest.slug for attack in shown.attacks] == ["hums-at-will"]
    row = next(row for row in shown.rows if row.own)
    assert row.best is not None
    written = write_site(tmp_path / "site", entries, verifications)
    assert written.broken == ()
    page = (tmp_path / "site/entries/hums-at-will.html").read_text()
    assert "Threat model" in page
    assert "<mark>" in page, "the payload is marked"
    assert "Submitted attacks" in (tmp_path / "site/index.html").read_text()
    data = json.loads((tmp_path / "site/board.json").read_text())
    (said,) = data["suites"][0]["attacks_by_outsiders"]
    assert (said["slug"], said["trust"], said["since"]) == ("hums-at-will", "rescored", date.today().isoformat())
    assert said["results"][0]["prevented"]["mean"] == pytest.approx(0, abs=1e-9)
