"""The measures of a comparison that tables show, each with its unit and meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["rate", "ratio", "reward", "tokens", "seconds", "milliseconds", "bits"]


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
    Column("masked_rate", "Masked", "rate", "share of rewarded payload completions learned from in part"),
    Column("unearned_reward", "Unearned reward", "reward", "malicious nodes' reward beyond the rule's, if accepted"),
    Column("clean_reward", "Clean reward", "reward", "held-out task reward, last evaluation; gain: over the start"),
    Column("utility", "Utility", "ratio", "gain in clean reward as a share of the control's"),
    Column("mean_length", "Mean length", "tokens", "tokens per held-out completion"),
)  # fmt: skip
