"""Bounds and thresholds in writing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from thiefbench.testing.bounds import Bound, MisuseError, Threshold, parse_bound, parse_threshold


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [("<0.05", 0.0, 0.05), ("<= 0.05", 0.05, 0.06), (">.95", 1.0, 0.95), (" >= 1. ", 1.0, 0.99), (">-0.5", 0.0, -0.5)],
)
def test_a_bound_holds_on_its_side(text: str, inside: float, outside: float) -> None:
    bound = parse_bound(text, "utility")
    assert bound.holds(inside)
    assert not bound.holds(outside)


@pytest.mark.parametrize("text", ["0.05", "=0.05", "==0.05", "<", "<5%", "<0.05 or >1", "<nan", "", 0.05, None])
def test_what_is_no_bound_says_what_is_one(text: object) -> None:
    with pytest.raises(MisuseError, match=r"is not a bound; write one of .* as in asr='<0\.05'"):
        parse_bound(text, "asr")


def test_a_threshold_is_a_measure_and_a_bound() -> None:
    assert parse_threshold(" worst_case <0.90") == Threshold("worst_case", Bound("<", 0.9))
    assert str(parse_threshold("asr>0.05")) == "asr > 0.05"
    assert parse_threshold("asr>=0.05").bound.words == "at-least-0.05", "names of tests hold no < and >"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "worst_case",
            "'worst_case' is not a threshold; write a measure, one of <, <=, >, >= and a number, as in worst_case",
        ),
        ("asr=0.05", "'asr=0.05' is not a threshold"),
        ("0.05<asr", "is not a threshold"),
        ("wurst_case<0.9", "there is no measure 'wurst_case'; did you mean worst_case? known: asr, stop_rate,"),
    ],
)
def test_what_is_no_threshold_says_what_is_one(text: str, complaint: str) -> None:
    with pytest.raises(MisuseError) as error:
        parse_threshold(text)
    assert complaint in str(error.value)


def test_what_the_summary_needs_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'pydantic', 'yaml', 'thiefbench.engine', 'thiefbench.suite'} & set(sys.modules)"
    code = f"import sys, thiefbench.testing, thiefbench.testing.reporting, thiefbench.testing.bounds; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()", "a session without a swarm loads no library of swarms"


@pytest.mark.parametrize(
    ("measure", "text", "holds"),
    [
        ("false_rejection_rate", "<5", "always"), ("stop_rate", ">-1", "always"),
        ("stop_rate", ">95", "never"), ("placebo_rejection_rate", "<-1", "never"),
    ],
)  # fmt: skip
def test_a_bound_beyond_a_share_is_a_mistake(measure: str, text: str, holds: str) -> None:
    with pytest.raises(MisuseError, match=f"^{measure} lies between 0 and 1, so .* {holds} holds; write a share"):
        parse_bound(text, measure)


def test_bounds_at_the_ends_and_of_what_is_no_share_are_kept() -> None:
    assert parse_bound(">=1", "stop_rate").holds(1.0)
    assert parse_bound("<=0", "asr").holds(0.0)
    assert parse_bound("<=1", "false_rejection_rate").holds(1.0), "which says that nothing is asked"
    assert parse_bound("<35", "asr").limit == 35, "the outcome of dos is a length"
    assert parse_bound(">-1", "harm_prevented").limit == -1


def test_the_example_goes_the_way_that_is_meant() -> None:
    with pytest.raises(MisuseError, match=r"as in stop_rate='>0\.95'"):
        parse_bound("0.95", "stop_rate")
    with pytest.raises(MisuseError, match=r"as in asr='<0\.05'"):
        parse_bound("0.05", "asr")
