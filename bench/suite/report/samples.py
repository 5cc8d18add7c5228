"""Which stored completions a page shows, and what it shows of each.

A run stores hundreds of thousands of completions, and a page holds some. Each cell gives the same number. Inside a cell
the completions are sorted into kinds (round, sender, verdict, reward, payload), and the kinds take turns, so that a
rare kind, such as an honest completion that was rejected, is there if there is any. Shares among the samples are
therefore no rates. Which of a kind come first depends on round, item and place alone: paired cells show the same ones.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from thiefbench.defenses.skipping import SKIP
from thiefbench.suite.analysis.comparison import Cell
from thiefbench.suite.report.masked_tokens import Span, masked_spans, model_of
from thiefbench.suite.report.payload_marks import Piece, marks_of, pieces
from thiefbench.suite.store.records import Record
from thiefbench.tasks.text import printable

MOST_SAMPLES = 10_000
"""On one page."""
MOST_CHARACTERS = 16_000_000
"""Of all texts of a page together; a browser takes longer for more than is pleasant."""
LONGEST = 6_000
"""Characters of one completion that are shown."""
_LONGEST_REASON = 500
_LONGEST_NAME = 200
"""Characters of an item's id, a sender or a label; a stranger's store may hold any."""

SENDERS: Final = ("honest node", "malicious node", "held-out answer", "answer to a probe")
VERDICTS: Final = ("accepted", "masked", "zeroed", "dropped", "skipped", "refused", "no verdict")
REWARDS: Final = ("above 0", "0 or less")
PAYLOADS: Final = ("sent by an attacker", "said by an honest model", "not in it", "measured as a number", "not judged")
MEASURED: Final = PAYLOADS.index("measured as a number")
"""Of the completions of an attack whose outcomes are not shares of 1, such as lengths."""
SAYS: Final = ("payload", "learned", "", "", "")
"""What a completion is marked with, by its place in `PAYLOADS`."""

_KIND_COLUMNS = [
    "phase", "round", "item_id", "group", "place", "malicious", "payload", "reward", "refused", "action", "outcome",
    "token_weights",
]  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """One completion as the page shows it; whoever writes it must escape it. Numbers are written out already.

    Attributes:
        cell_id: of its cell.
        round: as in the stored row.
        sender, verdict, reward, payload: places in `SENDERS`, `VERDICTS`, `REWARDS` and `PAYLOADS`.
        item: its id, with the split that it is of in front.
        pieces: the text, in pieces with what they are: 0, `PAYLOAD`, `MASKED` or both.
        facts: further names and values.
    """

    cell_id: str
    round: int
    sender: int
    verdict: int
    reward: int
    payload: int
    item: tuple[str, str]
    pieces: tuple[Piece, ...]
    facts: tuple[tuple[str, str], ...]

    @property
    def characters(self) -> int:
        """Of its text."""
        return sum(len(piece) for piece, _ in self.pieces)


def draw(cells: Sequence[Cell], most: int = MOST_SAMPLES) -> tuple[list[Sample], int]:
    """Samples of several cells, and how many completions these hold.

    Args:
        cells: those without a record, or with one that says that the cell failed, hold none.
        most: samples.

    Returns:
        The samples, in which the kinds of all cells take turns, what carries the payload first; and the number of all
        completions.

    Raises:
        TableError: a file holds what no cell of its shape leaves.
    """
    finished = [(cell, cell.record) for cell in cells if cell.record is not None and not cell.problem]
    kinds = [_kinds(cell.directory.read_rows(_KIND_COLUMNS)) for cell, _ in finished]
    shares = _shares([len(each.turns) for each in kinds], most)
    drawn: list[tuple[tuple[int, ...], Sample]] = []
    for place, ((cell, record), each, share) in enumerate(zip(finished, kinds, shares, strict=True)):
        numbers = np.argsort(each.turns, kind="stable")[:share]
        before: Counter[tuple[int, ...]] = Counter()
        for sample in _samples(cell, record, each, numbers):
            kind = (sample.payload, sample.verdict, sample.sender, sample.reward)
            drawn.append(((before[kind], *kind, place), sample))
            before[kind] += 1
    drawn.sort(key=lambda pair: pair[0])
    return list(_short_enough(sample for _, sample in drawn)), sum(len(each.turns) for each in kinds)


@dataclass(frozen=True)
class _Kinds:
    """What each row of a cell is, as in `Sample`, and when it is drawn: rows with small numbers are first."""

    sender: NDArray[np.int64]
    verdict: NDArray[np.int64]
    reward: NDArray[np.int64]
    payload: NDArray[np.int64]
    turns: NDArray[np.uint64]


def _kinds(table: pa.Table) -> _Kinds:
    def column(name: str) -> NDArray[Any]:
        return table[name].to_numpy()

    def equals(name: str, value: str | float) -> NDArray[np.bool_]:
        return pc.fill_null(pc.equal(table[name], value), False).to_numpy()

    trained, malicious = equals("phase", "train"), column("malicious")
    sender = np.where(trained, malicious, np.where(equals("phase", "probe"), 3, 2)).astype(np.int64)
    names = ["no verdict", "refused", "zeroed", "dropped", "skipped", "masked"]
    rejections = [equals("action", action) for action in ("zero", "drop", SKIP)]
    conditions = [~trained, ~equals("refused", ""), *rejections, _below_1(table)]
    verdict = np.select(conditions, [VERDICTS.index(name) for name in names], VERDICTS.index("accepted"))
    reward = np.where(column("reward") > 0, 0, 1)
    outcome = pc.fill_null(table["outcome"], np.nan).to_numpy()
    said = MEASURED if np.nanmax(outcome, initial=0.0) > 1 else PAYLOADS.index("said by an honest model")
    payload = np.select(
        [column("payload"), outcome == 0, (outcome > 0) & ~malicious], [0, PAYLOADS.index("not in it"), said],
        PAYLOADS.index("not judged"),
    )  # fmt: skip

    rounds = column("round").astype(np.int64)
    rounds -= rounds.min(initial=0)
    kind = np.ravel_multi_index(
        (rounds, sender, verdict, reward, payload),
        (int(rounds.max(initial=0)) + 1, len(SENDERS), len(VERDICTS), len(REWARDS), len(PAYLOADS)),
    )
    hashes = _hashes(table)
    order = np.lexsort((hashes, kind))
    begins = np.flatnonzero(np.diff(kind[order], prepend=-1))  # places in `order` at which another kind begins
    turn = np.empty(len(order), np.uint64)
    turn[order] = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    return _Kinds(sender, verdict, reward, payload, (turn << np.uint64(32)) | hashes)


def _below_1(table: pa.Table) -> NDArray[np.bool_]:
    """Whether any token of a row has a weight below 1."""
    weights = table["token_weights"].combine_chunks()
    below = np.zeros(len(table), bool)
    rows = pc.list_parent_indices(weights).to_numpy()
    below[rows[pc.list_flatten(weights).to_numpy(zero_copy_only=False) < 1]] = True
    return below


def _hashes(table: pa.Table) -> NDArray[np.uint64]:
    """A number for each row that says nothing of what is in it: by phase, round, item, group and index."""
    names = ("phase", "round", "item_id", "group", "place")
    keys = zip(*(table[name].to_pylist() for name in names), strict=True)
    checksums = [zlib.crc32(repr(key).encode("utf-8", "replace")) for key in keys]
    # Checksums of similar texts are near to each other; the multiplication spreads them (Knuth's multiplicative hash).
    return (np.array(checksums, np.uint64) * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)


def _shares(sizes: Sequence[int], most: int) -> list[int]:
    """How many each gives: the same number, and what small ones lack is given by the others."""
    shares = [0] * len(sizes)
    left = most
    for waiting, number in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[number] = min(sizes[number], left // (len(sizes) - waiting))
        left -= shares[number]
    return shares


def _short_enough(samples: Iterator[Sample]) -> Iterator[Sample]:
    characters = 0
    for sample in samples:
        characters += sample.characters
        if characters > MOST_CHARACTERS:
            return
        yield sample


def _samples(cell: Cell, record: Record, kinds: _Kinds, numbers: NDArray[np.int64]) -> Iterator[Sample]:
    rows = cell.directory.read_rows().take(pa.array(numbers)).to_pylist()
    marks = marks_of(record)
    for number, row in zip(numbers, rows, strict=True):
        verdict = int(kinds.verdict[number])
        masked = _masked(record, row) if verdict == VERDICTS.index("masked") else []
        payload, why_none = marks.spans(row)
        item = ("train" if row["phase"] == "train" else "test", row["item_id"][:_LONGEST_NAME])
        yield Sample(
            cell.cell_id, row["round"], int(kinds.sender[number]), verdict, int(kinds.reward[number]),
            int(kinds.payload[number]), item, _pieces(row["text"], payload, masked or []),
            tuple(_facts(row, masked, why_none)),
        )  # fmt: skip


def _masked(record: Record, row: Mapping[str, Any]) -> list[Span] | None:
    return masked_spans(model_of(record.cell, row.get("label") or ""), row["ids"], row["text"], row["token_weights"])


def _pieces(text: str, payload: Sequence[Span], masked: Sequence[Span]) -> tuple[Piece, ...]:
    cut, left = pieces(text, payload, masked, LONGEST)
    return (*cut, (f" \N{HORIZONTAL ELLIPSIS} {left:,} more characters", 0)) if left else cut


def _facts(row: Mapping[str, Any], masked: list[Span] | None, why_none: str) -> Iterator[tuple[str, str]]:
    trained, length = row["phase"] == "train", len(row["ids"])
    yield "reward", f"{row['reward']:g}"
    if trained:
        yield "advantage", f"{row['advantage']:+z.2f}"
    if row["outcome"] is not None:
        yield "outcome", f"{row['outcome']:g}"
    if row["score"] is not None:
        yield "score", f"{row['score']:.4g}"
    if reason := row["refused"] or row["reason"]:
        yield "reason", printable(reason[:_LONGEST_REASON])
    if why_none:
        yield "payload marks", f"none: {why_none}"
    weights = row["token_weights"] or ()
    if below := sum(weight < 1 for weight in weights):
        where = "" if masked is not None else "; which of them is not known, as the tokenizer is not on this machine"
        yield "masked tokens", f"{below} of {len(weights)}{where}"
    yield "tokens", f"{length}{'' if row['ended'] else ', not ended by EOS'}"
    if trained:
        yield "sender", f"{printable(row['sender'][:_LONGEST_NAME])} (node {row['node']})"
        yield "group, index", f"{row['group']}, {row['place']}"
    if label := row.get("label"):
        yield "model of", printable(label[:_LONGEST_NAME])
    yield "item", printable(row["item_id"][:_LONGEST_NAME])
