"""Questions of a verification: each is reported with its outcome, and a failure rejects the entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from thiefbench import registry
from thiefbench.leaderboard.checking.findings import Finding, Status
from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.entry_validation import other_version
from thiefbench.leaderboard.isolation.isolated import DefenseError
from thiefbench.leaderboard.isolation.isolated_attack import AttackError
from thiefbench.leaderboard.published import PublishedError
from thiefbench.leaderboard.verification.reexecution import DisagreesError
from thiefbench.leaderboard.verification.rescoring import InconsistentError, OtherVersionError, SubmittedCell
from thiefbench.leaderboard.verification.verdict import Verdict
from thiefbench.tasks.text import one_line

MOST_REASONS = 5

Tell = Callable[[Finding], None]


class RejectedError(Exception):
    """A check failed; the reasons are its arguments, one sentence each."""


class Questions:
    """What asks them; `tell` receives the outcomes.

    Attributes:
        reasons: why the verdict is what it is, one sentence each.
    """

    tell: Tell
    reasons: list[str]

    def verdict(self) -> Verdict:
        """Do the steps that the options ask for, up to the first failed check."""
        try:
            return self._verdict()
        except RejectedError as error:
            self.reasons = [one_line(str(reason), 1000) for reason in error.args]
            return "rejected"

    def _verdict(self) -> Verdict:
        """All steps; raises RejectedError."""
        raise NotImplementedError

    @contextmanager
    def _question(self, question: str) -> Iterator[list[str]]:
        """Report the outcome of a check; a failure rejects the entry.

        Yields a list; details appended to it are reported if the check succeeds.

        Raises:
            RejectedError: the check failed.
        """
        details: list[str] = []
        try:
            yield details
        except RejectedError as error:
            self._tell(question, "FAILED", "; ".join(map(str, error.args)))
            raise
        except (
            AttackError,
            EntryError,
            InconsistentError,
            DisagreesError,
            DefenseError,
            PublishedError,
            registry.SpecStringError,
        ) as error:
            self._tell(question, "FAILED", str(error))
            raise RejectedError(str(error)) from error
        self._tell(question, "ok", ", ".join(details))

    def _tell(self, question: str, status: Status, detail: str) -> None:
        self.tell(Finding(question, status, one_line(detail, 1000)))


def each_cell(cells: Sequence[SubmittedCell], check: Callable[[SubmittedCell], None]) -> None:
    """Check every cell.

    Raises:
        RejectedError: some fail. The first ones are named; if all of them were made with another version, one reason
            says so.
    """
    failures: list[tuple[SubmittedCell, InconsistentError]] = []
    for cell in cells:
        try:
            check(cell)
        except InconsistentError as error:
            failures.append((cell, error))
    if failures and all(isinstance(error, OtherVersionError) for _, error in failures):
        count, verb = len(failures), "was" if len(failures) == 1 else "were"
        which = "it was" if count == len(cells) else f"{count} of its {len(cells)} cells {verb}"
        raise RejectedError(other_version(which, str(failures[0][1])))
    reasons = [f"{cell.part + ': ' if cell.part else ''}{cell.spec.label}: {error}" for cell, error in failures]
    if len(reasons) > MOST_REASONS:
        reasons[MOST_REASONS:] = [f"and {len(reasons) - MOST_REASONS} more cells fail the same check"]
    if reasons:
        raise RejectedError(*reasons)
