"""What is true is believed as far as it was tried, and every cheat is caught or defeated, and named."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.leaderboard import made_entries
from tests.leaderboard.checking.test_check import sample
from tests.leaderboard.scores_files import put_scores, scores_text
from tests.leaderboard.tiny_entries import (
    ATTACK,
    CHEATS,
    HOSTILE,
    Made,
    copied,
    each,
    forged,
    harmed,
    made,
    masked,
    resigned,
    rewritten,
    suite,
)
from tests.variants import at_length
from thiefbench import __version__, registry
from thiefbench.cli import app
from thiefbench.engine.keys import SECRET_BYTES, secret_seed
from thiefbench.engine.round_record import CompletionRow
from thiefbench.errors import UserError
from thiefbench.leaderboard import archive
from thiefbench.leaderboard.archive import WrongArchiveError
from thiefbench.leaderboard.cell_scores import CellScores, Scores, trimmed
from thiefbench.leaderboard.checking.findings import Finding
from thiefbench.leaderboard.entry import read_entry, write_entry
from thiefbench.leaderboard.isolation.limits import CAPS
from thiefbench.leaderboard.manifest import Manifest
from thiefbench.leaderboard.verification import judging_again, reexecution
from thiefbench.leaderboard.verification import verify as verify_module
from thiefbench.leaderboard.verification.held_out import HeldOut
from thiefbench.leaderboard.verification.rerunning import surroundings_apart, weaker_sandbox
from thiefbench.leaderboard.verification.verdict import (
    Rerun,
    Verification,
    carried_from,
    read_verification,
    write_verification,
)
from thiefbench.leaderboard.verification.verify import JUDGED_AGAIN, VerifyOptions, verify
from thiefbench.suite.store.records import Record, Store, file_sha256, table_rows

SECRET = bytes([2]) * SECRET_BYTES
"""At the first fresh seed that it gives, the undefended attack works; it draws another letter than seed 0."""
NOTHING_LEARNED = bytes([1]) * SECRET_BYTES
"""At the first fresh seed that it gives, the undefended attack does not work."""
CAREFUL = replace(CAPS, memory=512 << 20, printed=100_000, message=1 << 20)
HASTY = replace(CAREFUL, seconds=4.0)  # for what takes all the time it gets: a busy machine needs longer for the rest


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all submissions' cells go, so that shared ones are run once."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[Made]:
    """A true entry, whose suite counts as released while these tests run."""
    with pytest.MonkeyPatch.context() as patch:
        yield made(tmp_path_factory.mktemp("honest"), f"{CHEATS}:Hears", patch, store=store)


def verified(of: Made, told: list[Finding] | None = None, samples: bool = False, **asked: Any) -> Verification:
    """A verification with a known secret; without further words nothing is run."""
    options = {"archive": of.archive, "reruns": 0, "fresh": 0, "caps": CAREFUL, "secret": SECRET} | asked
    tell = (told if told is not None else []).append
    return verify(
        of.folder,
        VerifyOptions(**options),
        tell,
        lambda what: lambda done, total: None,
        lambda suite: [sample()] if samples else [],
    )


def rejected(of: Made, **asked: Any) -> str:
    """The reasons for which an entry is rejected."""
    found = verified(of, **asked)
    assert found.verdict == "rejected", found
    return "\n".join(found.reasons)


def attacked(cell: CellScores) -> bool:
    return cell.role == "attack" and cell.defense.startswith("defense/")


def undefended(cell: CellScores) -> bool:
    return (cell.role, cell.defense) == ("attack", "none")


# --- what is true ---


def test_without_an_archive_scores_are_what_their_authors_say(honest: Made) -> None:
    found = verified(honest, archive=None, reruns=3)
    assert (found.verdict, found.reruns) == ("self-reported", ())
    assert "no archive was given" in found.reasons[0]


def test_an_archive_that_gives_the_scores_is_rescored(honest: Made) -> None:
    told: list[Finding] = []
    found = verified(honest, told)
    assert (found.verdict, found.flags, found.reasons) == ("rescored", (), ("no cell was run again",))
    assert {finding.status for finding in told} == {"ok"}
    assert any("864 rewards computed again" in finding.detail for finding in told), "no reward is believed"


def test_a_comparison_run_again_on_this_machine_is_bit_equal(honest: Made, rerun_cells: Path, jail: None) -> None:
    found = verified(honest, reruns=None, fresh=1, store=rerun_cells)
    assert (found.verdict, found.flags, found.reasons) == ("re-executed", (), ())
    again = [each for each in found.reruns if each.seed is not None]
    assert len(again) == len(honest.entry.cells), "every cell of the comparison"
    assert all(each.equal and each.agrees and each.submitted[0] == each.found for each in again)
    assert again[0].measure == "harm_prevented", "a defended cell under attack comes first"
    assert {each.measure for each in again} == {"harm_prevented", "headline_asr"}
    kinds = [("own", 2), ("undefended", 1), ("placebo", 1), ("control", 1), ("oracle", 1)]
    assert [(kind, [each.kind for each in again].count(kind)) for kind, _ in kinds] == kinds, "it says what they are"
    assert (found.comparisons, found.forgery_found, found.fresh_trials) == ((1, 1), 1.0, 1)


@pytest.mark.slow
def test_what_lacks_for_re_executed_is_said(honest: Made, rerun_cells: Path, jail: None) -> None:
    found = verified(honest, reruns=None, fresh=0, store=rerun_cells)
    assert (found.verdict, found.reasons) == (
        "rescored", ("it was not tried at a fresh seed, where it cannot know who is malicious",),
    )  # fmt: skip
    found = verified(honest, reruns=None, fresh=1, secret=NOTHING_LEARNED, store=rerun_cells)
    assert (found.verdict, found.fresh_trials, found.inconclusive) == ("rescored", 1, 1)
    (reason,) = found.reasons
    assert reason == (
        "its trial at a fresh seed is inconclusive: undefended, the attack does too little harm there to measure what "
        "is prevented; --fresh 3 tries more"
    )


@pytest.mark.slow
def test_the_published_key_repeats_a_verification(
    honest: Made, rerun_cells: Path, jail: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The secret is new each time, and only the verdict tells it."""
    told: list[Finding] = []
    monkeypatch.setattr("thiefbench.leaderboard.verification.verify.new_secret", lambda: SECRET)
    options = VerifyOptions(honest.archive, caps=CAREFUL)
    assert VerifyOptions(honest.archive).secret != VerifyOptions(honest.archive).secret, "drawn for each"
    assert options.secret.hex() not in repr(options)
    first = verified(honest, told, reruns=None, fresh=1, secret=options.secret, store=rerun_cells)
    assert not any(options.secret.hex() in finding.detail for finding in told)
    cells = {record.cell_id for record in Store(rerun_cells).records()}
    again = verified(honest, reruns=None, fresh=1, secret=bytes.fromhex(first.key), store=rerun_cells)
    assert again.reruns == first.reruns
    assert {record.cell_id for record in Store(rerun_cells).records()} == cells, "its fresh seeds are the same"


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if entries were made on another machine, whose bits are others."""
    for module in (reexecution, verify_module):
        monkeypatch.setattr(module, "surroundings_apart", lambda record: ("torch 2.15.0 in place of 2.13.0\x1b",))
    monkeypatch.setattr(reexecution, "first_difference", lambda one, other: "from round 1 on")


@pytest.mark.slow
def test_elsewhere_scores_lie_in_the_range_predicted_from_the_submitted_seeds(
    honest: Made, rerun_cells: Path, tmp_path: Path, jail: None, elsewhere: None
) -> None:
    found = verified(honest, reruns=1, fresh=1, store=rerun_cells)
    again, *beside = (each for each in found.reruns if each.seed is not None)
    assert (found.verdict, again.equal, again.agrees) == ("re-executed", False, True)
    assert all(each.agrees for each in beside)
    low, high = again.submitted
    assert low is not None
    assert high is not None
    assert low < (again.found or 0) < high, "an interval around what was submitted"
    (reason,) = found.reasons
    assert "6 of 6 cells that were run again are not bit-equal, but their results are close or in the range" in reason
    assert reason.endswith("; here are torch 2.15.0 in place of 2.13.0<U+001B>"), (
        "it says which versions differ, and no more"
    )
    said = rejected(masked(honest, tmp_path, HOSTILE, "Spies"), reruns=1, store=rerun_cells)
    outside = "outside the range predicted from the submitted seeds"
    assert re.search(rf"run again, its harm_prevented is -?0\.\d+, {outside}, 0\.\d+ to 1\.\d+", said), said


def test_bits_are_promised_where_everything_that_is_recorded_is_the_same(honest: Made) -> None:
    told = archive.unpack(honest.archive, honest.entry, honest.folder.parent / "unpacked").records()[0]
    assert surroundings_apart(told) == ()
    for name in ("torch", "processor", "processor_model", "capability", "platform", "threads"):
        other = told.model_copy(update={"provenance": told.provenance | {name: "another" * 100}})
        (said,) = surroundings_apart(other)
        assert said.startswith(f"{name} {told.provenance[name]!s:.60}"), "what it is here"
        assert said.endswith(" in place of " + ("another" * 100)[:60]), "and what it was there, cut short"
    older = {name: value for name, value in told.provenance.items() if name != "processor_model"}
    (said,) = surroundings_apart(told.model_copy(update={"provenance": older}))
    assert said.endswith(" in place of nothing"), "a record that does not say is promised nothing"
    assert surroundings_apart(told.model_copy(update={"cell": told.cell | {"device": "cuda"}})), "nor is one of a GPU"


@pytest.mark.slow
def test_an_entry_made_with_other_versions_is_not_rejected_for_its_last_bits(
    honest: Made, rerun_cells: Path, tmp_path: Path, jail: None
) -> None:
    """Made with another torch, whose last bits let one near-tie of a late evaluation fall the other way."""

    def near_tie(record: Record, rows: list[CompletionRow]) -> tuple[Record, list[CompletionRow]]:
        last = [place for place, row in enumerate(rows) if row.phase == "eval" and row.round == 4]
        one, other = next((a, b) for a in last for b in last if rows[a].ids != rows[b].ids)
        took = {name: getattr(rows[other], name) for name in ("ids", "text", "ended", "outcome", "reward")}
        return record, [replace(row, **took) if place == one else row for place, row in enumerate(rows)]

    def with_torch(record: Record, rows: list[CompletionRow]) -> tuple[Record, list[CompletionRow]]:
        return record.model_copy(update={"provenance": record.provenance | {"torch": "2.13.0+cpu"}}), rows

    there = forged(honest, tmp_path / "there", near_tie, attacked)
    moved = forged(there, tmp_path / "moved", with_torch, lambda cell: True)
    versions = moved.entry.manifest.versions | {"torch": "2.13.0+cpu"}
    store, cells = Store(tmp_path / "moved" / "store"), list(moved.entry.cells)
    moved = resigned(moved, tmp_path / "signed", store, cells, versions=versions)
    assert verified(moved).verdict == "rescored", "tokens are data: scores, rewards and advantages follow from them"
    found = verified(moved, reruns=1, fresh=1, store=rerun_cells)
    unequal = [(again.kind, again.role) for again in found.reruns if again.equal is False]
    assert (found.verdict, unequal) == ("re-executed", [("own", "attack")])
    assert re.search(r"; here are torch \S+ in place of 2\.13\.0\+cpu$", found.reasons[0]), found.reasons


def test_fresh_seeds_and_held_out_attacks_are_run_and_never_told(
    honest: Made, rerun_cells: Path, jail: None, tmp_path: Path
) -> None:
    known = HeldOut(seeds=(2**62 + 3,), attacks=(f"{ATTACK}(letter='x')",))
    told: list[Finding] = []
    found = verified(honest, told, fresh=1, held_out=known, store=rerun_cells)
    assert found.verdict == "rescored", "no submitted cell was run again"
    assert "does not generalise" not in found.flags, found.reasons
    published = found.model_dump_json()
    assert found.held_out == 6 + 2 * 4, "a held-out seed, and a held-out attack at both, without the same control twice"
    (fresh,) = [each for each in found.reruns if each.measure == "harm_prevented"]
    assert (fresh.seed, fresh.equal, fresh.agrees) == (None, None, True)
    for secret in (str(secret_seed(SECRET, "fresh", 1)), str(2**62 + 3), "letter="):
        assert secret not in published
        assert not any(secret in finding.detail for finding in told)


@pytest.mark.slow
def test_the_secret_of_a_fresh_trial_is_nowhere_in_the_sandbox(honest: Made, tmp_path: Path, jail: None) -> None:
    """Not in its memory, its environment or its files; nor are the seeds that are hashed with it."""
    seed = secret_seed(SECRET, "fresh", 1)
    secrets = [SECRET.hex(), str(seed), str(secret_seed(SECRET, "clean", seed))]
    spy = masked(honest, tmp_path / "1", HOSTILE, f"Spies(paths={[str(tmp_path)]}, words={secrets})")
    found = verified(spy, fresh=1, store=tmp_path / "own")
    assert (found.verdict, found.fresh_trials) == ("rescored", 1)
    records = [record for record in Store(tmp_path / "own").records() if record.cell["defense"].startswith("defense/")]
    played = {(record.cell["role"], str(record.cell["seed"])) for record in records}
    assert played == {("attack", secrets[1]), ("control", secrets[2])}, "attacked and clean cells have secrets apart"
    for record in records:
        rows = table_rows(Store(tmp_path / "own").cell(record.cell_id).read_rows())
        assert {row.reason for row in rows if row.phase == "train"} == {""}, "and the spy found nothing"


@pytest.fixture(scope="module")
def three_seeds(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[Made]:
    """A true entry of three seeds, whose suite counts as released."""
    with pytest.MonkeyPatch.context() as patch:
        of = suite(name="three", seeds=(0, 1, 2))
        yield made(tmp_path_factory.mktemp("three"), f"{CHEATS}:Hears", patch, of, store)


@pytest.mark.slow
def test_elsewhere_several_seeds_are_asked_for(
    three_seeds: Made, rerun_cells: Path, jail: None, elsewhere: None
) -> None:
    found = verified(three_seeds, reruns=1, store=rerun_cells)
    assert (found.verdict, found.comparisons) == ("rescored", (1, 3))
    assert found.reasons[0] == (
        "1 of its comparisons were run again, and 3 are needed, so that 3 seeds of every attack agree, as equal bits "
        "are not promised here"
    )
    again = {each.seed for each in verified(three_seeds, reruns=None, store=rerun_cells).reruns}
    assert again == {0, 1, 2}, "which is the default there"


# --- cheats that touch the numbers ---


def test_edited_scores(honest: Made, tmp_path: Path) -> None:
    def better(told: dict[str, Any]) -> None:
        cell = next(cell for cell in told["cells"] if cell["role"] == "attack" and "none" in cell["defense"])
        cell["scores"]["asr"] = [0.99, 0.9, 1.0, 16]

    said = rejected(rewritten(honest, tmp_path, better))
    assert re.search(
        r"x none, seed 0: the entry differs from the record in the archive in its scores: asr: \(0\.99", said
    )


def test_a_drift_that_the_completions_do_not_give(honest: Made, tmp_path: Path) -> None:
    def harmless(told: dict[str, Any]) -> None:
        cell = next(cell for cell in told["cells"] if cell["role"] == "attack" and cell["defense"] == "none")
        assert cell["scores"]["drift"][0] > 0, "the payload is a word that the control never writes"
        cell["scores"]["drift"] = [0.0, 0.0, 0.1, 16]

    said = rejected(rewritten(honest, tmp_path, harmless))
    assert "x none, seed 0: its drift does not follow from its completions and those of its control: (0.0, 0.0," in said


def test_a_drift_that_is_left_out_beside_others(honest: Made, tmp_path: Path) -> None:
    """The board shows the largest drift of any cell, so the cell that has it would rather not say."""

    def silent(told: dict[str, Any]) -> None:
        cell = next(cell for cell in told["cells"] if cell["role"] == "attack" and cell["defense"] == "none")
        del cell["scores"]["drift"], cell["scores"]["divergence"]

    said = rejected(rewritten(honest, tmp_path, silent))
    assert "x none, seed 0: its drift does not follow from its completions and those of its control: None" in said


def test_an_entry_from_before_drift_was_measured_can_be_verified(honest: Made, tmp_path: Path) -> None:
    def without(told: dict[str, Any]) -> None:
        for cell in told["cells"]:
            cell["scores"] = {name: s for name, s in cell["scores"].items() if name not in ("drift", "divergence")}

    assert verified(rewritten(honest, tmp_path, without), reruns=0, fresh=0).verdict == "rescored"


def test_what_an_attack_chose_is_what_its_record_says(
    honest: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tiny attack rehearses, so that a record is made to say so; with its completions the engine would not agree."""
    monkeypatch.setattr(verify_module, "check_completions", lambda *of, **beside: 0)

    def chose(record: Record, rows: list[CompletionRow]) -> tuple[Record, list[CompletionRow]]:
        return record.model_copy(update={"payload": record.payload | {"member": "sift"}}), rows

    def says(what: str) -> Callable[[dict[str, Any]], None]:
        def change(told: dict[str, Any]) -> None:
            for cell in told["cells"]:
                if cell.get("chosen"):
                    cell["chosen"] = what

        return change

    true = forged(honest, tmp_path / "1", chose, attacked)
    (own,) = (cell for cell in true.entry.cells if attacked(cell))
    assert (own.chosen, verified(true).verdict) == ("sift", "rescored")
    assert "differs from the record in the archive in its chosen: 'names'" in rejected(
        rewritten(true, tmp_path / "2", says("names"))
    )
    assert verified(rewritten(true, tmp_path / "3", says(""))).verdict == "rescored", "as of an older version"


@pytest.mark.parametrize("said", ["m" * 200, "two\nlines", "bell\x07"])
def test_what_a_stranger_s_attack_calls_a_member_fits_into_an_entry(honest: Made, said: str) -> None:
    """Its payload may have anything by that name."""
    record = Record(
        cell_id="0" * 16, cell={"role": "attack", "attack": "mine", "defense": "none", "seed": 0}, identity={},
        status="ok", payload={"member": said}, completions_sha256="0" * 64,
    )  # fmt: skip
    chosen = trimmed(record, "", True, "0" * 64).chosen
    assert chosen and len(chosen) <= 60 and chosen.isprintable()


def test_a_checksum_that_does_not_match_is_no_entry(honest: Made, tmp_path: Path) -> None:
    shutil.copytree(honest.folder, folder := tmp_path / "mine")
    put_scores(folder, scores_text(folder).replace("0.", "1.", 1))
    done = CliRunner().invoke(app, ["leaderboard", "verify", str(folder)])
    assert (done.exit_code, "its SHA-256 differs" in done.output) == (1, True), done.output


def test_scores_of_a_record_that_its_completions_do_not_give(honest: Made, tmp_path: Path) -> None:
    def edit(record: Record, rows: list[CompletionRow]) -> tuple[Record, list[CompletionRow]]:
        asr = record.scores["asr"].model_copy(update={"value": 0.0})
        return record.model_copy(update={"scores": record.scores | {"asr": asr}}), rows

    said = rejected(forged(honest, tmp_path, edit, attacked, rescored=False))
    assert "its record's asr does not follow from its completions: [0.0," in said


def test_of_a_curve_the_point_is_shown_that_does_not_follow(honest: Made, tmp_path: Path) -> None:
    def edit(record: Record, rows: list[CompletionRow]) -> tuple[Record, list[CompletionRow]]:
        *others, last = record.curves["eval_asr"]
        wrong = last.model_copy(update={"value": 0.0, "low": 0.0})
        return record.model_copy(update={"curves": record.curves | {"eval_asr": [*others, wrong]}}), rows

    said = rejected(forged(honest, tmp_path, edit, attacked, rescored=False))
    shown, found = re.findall(r"\[(\d+), ", said)
    assert shown == found != "0", "both begin with the round of that point"
    assert "its record's eval_asr does not follow from its completions" in said


def test_what_a_stranger_s_code_did_by_landlock_is_not_called_re_executed(
    honest: Made, rerun_cells: Path, jail: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thiefbench.leaderboard.verification.rerunning.backend", lambda: "landlock")
    found = verified(honest, reruns=None, fresh=1, store=rerun_cells)
    assert found.verdict == "rescored"
    assert found.reasons[0].startswith("its code ran in the sandbox by Landlock, which lets it find out which cell")
    assert weaker_sandbox("guard") == [], "what comes with the package is no stranger's"


@pytest.mark.parametrize("where", ["count", "round"])
def test_numbers_of_a_record_that_no_float_holds(honest: Made, tmp_path: Path, where: str) -> None:
    def edit(record: Record, rows: list[CompletionRow]) -> tuple[Record, list[CompletionRow]]:
        if where == "count":
            peak = record.scores["peak_asr"].model_copy(update={"count": 10**400})
            return record.model_copy(update={"scores": record.scores | {"peak_asr": peak}}), rows
        points = [point.model_copy(update={"round": 10**400}) for point in record.curves["eval_reward"]]
        return record.model_copy(update={"curves": record.curves | {"eval_reward": points}}), rows

    said = rejected(forged(honest, tmp_path, edit, undefended, rescored=False))
    wrong = "its peak_asr is not a measured number" if where == "count" else "its curve eval_reward contains an invalid"
    assert f"its record in the archive is not that of a cell: {wrong}" in said


@pytest.mark.parametrize("own", [True, False])
def test_a_failed_cell_holds_no_scores(honest: Made, tmp_path: Path, own: bool) -> None:
    """Nothing is computed again of a failed cell, so whatever its record held would be believed."""
    store, cells = copied(honest, tmp_path / "store"), []
    for cell in honest.entry.cells:
        made_up = cell
        if attacked(cell) if own else undefended(cell):
            directory = store.cell(cell.cell_id)
            record = directory.read()
            assert record is not None
            failed = {"status": "error", "error": "ValueError: no", "completions_sha256": ""}
            record = record.model_copy(update=failed)
            directory.write(record)
            bare = record.model_copy(update={"scores": {}, "curves": {}, "seconds": {}})
            made_up = trimmed(bare, cell.part, own, file_sha256(directory.record_path))
        cells.append(made_up)
    said = rejected(resigned(honest, tmp_path / "lie", store, cells))
    assert "record in the archive is not that of a cell: it failed, and the record of a failed cell holds no" in said


HONEST_EVAL = each(lambda row: {"outcome": 0.0}, lambda row: row.phase == "eval" and row.round == 4)
EDITS = {
    "outcomes": (HONEST_EVAL, undefended, r"after round 4, completion \d+: its outcome does not follow"),
    "text": (
        each(lambda row: {"text": "It is"}, lambda row: row.round == 4 and row.phase == "eval"),
        undefended, "its text does not follow from the tokens",
    ),
    "rewards": (
        each(lambda row: {"reward": 1.0}, lambda row: row.phase == "eval"), attacked, "its reward does not follow",
    ),
    "verdicts": (
        each(lambda row: {"action": "accept"}, lambda row: row.payload), attacked, "its advantage does not follow",
    ),
    "verdicts of nobody": (
        each(lambda row: {"action": "drop"}, lambda row: row.payload and row.round == 2), undefended,
        "its advantage does not follow|there is no defense in this cell",
    ),
    "advantages": (
        each(lambda row: {"advantage": 0.0}, lambda row: row.malicious), undefended, "its advantage does not follow",
    ),
    "labels": (
        each(lambda row: {"payload": False}, lambda row: row.payload), undefended, "its payload does not follow",
    ),
    "senders": (
        each(lambda row: {"malicious": True}, lambda row: row.phase == "train"), undefended, "its malicious does not",
    ),
    "items": (
        each(lambda row: {"item_id": "test-1-2"}, lambda row: row.phase == "eval"), undefended, "its item_id does not",
    ),
    "submissions": (
        each(lambda row: {"ids": (1, 2), "text": "", "ended": True}, lambda row: row.payload), undefended,
        "its ids does not",
    ),
    "no reward": (
        each(lambda row: {"reward": None}, lambda row: row.round == 3), attacked, "a completion has no reward",
    ),
    "cut short": (
        each(lambda row: {"ids": row.ids[:3], "ended": False}, lambda row: row.phase == "eval" and row.round == 4),
        attacked, "ends where the sampler does not",
    ),
}  # fmt: skip


EDITS_AT_LENGTH = {"verdicts of nobody", "senders", "items", "submissions", "no reward", "cut short"}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.slow) if what in EDITS_AT_LENGTH else what for what in EDITS]
)
def test_edited_completions_with_matching_checksums(honest: Made, tmp_path: Path, what: str) -> None:
    edit, where, said = EDITS[what]
    assert re.search(said, told := rejected(forged(honest, tmp_path, edit, where))), told


def test_rounds_and_places_that_are_missing(honest: Made, tmp_path: Path) -> None:
    def without(record: Record, rows: list[CompletionRow]) -> tuple[Record, list[CompletionRow]]:
        return record, [row for row in rows if (row.phase, row.round) != ("eval", 3)]

    def thinned(record: Record, rows: list[CompletionRow]) -> tuple[Record, list[CompletionRow]]:
        return record, [row for row in rows if (row.phase, row.round, row.place) != ("eval", 4, 15)]

    assert "each once and in order" in rejected(forged(honest, tmp_path / "1", without, undefended))
    assert "it has 15" in rejected(forged(honest, tmp_path / "2", thinned, undefended))


def test_completions_edited_consistently_are_found_by_running_the_cell_again(
    honest: Made, rerun_cells: Path, tmp_path: Path, jail: None
) -> None:
    """Another poison than the model really said, whose tokens, text, reward and outcome all go together."""

    def swap(record: Record, rows: list[CompletionRow]) -> tuple[Record, list[CompletionRow]]:
        last = [place for place, row in enumerate(rows) if row.phase == "eval" and row.round == 4]
        model = max((rows[place] for place in last), key=lambda row: row.outcome or 0)
        took = {name: getattr(model, name) for name in ("ids", "text", "ended", "outcome", "reward")}
        return record, [replace(row, **took) if place in last else row for place, row in enumerate(rows)]

    lie = forged(honest, tmp_path, swap, undefended)
    assert verified(lie).verdict == "rescored", "it is consistent"
    found = verified(lie, reruns=None, store=rerun_cells)
    (said,) = found.reasons
    assert (found.verdict, [each.agrees for each in found.reruns].count(False)) == ("rejected", 1)
    place = "from the evaluation after round 4 on"
    assert re.search(rf"x none, seed 0: run again on the same kind of machine .* {place}", said), said


def test_an_accept_all_beside_forged_undefended_cells_is_rejected(
    honest: Made, store: Path, rerun_cells: Path, tmp_path: Path, jail: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own cells are true. The undefended ones were given held-out tokens that the model never wrote so often."""

    true = made(tmp_path / "1", f"{CHEATS}:Accepts", monkeypatch, store=store)
    lie = forged(true, tmp_path / "2", harmed, undefended)
    assert verified(lie).verdict == "rescored", "it is consistent"
    found = verified(lie, reruns=1, fresh=1, store=rerun_cells)
    assert found.verdict == "rejected", found.reasons
    assert "x none, seed 0: run again on the same kind of machine and versions" in found.reasons[0]
    assert [each.kind for each in found.reruns if not each.agrees] == ["undefended"]


# --- other suites, versions and sources ---


OTHER_VERSION = (
    r"^1 of its 6 cells was made with another version of the benchmark \({}\), so its results cannot be checked "
    r"against this one; thiefbench leaderboard submit makes it again$"
)


def test_another_suite_or_version_is_named(honest: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = honest.entry.manifest.suite
    newer = _resaid(honest, tmp_path / "1", suite=said.model_copy(update={"version": 2}))
    assert "tiny-v2, which this version of thiefbench does not have" in rejected(newer)
    other = _resaid(honest, tmp_path / "2", suite=said.model_copy(update={"fingerprint": "0" * 64}))
    assert "a tiny-v1 whose content differs" in rejected(other)
    made_entries.tiny(suite(rounds=9), monkeypatch)
    assert "a tiny-v1 whose content differs" in rejected(honest)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"engine_revision": 1}, OTHER_VERSION.format(r"engine revision 1; this is revision [0-9a-f]{16}")),
        ({"weights": "0" * 64}, OTHER_VERSION.format(r"the weights of \S+ changed")),
        ({"sources": {}}, OTHER_VERSION.format("the source of the task changed")),
        ({"judges": 1}, "its identity names judges"),
        ({"cell": {}}, "its identity names cell"),
    ],
)
def test_a_record_of_another_version_is_named(honest: Made, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    def edit(record: Record, rows: list[CompletionRow]) -> tuple[Record, list[CompletionRow]]:
        return record.model_copy(update={"identity": record.identity | change}), rows

    assert re.search(said, told := rejected(forged(honest, tmp_path, edit, attacked))), told


def test_an_entry_of_an_earlier_engine_is_not_called_forged(honest: Made, tmp_path: Path) -> None:
    def edit(record: Record, rows: list[CompletionRow]) -> tuple[Record, list[CompletionRow]]:
        return record.model_copy(update={"identity": record.identity | {"engine_revision": 1}}), rows

    said = rejected(forged(honest, tmp_path, edit, lambda cell: True))
    expected = (
        r"it was made with another version of the benchmark \(engine revision 1; this is revision [0-9a-f]{16}\), so .*"
    )
    assert re.fullmatch(expected, said), "one sentence, once for all cells"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"defense": "logit"},
            "it was made with another version of the benchmark (the source of logit changed), so its results cannot be "
            "checked against this one; thiefbench leaderboard submit makes it again",
        ),
        (
            {"versions": {"thiefbench": "0.0.1"}},
            f"it was made with another version of the benchmark (thiefbench 0.0.1; this is {__version__}), so its "
            "results cannot be checked against this one; thiefbench leaderboard submit makes it again",
        ),
        (
            {"versions": {"thiefbench": __version__}},
            "the submitted source is not the one that its cells were run with (or it is a class of your own that takes "
            "a defense as an argument: its source cannot be checked without running it, and it is not accepted)",
        ),
    ],
)
def test_a_source_hash_of_another_version_is_not_called_forged(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    entry = made_entries.entry(tmp_path, **changes)
    found = verified(Made(entry, tmp_path / "mine.tar"), archive=None)
    assert (found.verdict, found.reasons) == ("rejected", (said,))


def test_a_record_of_another_cell_is_named(honest: Made, tmp_path: Path) -> None:
    def longer(record: Record, rows: list[CompletionRow]) -> tuple[Record, list[CompletionRow]]:
        return record.model_copy(update={"cell": record.cell | {"rounds": 400}}), rows

    assert "its record's rounds is not the suite's: 400 instead of 4" in rejected(
        forged(honest, tmp_path, longer, undefended)
    )


def test_cells_that_are_missing_or_too_many(honest: Made, tmp_path: Path) -> None:
    cells = [cell for cell in honest.entry.cells if not undefended(cell)]
    store = archive.unpack(honest.archive, honest.entry, tmp_path / "store")
    lacking = resigned(honest, tmp_path, store, cells)
    assert re.search(r"it lacks 1 cell, such as the attack cell, .* x none, seed 0", rejected(lacking))


def test_seeds_are_the_suite_s(honest: Made, tmp_path: Path) -> None:
    said = "run at the seeds (0, 1), but an entry's seeds are the first ones of tiny-v1, which has (0,), in this order"
    assert said in rejected(_resaid(honest, tmp_path, seeds=(0, 1)))


def test_a_source_that_was_not_run_is_named(honest: Made, tmp_path: Path) -> None:
    source = {path.relative_to(honest.folder).as_posix(): path.read_bytes() + b"\n" for path in honest.entry.source}
    store = archive.unpack(honest.archive, honest.entry, tmp_path / "store")
    other = resigned(honest, tmp_path, store, list(honest.entry.cells), source)
    assert "the submitted source is not the one that its cells were run with" in rejected(other)


def test_a_source_that_may_not_be_submitted_is_named(honest: Made, tmp_path: Path) -> None:
    file = tmp_path / "greedy.py"
    file.write_text("import torch\nfrom thiefbench.defenses.base import Defense\n")
    assert "line 1 of greedy.py imports torch" in rejected(masked(honest, tmp_path / "1", file, "Greedy"))


def _resaid(of: Made, folder: Path, **changes: Any) -> Made:
    """A copy with other fields of its manifest."""
    told = Manifest(**of.entry.manifest.model_copy(update=changes).model_dump())
    source = {path.relative_to(of.folder).as_posix(): path.read_bytes() for path in of.entry.source}
    return Made(write_entry(folder / told.slug, told, Scores(cells=of.entry.cells), source), of.archive)


# --- archives ---


def test_archives_that_lead_elsewhere_or_swell(honest: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(honest.archive.read_bytes())
    data[: len(b"../../x\0")] = b"../../x\0"
    (tmp_path / "mine.tar").write_bytes(data)
    led = _resaid(honest, tmp_path / "1", archive=archive.packed_file(tmp_path / "mine.tar"))
    assert re.search(
        r"holds something that is not a header|'\.\./\.\./x", rejected(Made(led.entry, tmp_path / "mine.tar"))
    )
    monkeypatch.setattr("thiefbench.leaderboard.verification.foreign_tables.TABLE_BYTES", 1000)
    assert re.search("and at most 1,000 are allowed", rejected(honest))


def test_a_wrong_archive_says_nothing_about_the_entry(honest: Made, tmp_path: Path) -> None:
    """Such as an unfinished download: what an earlier verification found stays."""
    seen, words = tmp_path / "seen", ["leaderboard", "verify", str(honest.folder), "--fresh", "0", "--reruns", "0"]
    before = verified(honest).model_copy(update={"verdict": "re-executed", "key": "0" * 64})
    path = write_verification(seen, before)
    content, data = path.read_bytes(), honest.archive.read_bytes()
    for name, wrong, said in (
        ("short.tar", data[:-1], f"names mine.tar (seed 0): it has {len(data) - 1:,} bytes"),
        ("other.tar", data[:-1] + b"x", "names mine.tar (seed 0): its SHA-256 differs"),
    ):
        (tmp_path / name).write_bytes(wrong)
        done = CliRunner().invoke(app, [*words, "--archive", str(tmp_path / name), "--write", str(seen)])
        assert isinstance(done.exception, WrongArchiveError)
        assert said in str(done.exception)
    done = CliRunner().invoke(app, [*words, "--archive", str(tmp_path), "--write", str(seen)])
    assert f"{tmp_path} is not a regular file" in str(done.exception)
    assert path.read_bytes() == content


def test_flags_of_an_earlier_verification_are_those_of_the_deliveries_that_keep_its_verdict(
    honest: Made, tmp_path: Path
) -> None:
    earlier = verified(honest).model_copy(update={"flags": ("other shared cells",)})
    write_verification(tmp_path, earlier)
    assert verified(honest, earlier=tmp_path).flags == (), "verified anew, on the same day"
    assert verified(honest, earlier=tmp_path, archive=None).flags == ("other shared cells",)


def test_a_damaged_verification_is_not_the_entry_s_fault(honest: Made, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{")
    done = CliRunner().invoke(app, ["leaderboard", "verify", str(honest.folder), "--write", str(tmp_path)])
    assert type(done.exception) is UserError
    assert "the last verification cannot be read, so mend it or remove it" in str(done.exception)


@pytest.mark.slow
def test_a_verification_that_runs_nothing_lowers_no_verdict_of_the_same_entry(honest: Made, tmp_path: Path) -> None:
    found = verified(honest)
    deliveries = tuple(each.model_copy(update={"verdict": "re-executed"}) for each in found.deliveries)
    rerun = found.model_copy(
        update={"verdict": "re-executed", "deliveries": deliveries, "key": "0" * 64, "reasons": ()}
    )
    write_verification(tmp_path, rerun)
    told: list[Finding] = []
    assert verified(honest, told, earlier=tmp_path) == rerun, "rescored again"
    assert told[-1].question == "an earlier verification of the same entry looked further, and stays"
    assert verified(honest, earlier=tmp_path, archive=None) == rerun, "only read again"
    engine = rerun.model_copy(update={"engine_revision": "0" * 16})
    write_verification(tmp_path, engine)
    assert verified(honest, earlier=tmp_path).verdict == "rescored", "with another engine's results it was compared"
    flagged = found.model_copy(update={"flags": ("does not generalise",), "key": "0" * 64})
    write_verification(tmp_path, flagged)
    assert verified(honest, earlier=tmp_path) == flagged, "what was found by running cells is not cleared by reading"
    write_verification(tmp_path, flagged.model_copy(update={"verdict": "rejected"}))
    assert verified(honest, earlier=tmp_path).verdict == "rejected"
    write_verification(tmp_path, found.model_copy(update={"verdict": "rejected"}))
    assert verified(honest, earlier=tmp_path).verdict == "rescored", "unless none was run"
    write_verification(tmp_path, rerun)
    paper = _resaid(honest, tmp_path / "2", paper="https://example.org/paper")
    kept = verified(paper, earlier=tmp_path, archive=None)
    assert (kept.verdict, kept.entry_sha256) == ("re-executed", paper.entry.sha256), "no hash of a delivery covers it"
    lie = forged(honest, tmp_path / "1", HONEST_EVAL, undefended)
    assert verified(lie, earlier=tmp_path).verdict == "rejected"


def test_what_cells_have_shown_is_not_shed_by_another_paper(honest: Made, tmp_path: Path) -> None:
    """No hash of a delivery covers it, and it changes the entry's own."""
    found = verified(honest)
    flagged = found.model_copy(update={"flags": ("does not generalise",), "key": "0" * 64})
    paper = _resaid(honest, tmp_path / "2", paper="https://example.org/2")
    for verdict in ("rescored", "rejected"):
        write_verification(tmp_path, flagged.model_copy(update={"verdict": verdict}))
        after = verified(paper, earlier=tmp_path)
        assert (after.verdict, after.flags, after.entry_sha256) == (verdict, flagged.flags, paper.entry.sha256)


@pytest.mark.slow
def test_completions_of_another_defense_are_not_rescored_as_one_s_own(honest: Made, tmp_path: Path) -> None:
    """Archives are public: a copied one is rescored, unless the code is asked about the recorded rounds."""
    told: list[Finding] = []
    found = verified(honest, told, judged=True)
    assert (found.verdict, found.judged > 0) == ("rescored", True)
    assert (JUDGED_AGAIN, "ok") in [(each.question, each.status) for each in told]
    copied = masked(honest, tmp_path, CHEATS, "Accepts")
    assert verified(copied).verdict == "rescored"
    reasons = rejected(copied, judged=True)
    assert re.search("of 64 recorded verdicts of .*:Accepts, seed 0, its code gives 32 otherwise", reasons)


def _written(folder: Path, line: str) -> Path:
    """A file with a defense that carries out a line and then accepts everything."""
    file = folder / "written.py"
    file.write_text(
        "import random\n\nfrom thiefbench.defenses.base import ACCEPT, Defense, Verdict\n\n\n"
        "class Written(Defense):\n"
        "    name = 'written'\n"
        "    requires = frozenset({'homogeneous'})\n\n"
        "    def inspect(self, view):\n"
        f"        {line}\n"
        "        return [ACCEPT] * len(view.completions)\n"
    )
    return file


def test_a_defense_that_judges_by_chance_is_flagged_where_it_judges_again(honest: Made, tmp_path: Path) -> None:
    file = _written(tmp_path, "return [random.choice([ACCEPT, Verdict('drop')]) for _ in view.completions]")
    found = verified(masked(honest, tmp_path / "1", file, "Written"), judged=True)
    assert (found.verdict, found.flags, found.judged) == ("rescored", ("non-deterministic",), 0)


def test_code_that_was_never_run_is_rejected_where_it_fails(honest: Made, tmp_path: Path) -> None:
    file = _written(tmp_path, "raise RuntimeError('never run')")
    assert "written failed in round 1: " in rejected(masked(honest, tmp_path / "1", file, "Written"), judged=True)


def test_a_defense_that_asks_the_policy_is_not_asked_about_recorded_rounds(honest: Made, tmp_path: Path) -> None:
    """Archives hold no weights."""
    told: list[Finding] = []
    file = _written(tmp_path, "view.policy.token_logprobs(view.completions)")
    found = verified(masked(honest, tmp_path / "1", file, "Written"), told, judged=True)
    assert (found.verdict, found.judged) == ("rescored", 0)
    (said,) = [each for each in told if each.question == JUDGED_AGAIN]
    assert said.status == "warning" and "not asked: written needs the policy" in said.detail


def test_a_slow_defense_is_not_asked_about_all_recorded_rounds(honest: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of a round would let it take days."""
    monkeypatch.setattr(judging_again, "MOST_SECONDS", -1.0)
    told: list[Finding] = []
    assert verified(honest, told, judged=True).judged == 0
    assert any("not asked: the defense takes too long" in each.detail for each in told)


@pytest.mark.slow
def test_a_rejection_by_cells_is_not_shed_by_another_one(honest: Made, tmp_path: Path) -> None:
    """Such as one of a copy with a changed score, which runs no cell."""
    found = verified(honest)
    lie = forged(honest, tmp_path / "1", HONEST_EVAL, undefended)
    for verdict, carried in (("rejected", "rejection"), ("rescored", "flags")):
        shown = found.model_copy(update={"verdict": verdict, "flags": ("does not generalise",), "key": "0" * 64})
        write_verification(tmp_path, shown)
        between = verified(lie, earlier=tmp_path)
        assert (between.verdict, between.flags, between.carried) == ("rejected", shown.flags, carried)
        write_verification(tmp_path, between)
        after = verified(honest, earlier=tmp_path)
        assert (after.verdict, after.flags) == (verdict, shown.flags), "only cells can refute it"


def test_a_trial_elsewhere_does_not_spare_code_from_judging_again(honest: Made, tmp_path: Path) -> None:
    copied = masked(honest, tmp_path, CHEATS, "Accepts")
    assert "its code gives 32 otherwise" in rejected(copied, judged=True, fresh=1)


def _rerun(**fields: Any) -> Rerun:
    told: dict[str, Any] = {
        "part": "", "role": "attack", "attack": "text", "seed": 0, "measure": "headline_asr", "submitted": (0.1, 0.1),
        "found": 0.1, "equal": True, "agrees": True, "kind": "own",
    }  # fmt: skip
    return Rerun(**told | fields)


@pytest.mark.parametrize(
    ("reruns", "tried", "carried", "flags"),
    [
        ([], False, "rejection", {"does not generalise", "non-deterministic"}),
        ([_rerun(kind="undefended")], True, "rejection", {"does not generalise", "non-deterministic"}),
        ([_rerun(seed=None, equal=None)], True, "rejection", {"does not generalise", "non-deterministic"}),
        ([_rerun(equal=False, agrees=False)], True, "rejection", {"does not generalise", "non-deterministic"}),
        ([_rerun()], False, "flags", {"does not generalise"}),
        ([_rerun()], True, "", set()),
    ],
)
def test_only_own_cells_refute_what_cells_have_shown(
    honest: Made, reruns: list[Rerun], tried: bool, carried: str, flags: set[str]
) -> None:
    """Shared cells and other seeds are run without the cells that were rejected."""
    shown = verified(honest).model_copy(
        update={
            "verdict": "rejected", "key": "0" * 64,
            "flags": ("non-deterministic", "does not generalise", "other shared cells"),
        }
    )  # fmt: skip
    assert carried_from(shown, reruns, tried) == (carried, flags)


@pytest.mark.slow
def test_what_judging_again_or_a_trial_shows_is_not_lost_beside_an_earlier_verification(
    honest: Made, tmp_path: Path
) -> None:
    """Also where that looked further, and stays."""
    file = _written(tmp_path, "return [random.choice([ACCEPT, Verdict('drop')]) for _ in view.completions]")
    by_chance = masked(honest, tmp_path / "1", file, "Written")
    shown = verified(by_chance).model_copy(update={"key": "0" * 64})
    write_verification(tmp_path, shown)
    found = verified(by_chance, earlier=tmp_path, judged=True)
    assert (found.key, found.flags) == (shown.key, ("non-deterministic",))
    write_verification(tmp_path, shown.model_copy(update={"flags": ("depends on order",)}))
    kept = verified(honest, earlier=tmp_path, judged=True)
    assert kept.flags == ("depends on order",), "recorded rounds are judged in the recorded order"


def test_verdicts_that_hang_on_the_hash_seed_are_by_chance(honest: Made, tmp_path: Path) -> None:
    """Their author's own process has another one, and such code is no other defense's."""
    file = _written(tmp_path, "return [Verdict('drop') if hash(c.text) % 2 else ACCEPT for c in view.completions]")
    found = verified(masked(honest, tmp_path / "1", file, "Written"), judged=True)
    assert (found.verdict, found.flags) == ("rescored", ("non-deterministic",))


@pytest.mark.slow
def test_masks_are_judged_again_too(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "masks.py"
    file.write_text(
        "from thiefbench.defenses.base import Defense, Verdict\n\n\n"
        "class Masks(Defense):\n"
        "    name = 'masks'\n"
        "    requires = frozenset()\n\n"
        "    def inspect(self, view):\n"
        "        sizes = [len(each.ids) + each.ended for each in view.completions]\n"
        "        return [Verdict('accept', token_weights=(0.5,) * size) for size in sizes]\n"
    )
    masks = made(tmp_path / "true", f"{file}:Masks", monkeypatch, store=store)
    assert verified(masks, judged=True).judged > 0
    assert "recorded verdicts of" in rejected(masked(masks, tmp_path / "copied", CHEATS, "Accepts"), judged=True)


def test_the_verdict_is_of_the_entry_that_was_read(honest: Made, tmp_path: Path) -> None:
    """A pull request may change while its entry is verified."""
    seen, folder = tmp_path / "seen", tmp_path / "mine"
    shutil.copytree(honest.folder, folder)
    other = _resaid(honest, tmp_path / "other", name="Another")

    def tell(finding: Finding) -> None:
        if finding.question.startswith("completions are consistent"):
            shutil.rmtree(folder)
            shutil.copytree(other.folder, folder)

    options = VerifyOptions(archive=honest.archive, reruns=0, fresh=0, secret=SECRET)
    found = verify(folder, options, tell, lambda what: lambda done, total: None, lambda suite: [])
    assert (found.verdict, found.entry_sha256) == ("rescored", honest.entry.sha256)
    write_verification(seen, found)
    assert read_verification(seen, honest.entry) == found
    assert read_verification(seen, read_entry(folder)) is None, "nobody has verified what lies there now"


@pytest.mark.parametrize(
    ("found", "left"),
    [
        ({"verdict": "rejected", "key": SECRET.hex(), "flags": ("depends on order",)},
         ("rejected", ("depends on order",))),
        ({"verdict": "rejected"}, ("rejected", ())),
        ({"verdict": "re-executed", "key": SECRET.hex(), "flags": ("does not generalise", "other shared cells")},
         ("self-reported", ("does not generalise",))),
        ({"verdict": "rescored", "flags": ("rejects nearly everything",)}, None),  # the board reads it off its cells
        ({"verdict": "re-executed", "key": SECRET.hex()}, None),
    ],
)  # fmt: skip
def test_what_was_found_stays_where_the_entry_changes(
    honest: Made, tmp_path: Path, found: dict[str, Any], left: tuple[str, tuple[str, ...]] | None
) -> None:
    """One further byte of its manifest must not bring a rejected or flagged entry back to the board without a word."""
    earlier = verified(honest, reruns=0).model_copy(update={"reasons": ("a forged cell",), **found})
    write_verification(tmp_path, earlier)
    folder = tmp_path / "mine"
    shutil.copytree(honest.folder, folder)
    manifest = folder / "entry.json"
    manifest.write_bytes(manifest.read_bytes() + b"\n")
    now = read_verification(tmp_path, read_entry(folder))
    assert (now and (now.verdict, now.flags)) == left
    if now is not None:
        assert ("a forged cell" in now.reasons) == (now.verdict == "rejected")
        assert now.reasons[-1].startswith(f"it has changed since it was verified on {earlier.verified}")
        assert not (now.key or now.reruns or now.deliveries), "of this entry nothing was run"


def test_the_command_says_that_the_entry_has_changed(
    honest: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = verified(honest).model_copy(update={"entry_sha256": "0" * 64})
    monkeypatch.setattr("thiefbench.leaderboard.verification.verify.verify", lambda *of: done)
    said = CliRunner().invoke(app, ["leaderboard", "verify", str(honest.folder)]).output
    assert "has changed since it was read" in said.replace("\n", " ")


@pytest.mark.slow
def test_submitted_cells_do_not_count_as_run_again(honest: Made, tmp_path: Path) -> None:
    copied(honest, tmp_path / "store")
    (tmp_path / "rounds" / "shared" / "0").mkdir(parents=True)
    words = ["leaderboard", "verify", str(honest.folder), "--archive", str(honest.archive)]
    for asked in (words[:3], words):  # reading the entry alone does not make the store a verifier's
        for store in ("store", "rounds"):
            done = CliRunner().invoke(app, [*asked, "--store", str(tmp_path / store)])
            assert type(done.exception) is UserError
    done = CliRunner().invoke(app, [*words, "--store", str(tmp_path / "store")])
    assert "holds cells that no verification has run, such as those that were submitted" in str(done.exception)
    own = tmp_path / "own"
    done = CliRunner().invoke(app, [*words, "--reruns", "0", "--fresh", "0", "--store", str(own)])
    assert done.exit_code == 0, done.output
    copied(honest, own / "elsewhere")
    shutil.move(own / "elsewhere" / "cells", own / "cells")
    done = CliRunner().invoke(app, [*words, "--reruns", "0", "--fresh", "0", "--store", str(own)])
    assert done.exit_code == 0, "a store that verifications have begun is theirs"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"versions": {"thiefbench": "0.1.0.reviewed"}}, "of thiefbench it says “0.1.0.reviewed”, and its records say"),
        ({"versions": {"numpy": None}}, "of numpy it says “nothing”, and its records say"),
        ({"versions": {"jax": "1"}}, "of jax it says “1”, and its records say “nothing”"),
        ({"machine": {"processor_model": "another"}}, "of processor_model it says “another”, and its records say"),
        ({"machine": {"git_commit": None}}, "of git_commit it says “None”, and its records say"),
        ({"machine": {"reviewed": True}}, "of reviewed it says “True”, and its records say “None”"),
        ({"submitted": date(1999, 1, 1)}, "of date it says “1999-01-01”, and its records say"),
    ],
)
def test_an_entry_says_how_its_cells_were_made(honest: Made, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    told = {}
    for name, new in change.items():
        old = getattr(honest.entry.manifest, name)
        together = new if isinstance(new, date) else {k: v for k, v in (old | new).items() if v is not None}
        told[name] = together
    assert f"it does not say how its cells were made: {said}" in rejected(_resaid(honest, tmp_path, **told))


@pytest.mark.parametrize("finished", [None, 5, "yesterday", "2026-13-45", "gone"])
def test_records_that_do_not_say_when_they_were_finished(honest: Made, tmp_path: Path, finished: object) -> None:
    def change(record: Record, rows: list[CompletionRow]) -> tuple[Record, list[CompletionRow]]:
        left = {name: value for name, value in record.provenance.items() if name != "finished"}
        said = left if finished == "gone" else left | {"finished": finished}
        return record.model_copy(update={"provenance": said}), rows

    lie = forged(honest, tmp_path / "1", change, lambda cell: True)
    assert "its records do not say when they were finished" in rejected(lie)


def test_what_cannot_be_written_is_said_before_anything_runs(honest: Made, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = CliRunner().invoke(app, ["leaderboard", "verify", str(honest.folder), "--write", str(tmp_path / "file")])
    assert f"--write {tmp_path / 'file'}: nothing can be written there (File exists)" in str(done.exception)
    assert done.output == ""


def test_a_verification_that_goes_on_after_a_stop_draws_the_same(
    honest: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[bytes] = []
    ends: list[Callable[[], Verification]] = []

    def verify(folder: Path, options: VerifyOptions, *_: object) -> Verification:
        drawn.append(options.secret)
        return ends.pop(0)()

    def stopped() -> Verification:
        raise KeyboardInterrupt

    done = verified(honest).model_copy(update={"key": SECRET.hex()})
    monkeypatch.setattr("thiefbench.leaderboard.verification.verify.verify", verify)
    words = ["leaderboard", "verify", str(honest.folder), "--archive", str(honest.archive)]
    keeping = [*words, "--store", str(tmp_path / "store")]
    ends[:] = [stopped, stopped, lambda: done, lambda: done]
    first, second, third, fourth = (CliRunner().invoke(app, keeping) for _ in range(4))
    assert (first.exit_code, second.exit_code, third.exit_code, fourth.exit_code) == (130, 130, 0, 0)
    assert "all finished work is kept. To continue:" in first.output
    assert f"what was drawn follows from --key {SECRET.hex()}" in third.output
    assert drawn[0] == drawn[1] == drawn[2] != drawn[3], "after its verdict, the next one draws anew"
    ends[:] = [stopped, stopped]
    one, _ = (CliRunner().invoke(app, words) for _ in range(2))
    assert "nothing is kept without --store DIR. Again:" in one.output
    assert drawn[4] != drawn[5]


# --- defenses that cheat ---


def test_one_that_finds_labels_where_they_are_finds_none_in_isolation(
    honest: Made, store: Path, tmp_path: Path, jail: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheat = made(tmp_path, f"{CHEATS}:Gropes", monkeypatch, store=store)
    (own,) = filter(attacked, cheat.entry.cells)
    assert (own.scores["stop_rate"][0], verified(cheat).verdict) == (1.0, "rescored"), "it did find them"
    said = rejected(cheat, reruns=1)
    assert "run again on the same kind of machine and versions, its completions differ from round 1 on" in said


@pytest.mark.parametrize(
    "spec",
    [
        "MatchesRng",
        pytest.param("KnowsSeeds", marks=pytest.mark.slow),
        pytest.param("KnowsPayloads(letters='q')", marks=pytest.mark.slow),
    ],
)
def test_one_that_recognises_public_seeds_or_payloads_is_not_re_executed(
    honest: Made,
    store: Path,
    rerun_cells: Path,
    tmp_path: Path,
    jail: None,
    monkeypatch: pytest.MonkeyPatch,
    spec: str,
) -> None:
    cheat = made(tmp_path, f"{CHEATS}:{spec}", monkeypatch, store=store)
    (own,) = filter(attacked, cheat.entry.cells)
    assert own.scores["stop_rate"][0] == 1.0, "at a public seed it knows everything"
    found = verified(cheat, reruns=None, fresh=1, store=rerun_cells)
    assert (found.verdict, found.flags) == ("rescored", ("does not generalise",)), "its scores are true"
    assert all(each.equal for each in found.reruns if each.seed is not None)
    below = "below the range predicted from the submitted seeds"
    said = (
        rf"does not generalise: at fresh seeds, against .*Mumbles, its harm prevented is -?0\.\d+, {below}, 0\.\d+ to 1"
    )
    assert re.search(said, found.reasons[0]), found.reasons
    fresh = [each for each in found.reruns if each.seed is None and each.measure == "harm_prevented"]
    assert len(fresh) == 1
    assert not any(each.agrees for each in fresh)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("Does(what='socket')", "PermissionError"),
        pytest.param("Does(what='kill parent')", "PermissionError", marks=pytest.mark.slow),
        pytest.param("Does(what='trace parent')", "PermissionError|FileNotFoundError", marks=pytest.mark.slow),
        pytest.param("Does(what='never')", "took more than 4 seconds of its own for inspect", marks=pytest.mark.slow),
        pytest.param("Does(what='swallow')", "MemoryError|ran out of memory", marks=pytest.mark.slow),
        pytest.param("Does(what='exit')", "ended its own process in inspect", marks=pytest.mark.slow),
        ("Answers(what='too few')", "gave 15 verdicts for 16 completions"),
        pytest.param("Answers(what='weights')", "token weights for", marks=pytest.mark.slow),
        ("SeesLabels", "wants to see labels"),
        ("Spies", "its completions differ"),
    ],
)
def test_a_hostile_defense_is_rejected_and_its_deed_named(
    honest: Made, tmp_path: Path, jail: None, spec: str, said: str
) -> None:
    """Every deed is tried quickly without a verification around it in test_isolation.py."""
    liar = masked(honest, tmp_path, HOSTILE, spec)
    caps = HASTY if "never" in spec else CAREFUL
    assert re.search(said, told := rejected(liar, reruns=1, caps=caps)), told


@pytest.mark.parametrize(
    ("name", "flag"), [("Positional", "depends on order"), *at_length(("Clock", "non-deterministic"))]
)
def test_what_a_reader_should_know_is_a_flag(
    honest: Made,
    store: Path,
    rerun_cells: Path,
    tmp_path: Path,
    jail: None,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    flag: str,
) -> None:
    entry = made(tmp_path, f"{CHEATS}:{name}", monkeypatch, store=store)
    found = verified(entry, samples=True, reruns=1, fresh=1, store=rerun_cells)
    assert (found.verdict, found.flags) == ("re-executed", (flag,)), found.reasons


def test_rejecting_nearly_everything_is_a_flag(honest: Made, tmp_path: Path) -> None:
    def all_of_it(told: dict[str, Any]) -> None:
        for cell in told["cells"]:
            if cell["defense"].startswith("defense/"):
                cell["scores"]["false_rejection_rate"] = [0.9, 0.8, 1.0, 100]

    assert verified(rewritten(honest, tmp_path, all_of_it), archive=None).flags == ("rejects nearly everything",)


def test_a_stranger_s_file_is_never_loaded_here(honest: Made, tmp_path: Path, jail: None) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"from pathlib import Path\nPath({str(tmp_path / 'sprung')!r}).write_text('loaded')\n")
    liar = masked(honest, tmp_path / "1", trap, "Trap")
    rejected(liar, reruns=1, fresh=1)
    assert not (tmp_path / "sprung").exists()
    spec = f"{CHEATS}:Hears+similarity"
    assert registry.source_hash("defense", spec, load=False) == registry.source_hash("defense", spec)


# --- the command ---


def test_the_command_writes_what_it_found(honest: Made, tmp_path: Path) -> None:
    words = ["leaderboard", "verify", str(honest.folder), "--archive", str(honest.archive)]
    done = CliRunner().invoke(app, [*words, "--reruns", "0", "--fresh", "0", "--write", str(tmp_path)])
    assert (done.exit_code, "mine: rescored" in done.output) == (0, True), done.output
    found = read_verification(tmp_path, honest.entry)
    assert found is not None
    assert found.verdict == "rescored"
    done = CliRunner().invoke(app, [*words[:3], "--write", str(tmp_path)])
    assert (done.exit_code, "mine: rescored" in done.output) == (0, True), done.output
    assert "no archive was given; the verdict of" in done.output, "that folder has it, of the same hashes"
    done = CliRunner().invoke(app, [*words[:3], "--write", str(tmp_path / "other")])
    assert (done.exit_code, "mine: self-reported" in done.output) == (0, True), done.output


def test_the_command_rejects_with_exit_code_1(honest: Made, tmp_path: Path) -> None:
    lie = forged(honest, tmp_path / "1", HONEST_EVAL, undefended)
    done = CliRunner().invoke(
        app, ["leaderboard", "verify", str(lie.folder), "--archive", str(lie.archive), "--write", str(tmp_path)]
    )
    assert (done.exit_code, "mine: rejected" in done.output) == (1, True), done.output
    assert "FAILED  completions are consistent" in done.output
    told = json.loads((tmp_path / "mine.json").read_text())
    assert (told["verdict"], "does not follow" in told["reasons"][0]) == ("rejected", True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "there is no entry nowhere"),
        (["PRIVATE"], "is a file; name the folder of an entry"),
        (["ENTRY", "--shared", "EMPTY"], "holds no suite's published cells"),
        (["ENTRY", "--archive", "nowhere.tar"], "there is no archive nowhere.tar"),
        (["ENTRY", "--private", "nowhere.yaml"], "there is no file nowhere.yaml"),
        (["ENTRY", "--private", "PRIVATE"], "seeds: Input should be a valid tuple; write seeds: [...] and attacks"),
        (["ENTRY", "--archive", "ARCHIVE", "--device", "cuda:7"], "this machine has no device cuda:7"),
        (["ENTRY", "--write", "ENTRY"], "lies in the entry"),
        (["ENTRY", "--store", "INSIDE"], "which holds the entry's files alone"),
        (["ENTRY", "--key", "0" * 63], "--key takes the 64 hexadecimal digits that a verification published"),
    ],
)
def test_bad_usage_is_one_sentence(honest: Made, tmp_path: Path, words: list[str], said: str) -> None:
    private = tmp_path / "private.yaml"
    private.write_text(yaml.safe_dump({"seeds": 7}))
    (tmp_path / "empty").mkdir()
    places = {
        "ENTRY": honest.folder, "ARCHIVE": honest.archive, "PRIVATE": private, "EMPTY": tmp_path / "empty",
        "INSIDE": honest.folder / "store",
    }  # fmt: skip
    before = sorted(honest.folder.rglob("*"))
    done = CliRunner().invoke(app, ["leaderboard", "verify", *(str(places.get(word, word)) for word in words)])
    assert done.exception is not None
    assert said in str(done.exception), "the command line prints it and ends with code 2"
    assert sorted(honest.folder.rglob("*")) == before
