"""Questions about a submission, and what is found: shared by the checks of defenses, aggregations and attacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from thiefbench.leaderboard.checking.repeatable import unrepeatable
from thiefbench.leaderboard.entry_validation import left_out, unreadable, wrong_import, wrong_size
from thiefbench.leaderboard.isolation.sandbox_paths import Guests, files
from thiefbench.leaderboard.isolation.staging import wrong_name
from thiefbench.sources import source_files

Status = Literal["ok", "warning", "FAILED"]


@dataclass(frozen=True)
class Finding:
    """The answer to one question: the question, its outcome, and what was measured or must change."""

    question: str
    status: Status
    detail: str = ""


LONG = 40
"""A fault of at least this many characters is written out only once."""


def shortened(finding: Finding, earlier: Sequence[Finding]) -> str:
    """The finding's detail; where it ends in the fault of an earlier finding, that is named instead."""
    for known in earlier:
        fault = known.detail
        if known.status == finding.status == "FAILED" and len(fault) >= LONG and finding.detail.endswith(fault):
            return f"{finding.detail.removesuffix(fault)}the same as for {known.question!r}"
    return finding.detail


class RuleBroken(Exception):  # noqa: N818  (a finding, not an error)
    """The submission breaks a rule. Says what is wrong and what to change."""


class RuleWarning(Exception):  # noqa: N818  (as above)
    """Allowed, but probably not intended."""


class Submitted(Protocol):
    """What is checked."""

    @property
    def spec(self) -> str:
        """Its spec string."""


FILES, IMPORTS, REPEATABLE = (
    "its files fit into an entry",
    "imports only what is allowed",
    "uses nothing that cannot be repeated",
)
"""Questions about files, which all checks ask."""

Subject = TypeVar("Subject")
Ask = Callable[[Subject], str]
"""Answers a question about a subject; raises RuleBroken or RuleWarning."""


def ask_all(
    questions: Sequence[tuple[str, Ask[Subject]]],
    subject: Subject,
    fault: type[Exception],
    first: Collection[Ask[Subject]],
    make: Callable[[], object],
    made: Ask[Subject],
) -> Iterator[Finding]:
    """Ask all questions, in order; stop if one of the `first` fails, because the others then say nothing.

    What `make` makes lives as long as the questions, so that others of its kind start at once. It is made for the
    question `made`, which its failure answers, so that nobody waits for the same fault twice.

    Args:
        questions: each with the function that answers it.
        subject: what they are about.
        fault: what the isolated submission raises for whatever it does wrong; a finding like a broken rule.
        first: the functions of the questions without which nothing else can be asked.
        make: makes the isolated submission.
        made: the function of the question whether it can be made.
    """
    warm = None
    for question, ask in questions:
        try:
            if ask is made:
                warm = make()  # noqa: F841
            finding = Finding(question, "ok", ask(subject))
        except RuleWarning as doubt:
            finding = Finding(question, "warning", str(doubt))
        except (RuleBroken, fault) as wrong:
            finding = Finding(question, "FAILED", str(wrong))
        yield finding
        if finding.status == "FAILED" and ask in first:
            return


def files_are_in_order(kind: Guests) -> Ask[Submitted]:
    """A question: whether the files of a submission keep within the limits, and can be read, in an entry, too."""

    def ask(subject: Submitted) -> str:
        submitted = files(subject.spec, kind)
        sources = {path: None for file in submitted for path in source_files(file)}
        for wrong in (
            *map(wrong_size, submitted),
            *map(wrong_name, submitted),
            *map(left_out, submitted),
            unreadable([path for path in sources if path.suffix == ".py"]),
        ):
            if wrong:
                raise RuleBroken(wrong)
        return ""

    return ask


def imports_what_it_may(kind: Guests) -> Ask[Submitted]:
    """A question: whether the files of a submission import only what is allowed."""

    def ask(subject: Submitted) -> str:
        for file in files(subject.spec, kind):
            if wrong := wrong_import(file, kind):
                raise RuleBroken(wrong)
        return ""

    return ask


def can_be_repeated(kind: Guests) -> Ask[Submitted]:
    """A question: whether the files of a submission use nothing that no verifier can repeat, as far as can be read."""

    def ask(subject: Submitted) -> str:
        for file in files(subject.spec, kind):
            if places := unrepeatable(file):
                raise RuleWarning(
                    f"{places}. What depends on it may come out otherwise when it is run again, and is then rejected"
                )
        return ""

    return ask
