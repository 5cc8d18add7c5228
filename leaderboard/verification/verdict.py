"""The outcome of `thiefbench leaderboard verify`: how far an entry's row on the leaderboard can be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from thiefbench.engine_revision import engine_revision
from thiefbench.errors import UserError
from thiefbench.leaderboard.entry import EntryError, Listed
from thiefbench.leaderboard.manifest import Line, MalformedError, Sha256, strictly_parsed
from thiefbench.regular_files import NotRegularError, read_regular
from thiefbench.suite.store.records import write_atomically

VERIFICATION_SCHEMA: Final = 1
VERIFICATION_BYTES: Final = 1 << 20
"""Of the file; those of standard-v1 have some ten thousand."""
VERSIONS: Final = ("thiefbench", "torch", "transformers", "numpy", "python")
"""Whose versions a verification names."""

Verdict = Literal["self-reported", "rescored", "re-executed", "rejected"]
"""In order of growing trust: only the entry was read; its raw completions give its scores; whole comparisons were run
again with the isolated defense and agree, and it did as well at a secret seed. Rejected: a check failed."""

ORDER: Final[tuple[Verdict, ...]] = ("rejected", "self-reported", "rescored", "re-executed")
"""Verdicts, the lowest first."""

EARLIER_STAYS: Final = "an earlier verification of the same entry looked further, and stays"
"""What a verification says that leaves an earlier one in place."""

Kind = Literal["own", "undefended", "placebo", "control", "oracle"]
"""A cell's kind in its comparison: one with the submitted defense, or one against which those are measured."""

Flag = Literal[
    "depends on order", "non-deterministic", "rejects nearly everything", "does not generalise", "other shared cells"
]
"""What a reader should know about a row, whatever its place."""

FLAGS: Final[tuple[Flag, ...]] = get_args(Flag)


Carried = Literal["", "flags", "rejection"]
"""What an earlier verification has shown by running cells or asking the defense, and what holds against an entry until
its own cells run again."""

BY_ASKING: Final[tuple[Flag, ...]] = ("depends on order", "non-deterministic")
BY_TRYING: Final[tuple[Flag, ...]] = ("does not generalise",)
"""Flags that only asking the defense can show, and those that only trials at fresh seeds can; an entry's numbers show
the others each time."""


class Rerun(BaseModel):
    """One cell that was run again.

    Attributes:
        part, role, attack, seed: the cell; a fresh seed is hidden as None.
        measure: "harm_prevented" of a defended cell under attack, and at a fresh seed what the defense costs there,
            "utility_under_attack" and "honest_acceptance_rate"; "utility" of one without; and of a shared cell
            "headline_asr", which harm is computed from.
        submitted: the entry's value of the same cell, twice; where equal bits are not expected and for a fresh seed,
            low and high of the range predicted from the submitted seeds.
        found: the new value.
        equal: whether the completions are exactly the same; None for a fresh seed.
        agrees: whether the new result is consistent with the entry.
        kind: what the cell is in its comparison; None in verifications of an earlier version.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    part: str
    role: str
    attack: str
    seed: int | None
    measure: str
    submitted: tuple[float | None, float | None]
    found: float | None
    equal: bool | None
    agrees: bool
    kind: Kind | None = None


class DeliveryVerdict(BaseModel):
    """How far one delivery of an entry was verified.

    Attributes:
        seeds: that it brought.
        sha256: one of `thiefbench.leaderboard.deliveries.delivery_sha256s`; the verdict is of no other content.
        verdict: see `Verdict`.
        verified: the date.
        code_seen: whether the defense's code gave its verdicts again, for the recorded rounds of all its own cells or
            in one that was run again; None in verifications of an earlier version.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    seeds: tuple[int, ...]
    sha256: Sha256
    verdict: Verdict
    verified: date
    code_seen: bool | None = None


class Verification(BaseModel):
    """The outcome of one verification.

    Attributes:
        schema_version: of this format.
        slug, entry_sha256: the entry, by its folder's name and the hash of its manifest; it does not apply to an entry
            that was changed later.
        verdict: see `Verdict`; of an entry that was brought in several deliveries, the lowest of theirs.
        deliveries: every delivery's verdict, which may be that of an earlier verification; the fields below are of this
            one. Empty for attacks, and in verifications of an earlier version.
        reasons: why the verdict is not higher, one sentence each; of a rejected entry, the checks that failed.
        flags: see `Flag`.
        reruns: cells that were run again, without those of held-out attacks and seeds.
        comparisons: how many comparisons were run again, and how many the entry has.
        forgery_found: the probability that these include a forged cell, if one attack's cells are forged at all seeds.
        fresh_trials, inconclusive: trials at seeds that the submitter could not know, and how many of these are
            inconclusive because the undefended attack did not work.
        key: the secret of this verification, in hexadecimal, published only afterwards; with it, `verify --key` draws
            the same comparisons, attacks and seeds.
        held_out: how many cells were run against attacks or at seeds that only maintainers know.
        judged: how many recorded completions the defense judged again as recorded.
        carried: what it has from an earlier verification, where it did not run the defense's cells again.
        verified: the date.
        engine_revision, versions, machine: of the verification.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    schema_version: Literal[1] = VERIFICATION_SCHEMA
    slug: Line
    entry_sha256: Sha256
    verdict: Verdict
    deliveries: tuple[DeliveryVerdict, ...] = ()
    reasons: tuple[Annotated[str, Field(max_length=1000)], ...] = ()
    flags: tuple[Flag, ...] = ()
    reruns: tuple[Rerun, ...] = ()
    comparisons: tuple[int, int] | None = None
    forgery_found: Annotated[float, Field(ge=0, le=1)] | None = None
    fresh_trials: int = 0
    inconclusive: int = 0
    key: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    held_out: int = 0
    judged: Annotated[int, Field(ge=0)] = 0
    carried: Carried = ""
    verified: date
    engine_revision: int | str
    versions: dict[str, str] = {}
    machine: dict[str, str | int | bool | None] = {}


KINDS: Final[dict[Kind, str]] = {
    "own": "own", "undefended": "undefended", "placebo": "placebo", "control": "control", "oracle": "oracle's",
}  # fmt: skip
"""What kinds of cells are called, before the word "cell"."""


def own_seeds(reruns: Sequence[Rerun], equal: bool = False) -> set[int]:
    """The submitted seeds at which cells with the submitted defense or attack were run again and agree.

    Args:
        reruns: of a verification.
        equal: whether their completions must be the same; results may be close for another reason.
    """
    own = [each for each in reruns if each.kind == "own" and each.seed is not None]
    return {each.seed for each in own if each.seed is not None and (each.equal if equal else each.agrees)}


def kinds_of(reruns: Sequence[Rerun]) -> str:
    """The numbers of cells that were run again, by kind: "2 own, 1 undefended cells"."""
    counts = Counter(each.kind for each in reruns if each.kind is not None)
    return ", ".join(f"{counts[kind]} {name}" for kind, name in KINDS.items() if counts[kind]) + " cells"


def verification_path(folder: Path, slug: str) -> Path:
    """The path of an entry's verification in a folder of verifications, which only maintainers write."""
    return folder / f"{slug}.json"


def check_writable(folder: Path) -> None:
    """Create a folder of verifications, and see that a file can be written there.

    Raises:
        UserError: it cannot be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"--write {folder}: nothing can be written there ({error.strerror})") from error


def write_verification(folder: Path, verification: Verification) -> Path:
    """Write a verification into a folder of verifications."""
    path = verification_path(folder, verification.slug)
    write_atomically(path, (verification.model_dump_json(indent=1) + "\n").encode())
    return path


def read_verification(folder: Path, entry: Listed) -> Verification | None:
    """The verification of an entry; None if there is none.

    Of an entry that has changed since, only what spoke against it: a rejection, or flags that only asking the defense
    or running its cells can show. None if nothing did.

    Raises:
        EntryError: the file is malformed.
    """
    verification = last_verification(folder, entry.manifest.slug)
    if verification is None or verification.entry_sha256 == entry.sha256:
        return verification
    carried, flags = carried_from(verification, (), False)
    rejected = verification.verdict == "rejected"
    if not (carried or rejected):
        return None
    since = (
        f"it has changed since it was verified on {verification.verified}; what was found then stays until it is "
        "verified again"
    )
    return Verification(
        slug=verification.slug, entry_sha256=entry.sha256, verdict="rejected" if rejected else "self-reported",
        reasons=(*(verification.reasons if rejected else ()), since),
        flags=tuple(flag for flag in verification.flags if flag in flags), carried=carried,
        verified=verification.verified, engine_revision=verification.engine_revision,
    )  # fmt: skip


def stays(earlier: Verification, entry: Listed, verdict: Verdict, deliveries: Sequence[DeliveryVerdict] = ()) -> bool:
    """Whether an earlier verification of an entry stays, because one that ran no cell did not look further.

    It stays where it ran cells, got further, or where only the entry was read this time, as long as it is of the same
    file or of deliveries with the same hashes, whatever else in the entry changed: its name, authors or paper. Where it
    rejected the entry after running cells, it stays in any case: what cells have shown takes cells to refute.

    Args:
        earlier: of the entry.
        entry: that was verified again.
        verdict: of this verification.
        deliveries: what it found of every delivery.
    """
    if verdict == "rejected":
        return False
    if rejected_by_cells(earlier):
        return True
    alike = [each.sha256 for each in deliveries] == [each.sha256 for each in earlier.deliveries]
    same = earlier.entry_sha256 == entry.sha256 or (bool(deliveries) and alike)
    if not same or earlier.engine_revision != engine_revision():
        return False
    further = ORDER.index(earlier.verdict) > ORDER.index(verdict)
    return alike and (bool(earlier.key or earlier.carried) or further or verdict == "self-reported")


def rejected_by_cells(verification: Verification) -> bool:
    """Whether cells that were run, in it or before, have rejected the entry; only cells can refute that."""
    return verification.verdict == "rejected" and (bool(verification.key) or verification.carried == "rejection")


def carried_from(earlier: Verification | None, reruns: Sequence[Rerun], tried: bool) -> tuple[Carried, set[Flag]]:
    """What a verification takes over from an earlier one, because nothing that it did can refute it.

    Args:
        earlier: the one before.
        reruns: cells that it ran again.
        tried: whether a trial at a fresh seed said something.
    """
    if earlier is None:
        return "", set()
    again = bool(own_seeds(reruns))
    refuted = {*(BY_ASKING if again else ()), *(BY_TRYING if again and tried else ())}
    flags = {flag for flag in earlier.flags if flag in (*BY_ASKING, *BY_TRYING)} - refuted
    if rejected_by_cells(earlier) and not again:
        return "rejection", flags
    return "flags" if flags else "", flags


def earlier_verification(folder: Path, slug: str) -> Verification | None:
    """`last_verification` for a verifier, whose own file it is.

    Raises:
        UserError: it cannot be read, which is no fault of the entry.
    """
    try:
        return last_verification(folder, slug)
    except EntryError as error:
        raise UserError(f"the last verification cannot be read, so mend it or remove it: {error}") from error


def last_verification(folder: Path, slug: str) -> Verification | None:
    """The last verification of an entry, which may have changed since; raises as `read_verification`."""
    path = verification_path(folder, slug)
    if not path.is_file():
        return None
    try:
        return strictly_parsed(Verification, read_regular(path, VERIFICATION_BYTES))
    except MalformedError as error:
        raise EntryError(f"{path}: {error}") from error
    except NotRegularError as error:
        raise EntryError(str(error)) from error
