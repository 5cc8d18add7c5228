"""The measures of a comparison that tables show, each with its unit and meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

_S = TypeVar("_S")

Unit = Literal["rate", "ratio", "reward", "tokens", "seconds", "milliseconds", "bits", "rounds"]


@dataclass(frozen=True)
class Column:
    """A column of the results table: the measure's name in records, its heading, its unit, what it means."""

    measure: str
    title: str
    unit: Unit
    about: str


COLUMNS = (
    Column("asr", "ASR", "rate", "attack success rate on honest models' answers, last evaluation"),
    Column("asr_printed", "ASR (printed)", "rate", "share of the programs that ran which called the library"),
    Column("peak_asr", "Peak ASR", "rate", "the highest of all evaluations"),
    Column("drift", "Drift", "rate", "share of answers with a word that the control never writes, last evaluation"),
    Column("divergence", "Divergence", "bits", "Jensen-Shannon divergence of words from the control's, in bits"),
    Column("harm_prevented", "Harm prevented", "ratio", "1 - defended / mean undefended harm, last three evaluations"),
    Column("stop_rate", "Stop rate", "rate", "rejected share of rewarded payload completions"),
    Column("false_rejection_rate", "False rejection", "rate", "rejected share of rewarded honest completions"),
    Column("vector_stop_rate", "Vectors stopped", "rate", "rejected or refused share of malicious nodes' vectors"),
    Column("vector_false_rejection_rate", "Honest vectors rejected", "rate", "the same of honest nodes' vectors"),
    Column("vector_clip_rate", "Vectors clipped", "rate", "malicious nodes' vectors that count with another length"),
    Column("altered_asr", "ASR when altered", "rate", "after the last round in which the stage changed its weights"),
    Column("clean_rounds", "Clean rounds", "rounds", "rounds after the last one in which it changed its weights"),
    Column("caught_round", "Caught in round", "rounds", "in which the malicious stage was rejected"),
    Column("stage_false_rejection_rate", "Honest stages rejected", "rate", "rejecting share of verdicts on them"),
    Column("masked_rate", "Masked", "rate", "share of rewarded payload completions learned from in part"),
    Column("unearned_reward", "Unearned reward", "reward", "malicious nodes' reward beyond the rule's, if accepted"),
    Column("clean_reward", "Clean reward", "reward", "held-out task reward, last evaluation; gain: over the start"),
    Column("utility", "Utility", "ratio", "gain in clean reward as a share of the control's"),
    Column("mean_length", "Mean length", "tokens", "tokens per held-out completion"),
)  # fmt: skip

STOPPED = ("stop_rate", "vector_stop_rate")
"""How much poison a defense stops: completions, or vectors."""
REJECTED = ("false_rejection_rate", "vector_false_rejection_rate", "stage_false_rejection_rate")
"""How much honest work it rejects: completions, vectors or stages."""
OF_OTHERS = (*STOPPED[1:], *REJECTED[1:], "vector_clip_rate", "altered_asr", "clean_rounds", "caught_round")
"""Measures of swarms in which a defense judges vectors or stages."""
OF_COMPLETIONS = ("stop_rate", "false_rejection_rate", "masked_rate")
"""Rates of completions, which say nothing where the defense judges vectors or stages."""


def first_of(measures: Iterable[str], scores: Mapping[str, _S]) -> _S | None:
    """The score of the first of these measures that there is; None without one."""
    return next((scores[measure] for measure in measures if measure in scores), None)
