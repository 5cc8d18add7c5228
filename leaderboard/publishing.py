"""Publishing a suite's shared cells from a finished store, for every entry to refer to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from thiefbench.errors import UserError
from thiefbench.leaderboard import rows
from thiefbench.leaderboard.cell_scores import Numbers, drifts, rounded_score, same_rounded, trimmed
from thiefbench.leaderboard.manifest import Numerics
from thiefbench.leaderboard.published import (
    Key,
    Published,
    PublishedCell,
    cell_path,
    first_apart,
    key_of,
    label_of,
    made_with,
    published_cell,
    published_sets,
    set_name,
    words_file,
    words_path,
    write_cell,
    write_words,
)
from thiefbench.leaderboard.verification.baseline import current, run_options
from thiefbench.leaderboard.verification.rescoring import (
    InconsistentError,
    SubmittedCell,
    beside_completions,
    check_completions,
    check_identity,
)
from thiefbench.suite.analysis.cell_drift import COLUMNS, answers_in
from thiefbench.suite.execution.cell_identity import Identities
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.arithmetic import arithmetic_of, comparable
from thiefbench.suite.store.records import (
    BrokenRecordError,
    Record,
    Store,
    file_sha256,
    half_written,
    identify,
)
from thiefbench.wording import counted

_BESIDE = "--beside publishes cells that another arithmetic made as a further set"


class ConflictError(UserError):
    """A cell is published already, and not as the store has it. One sentence for the user."""


class NotPublishableError(UserError):
    """A store's cells cannot be published. One sentence for the user."""


@dataclass
class Outcome:
    """What publishing came to; cells by label.

    Attributes:
        title: of the suite.
        folder: of its published cells.
        added, equal: cells that are published now, and those that were before and are equal.
        unseen: cells that are published and that the store does not have.
        failed: cells whose record is an error.
        lacking: cells that the store does not have, or not with their control.
    """

    title: str
    folder: Path
    added: list[str] = field(default_factory=list)
    equal: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For readers."""
        total = len(self.added) + len(self.equal) + len(self.unseen)
        lines = [
            f"{self.title}: {counted(len(self.added), 'cell')} published, "
            f"{counted(len(self.equal), 'was published before and is', 'were published before and are')} equal; "
            f"{total} in {self.folder}"
        ]
        later = "; the same command adds what is missing later"
        for names, one, several in (
            (self.unseen, "cell is published and not in the store", "cells are published and not in the store"),
            (
                self.failed, "cell failed in the store and is not published",
                "cells failed in the store and are not published",
            ),
            (
                self.lacking, f"cell is not in the store, or without its control{later}",
                f"cells are not in the store, or without their control{later}",
            ),
        ):  # fmt: skip
            if names:
                lines.append(f"{counted(len(names), one, several)}, such as {names[0]}")
        return lines


def publish(
    suite: Suite,
    store: Path,
    out: Path,
    threads: int | None = None,
    tell: Callable[[str], None] = lambda line: None,
    beside: bool = False,
) -> Outcome:
    """Publish the shared cells of a suite that a store has.

    They join the set of cells that were computed as they were, or become the suite's first one.

    Before a cell is published, its scores, texts, rewards and advantages are computed again from the recorded tokens.
    Each is written by itself, so a stop or a kill loses nothing. Nothing that is published is written again.

    Args:
        suite: a released one.
        store: with its shared cells; other cells are left alone.
        out: the folder of all suites' published cells.
        threads: of the cells; needed where the store has several numbers of them.
        tell: receives a line for each cell that is published.
        beside: whether they may become a further set, beside those that were computed otherwise.

    Raises:
        ConflictError: a cell is published already and the store's differs; nothing was written then. Or cells of this
            version are published that were computed otherwise, and none as they were, without `beside`.
        NotPublishableError: the store has none of the cells, has them with several numbers of threads, or one of them
            is inconsistent.
        PublishedError: a published cell cannot be read.
    """
    if not (store / "cells").is_dir():
        raise NotPublishableError(f"{store} holds no cells; name the store of a finished run with --store DIR")
    finished = Store(store)
    cells = _cells(suite, finished, threads)
    published, in_place = _set_of(cells, published_sets(out, suite.title), beside)
    folder = published.folder
    assert folder is not None, "a released suite has a title that is one"
    outcome = Outcome(suite.title, folder)
    new: list[_Stored] = []
    for cell in cells:
        there = in_place.get(cell.key)
        if cell.record is None:
            (outcome.unseen if there is not None else outcome.lacking).append(cell.label)
        elif cell.record.status == "error":
            outcome.failed.append(cell.label)
        elif there is not None:
            _check_equal(cell, _control_of(cell, cells), there, finished, published)
            outcome.equal.append(cell.label)
        else:
            _check_alike(cell, cell.record, in_place, new)
            new.append(cell)
    for cell in new:
        if (control := _control_of(cell, cells)) is None:
            outcome.lacking.append(cell.label)
            continue
        made = _published(suite.title, cell, control, finished, folder)
        write_cell(folder, made)
        _remove_half_written(cell_path(folder, made.cell_id))
        published.find(made.cell_id)  # it can be read
        tell(f"published: {cell.label}")
        outcome.added.append(cell.label)
    return outcome


def _set_of(
    cells: Sequence[_Stored], sets: Sequence[Published], beside: bool
) -> tuple[Published, dict[Key, PublishedCell]]:
    """The set of published cells that a store's belong to, and its cells of this version.

    Args:
        cells: the suite's shared cells, with the store's records.
        sets: that are published, the first one first.
        beside: whether a further one may be made.
    """
    specs = {cell.key: cell.spec for cell in cells}
    known = [(each, current(each, specs)) for each in sets]
    names = {set_name(cell.record) for cell in cells if cell.record is not None and cell.record.status == "ok"}
    if len(names) != 1 or not any(in_place for _, in_place in known):
        return known[0]  # which they are compared with, or begin
    (name,) = names
    for each, in_place in known:
        if in_place and {set_name(cell.record) for cell in in_place.values()} == {name}:
            return each, in_place
    return (sets[0].beside(name), {}) if beside else known[0]


@dataclass(frozen=True)
class _Stored:
    """A shared cell of a suite.

    Attributes:
        spec, part: which one.
        cell_id: of this version.
        record: in the store; None where it has none.
    """

    spec: CellSpec
    part: str
    cell_id: str
    record: Record | None

    @property
    def label(self) -> str:
        """For readers."""
        return label_of(self.key)

    @property
    def key(self) -> Key:
        """Which cell of its suite it is."""
        return key_of(self.part, self.spec.as_dict())

    @property
    def is_control(self) -> bool:
        """Whether drift is measured against it."""
        return (self.spec.role, self.spec.defense) == ("control", "none")

    def is_control_of(self, other: _Stored) -> bool:
        """Whether another cell's drift is measured against it."""
        here, there = (self.part, self.spec.attack, self.spec.seed), (other.part, other.spec.attack, other.spec.seed)
        return self.is_control and here == there


def _cells(suite: Suite, store: Store, threads: int | None) -> list[_Stored]:
    """The suite's shared cells with the store's records of them."""
    known = [record.cell for record in store.records()]
    settings = {
        (cell["device"], cell["dtype"], cell["threads"]) for cell in known if threads in (None, cell["threads"])
    }
    identities, found = Identities(), []
    for device, dtype, count in sorted(settings):
        cells = []
        for spec in rows.shared_cells(suite, suite.seeds, Numerics(device=device, dtype=dtype, threads=count)):
            cell_id = identify(identities.of(spec))
            try:
                record = store.cell(cell_id).read()
            except BrokenRecordError as error:
                raise NotPublishableError(f"{error}; run the suite again to redo it") from error
            cells.append(_Stored(spec, suite.part_of(spec), cell_id, record))
        if any(cell.record is not None for cell in cells):
            found.append(cells)
    if not found:
        with_threads = f" with --threads {threads}" if threads else ""
        raise NotPublishableError(
            f"{store.root} holds no control, undefended, placebo or oracle cell of {suite.title}{with_threads} that "
            "this version computed"
        )
    if len(found) > 1:
        kinds = " and ".join(f"--threads {cells[0].spec.threads} on {cells[0].spec.device}" for cells in found)
        raise NotPublishableError(f"{store.root} holds shared cells of {suite.title} with {kinds}; name one")
    return found[0]


def _check_equal(
    cell: _Stored, control: _Stored | None, there: PublishedCell, store: Store, published: Published
) -> None:
    """Refuse a cell that is published otherwise; raises ConflictError.

    Without its control, its drift is not looked at.
    """
    record = cell.record
    assert record is not None
    if cell.cell_id != there.cell_id:
        raise ConflictError(
            f"the {cell.label} is published for {run_options(there)}, and the store has it with "
            f"--threads {cell.spec.threads}; what is published stays; {_BESIDE}"
        )
    directory = store.cell(cell.cell_id)
    table = directory.read_rows()
    made = published_cell(there.suite, cell.part, record, there.record_sha256, table, {}, there.words)
    if where := first_apart(there.rounds, made.rounds):
        raise ConflictError(
            f"the {cell.label} ({cell.cell_id}) is published with other completions, which differ from {where} on: "
            f"SHA-256 {there.record.completions_sha256[:12]}, made with {made_with(there.record)}; the store's "
            f"{record.completions_sha256[:12]}, made with {made_with(record)}; what is published stays; {_BESIDE}"
        )
    same_measures = there.record.schema_version == record.schema_version
    compared = [name for name in _DETERMINED if same_measures or name not in _MEASURED]
    other = next((name for name in compared if getattr(there.record, name) != getattr(made.record, name)), "")
    if not other and cell.is_control and published.words(there) != words_file(answers_in(table.select(COLUMNS))):
        other = "words"
    if not other and there.part != cell.part:
        other = "part"
    if (
        not other
        and control is not None
        and not cell.is_control
        and not _alike(there.drift, _drift(cell, control, store))
    ):
        other = "drift"
    if other:
        raise ConflictError(
            f"the {cell.label} ({cell.cell_id}) is published with the same completions and another {other}: its file "
            "does not say what its completions give; take it out of the folder and publish it again"
        )


_MEASURED = ("scores", "other_rules", "curves")
_DETERMINED = ("cell", "identity", "status", "payload", *_MEASURED)
"""What of a record follows from its identity and its completions."""


def _check_alike(cell: _Stored, record: Record, in_place: Mapping[Key, PublishedCell], new: Sequence[_Stored]) -> None:
    """Refuse a cell that was computed otherwise than those of its seed, or cannot stand beside other seeds'.

    Seeds are independent samples, so those of two seeds may be made with different vector instructions.

    Raises:
        ConflictError: it was.
    """
    others = [each.record for each in in_place.values()]
    others += [each.record for each in new if each.record is not None]
    made = arithmetic_of(record)
    for other in others:
        theirs = arithmetic_of(other)
        alike = made == theirs if other.cell["seed"] == record.cell["seed"] else comparable(made, theirs)
        if not alike or other.cell["threads"] != record.cell["threads"]:
            raise ConflictError(
                f"the {cell.label} was made with {made_with(record)}, --threads {record.cell['threads']}, and the "
                f"{other.cell['role']} cell of seed {other.cell['seed']} with {made_with(other)}, --threads "
                f"{other.cell['threads']}; all published cells of a seed must be made alike, and those of a set with "
                f"one version of torch and one number of threads; {_BESIDE}"
            )


def _published(title: str, cell: _Stored, control: _Stored, store: Store, folder: Path) -> PublishedCell:
    """A cell as it is published, after it was checked; the words of a control are written."""
    assert cell.record is not None
    directory = store.cell(cell.cell_id)
    record_sha256 = file_sha256(directory.record_path)
    table = directory.read_rows()
    scores = trimmed(cell.record, cell.part, False, record_sha256)
    try:
        check_identity(cell.record, cell.spec)
        submitted = SubmittedCell(cell.spec, cell.part, scores, cell.record, own=False)
        check_completions(submitted, table, beside=beside_completions(cell.spec, directory))
    except InconsistentError as error:
        raise NotPublishableError(f"the {cell.label} in {store.root} cannot be published: {error}") from error
    words, drift = "", dict[str, Numbers]()
    if cell.is_control:
        words = write_words(folder, words_file(answers_in(table.select(COLUMNS))))
        _remove_half_written(words_path(folder, words))
    else:
        drift = _drift(cell, control, store)
    return published_cell(title, cell.part, cell.record, record_sha256, table, drift, words)


def _remove_half_written(path: Path) -> None:
    """Remove what killed processes left of a file that is complete now."""
    for left in half_written(path.parent):
        if left.name.startswith(f".{path.name}-"):
            left.unlink(missing_ok=True)


def _control_of(cell: _Stored, cells: Sequence[_Stored]) -> _Stored | None:
    """The control that a cell's drift is measured against, maybe itself; None where the store has no scores of it."""
    control = next((each for each in cells if each.is_control_of(cell)), None)
    return control if control is not None and control.record is not None and control.record.status == "ok" else None


def _drift(cell: _Stored, control: _Stored, store: Store) -> dict[str, Numbers]:
    """Drift and divergence of a cell beside its control, rounded."""
    assert cell.record is not None
    assert control.record is not None
    measured = drifts([(cell.part, control.record), (cell.part, cell.record)], store)[cell.cell_id]
    return {name: rounded_score(score) for name, score in measured.items()}


def _alike(one: Mapping[str, Numbers], other: Mapping[str, Numbers]) -> bool:
    """Whether the same scores are equal, give or take the last digit."""
    return one.keys() == other.keys() and all(same_rounded(one[name], other[name]) for name in one)
