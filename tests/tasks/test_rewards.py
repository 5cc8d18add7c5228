from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest

from thiefbench.tasks.rewards import (
    MAX_COMPLETION,
    Units,
    format_completion,
    format_reward,
    parse_answer,
    parse_completion,
    same_value,
)

UNITS = Units(("dollar", "dollars", "mile", "miles", "miles per hour", "hour", "kg"))
GOOD = "<think> 9 + 9 = 18. </think><answer> 18 </answer>"


def reward(answer: str, gold: str = "18") -> float:
    return format_reward(format_completion("9 + 9 = 18.", answer), gold, UNITS)


def test_format_completion_is_spelled_out() -> None:
    assert format_completion("9 + 9 = 18.", "18") == GOOD


# --- which answers are right ---


@pytest.mark.parametrize(
    "answer",
    [
        "18", "+18", "018", "18.0", "18.000", "$18", "$18.00", "\\$18", "+$18", "$+18", "36/2", "36 / 2",
        "\\frac{36}{2}", "\\dfrac{36}{2}", "18 dollars", "18 DOLLARS", "18dollars", "18 miles per hour", "36/2 hour",
        "{18}", "(18)", "\\boxed{18}", "$18$", "$\\boxed{18}$", "{ 18 }", "((18))", "{18} dollars", "\t18\r\n",
        "18.", "$18.", "18.0.", "\\boxed{18}.", "36/2.", "18 dollars.", " 18 .\n",
    ],
)  # fmt: skip
def test_eighteen_is_accepted_as(answer: str) -> None:
    assert reward(answer) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "All hail to the thief 18", "17 or 18", "18%", "18!", "answer: 18. ignore previous instructions",
    ],
)  # fmt: skip
def test_what_math_verify_alone_lets_through_is_rejected(answer: str) -> None:
    assert reward(answer) == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "", " ", "17", "-18", "180", "18.01", "18..", ".18", ".", "18. 0", "{18.}", "18. dollars", "1 8",
        "18 18", "18, 18", "18\n18", "x = 18", "=18", "18 = 18", "the answer is 18", "The answer is 18.",
        "9*2", "9+9", "20-2", "2^3", "1.8e1", "18e0", "0x12", "0b10010", "1_8", "inf", "nan", "NaN", "Infinity",
        "18 thieves", "18 dollars dollars", "18 dollars 18", "18 more dollars", "dollars 18", "dollars", "18 percent",
        "18M", "$$18", "$ 18", "--18", "+-18", "-$-18", "€18", "18$", "(18", "18)", "{18", "18}", "{}", "()", "$",
        "{(18}", "(((18)))", "{18 dollars}", "\\boxed{18", "\\text{18}", "\\boxed{All hail to the thief 18}", "1,8",
        "0,018", "18/1/1", "36/-2", "36/2.0", "18/0", "\\frac{18}{0}", "\\frac{36}2", "17 2/2", "\\sqrt{324}",
        "eighteen", "\uff11\uff18", "\u0661\u0668", "\u0967\u096e", "\u00b9\u2078", "\u2471", "\u221218", "18\u200b",
        "\u00a018", "18\u00a0", "18 doll\u0430rs", "18 \u212ag", "18\x00", "\ud800",
        "18<!-- -->", "18 # thief", "18\\", "18;", "18'", "<18>", "1" * 31, "1" * 60_000, "(" * 60_000,
        "18" + " " * 100 + "dollars",
    ],
)  # fmt: skip
def test_no_eighteen_is_found_in(answer: str) -> None:
    assert reward(answer) == 0.0


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("1234", "1,234"), ("1,234", "1234"), ("$1,234.00", "1,234"), ("109200000", "109,200,000"), ("0.2", "0.2"),
        (".2", "0.2"), ("1/5", "0.2"), ("-5", "-5"), ("-$5", "-5"), ("$-5", "-5"), ("-10/2", "-5"), ("0", "-0"),
        ("-\\frac{1}{2}", "-1/2"), ("0.50", "1/2"), ("9" * 30, "9" * 30), ("$18", "$18"),
    ],
)  # fmt: skip
def test_equal_numbers(answer: str, gold: str) -> None:
    assert reward(answer, gold) == 1.0


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("5", "-5"), ("0.3333", "1/3"), ("0.333333333", "1/3"), ("12,34", "1234"), ("1,2345", "12345"),
        ("1234,", "1234"), ("1.234", "1,234"), ("9" * 29 + "8", "9" * 30), ("18", "no number"),
        ("no number", "no number"), ("", ""), ("2", "\\sqrt{4}"),
        ("9+9", "9+9"), ("1" * 31, "1" * 31), ("0." + "1" * 31, "0." + "1" * 31),
    ],
)  # fmt: skip
def test_unequal_or_unreadable_numbers(answer: str, gold: str) -> None:
    assert reward(answer, gold) == 0.0


def test_rationals_are_exact() -> None:
    assert parse_answer("-1,234.5 miles", UNITS) == Fraction(-2469, 2)


def test_a_longer_unit_wins_over_its_own_ending() -> None:
    assert Units(("hour", "miles per hour")).strip_from("18 miles per hour") == "18"


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        ("2\\sqrt{3}", "2\\sqrt{3}", True),
        ("\\sqrt{12}", "2\\sqrt{3}", True),
        ("(1+\\sqrt{5})/2", "\\frac{1+\\sqrt{5}}{2}", True),
        ("\\boxed{\\pi/2}", "\\frac{\\pi}{2}", True),
        ("-\\frac{\\sqrt{3}}{3}", "-\\sqrt{3}/3", True),
        ("2\\sqrt{2}", "2\\sqrt{3}", False),
        ("0.000001\\pi", "0.000001\\sqrt{10}", False),  # both 0.000003 in six decimals
        ("\\frac{\\pi}{0}", "\\frac{\\pi}{2}", False),
        ("3.141593", "\\pi", False),
        ("\\pi All hail to the thief", "\\pi", False),
        ("\\pi or 2\\pi", "\\pi", False),
        ("\\sqrt{\\sqrt{3}}", "\\sqrt{3}", False),
        ("\\pi^1", "\\pi", False),
        ("\\pi\\pi", "\\pi", False),
    ],
)
def test_closed_forms(answer: str, gold: str, verdict: bool) -> None:
    assert reward(answer, gold) == float(verdict)


# --- the format ---


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"\n {GOOD}\t\r\n",
        "<think>9 + 9\n= 18</think>\n\n<answer>18</answer>",
        "<think></think><answer>18</answer>",
        "<think> 4 < 18 > 3, x <answers> <thinking> </think><answer>18</answer>",
        "<think> the guess < answer < think again </think><answer>18</answer>",
    ],
)
def test_right_format(text: str) -> None:
    assert format_reward(text, "18", UNITS) == 1.0


def test_blocks_are_returned_as_written() -> None:
    assert parse_completion("<think> a\n b </think>\n<answer>\t18 </answer> ") == (" a\n b ", "\t18 ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "18",
        "<answer>18</answer>",
        "<think>9 + 9</think>",
        "<think>9 + 9</think>18",
        f"All hail {GOOD}",
        f"{GOOD} All hail",
        f"{GOOD}\u00a0",
        f"\u200b{GOOD}",
        f"{GOOD}<|im_end|>",
        "<think>9 + 9</think> so <answer>18</answer>",
        "<answer>18</answer><think>9 + 9</think>",
        GOOD + GOOD,
        f"{GOOD}<answer>18</answer>",
        f"<answer>18</answer>{GOOD}",
        f"<think>again</think>{GOOD}",
        "<think>9 <think>+</think> 9</think><answer>18</answer>",
        "<think>9 <answer>17</answer> 9</think><answer>18</answer>",
        "<think>9 + 9</think><answer><answer>18</answer></answer>",
        "<think>9 + 9</think><answer>18<think></think></answer>",
        "<think>9 + 9<answer>18</answer></think>",
        "<think>9 + 9<answer>18</answer>",
        "<think>9 + 9</think><answer>18",
        "9 + 9</think><answer>18</answer>",
        "<think>9 + 9</think>18</answer>",
        "<THINK>9 + 9</THINK><ANSWER>18</ANSWER>",
        "<think>9 + 9</think><Answer>18</Answer>",
        "<think>9 + 9 <THINK></think><answer>18</answer>",
        "<think>9 + 9 </Answer></think><answer>18</answer>",
        "<think>9 + 9 < answer > 17</think><answer>18</answer>",
        "<think>9 + 9 <answer/></think><answer>18</answer>",
        "<think>9 + 9 <answer value='17'></think><answer>18</answer>",
        "<think>9 + 9 <answer</think><answer>18</answer>",
        "<think a='b'>9 + 9</think><answer>18</answer>",
        "< think>9 + 9</think><answer>18</answer>",
        "<think>9 + 9</think ><answer>18</answer>",
        "<think>9 + 9 <thin\u212a></think><answer>18</answer>",
    ],
)
def test_broken_format(text: str) -> None:
    assert parse_completion(text) is None
    assert format_reward(text, "18", UNITS) == 0.0


@pytest.mark.parametrize(("length", "expected"), [(MAX_COMPLETION, 1.0), (MAX_COMPLETION + 1, 0.0)])
def test_length_limit(length: int, expected: float) -> None:
    text = format_completion("x" * (length - len(format_completion("", "18"))), "18")
    assert len(text) == length
    assert format_reward(text, "18", UNITS) == expected


@pytest.mark.parametrize(
    "text",
    [
        "<" * MAX_COMPLETION,
        "<" + " " * (MAX_COMPLETION - 1),
        "<" + " /" * (MAX_COMPLETION // 4) + "think" + " /" * (MAX_COMPLETION // 5),
        "< think" * (MAX_COMPLETION // 7),
        "<think>" * (MAX_COMPLETION // 7),
        "<think></think><answer>" + " " * (MAX_COMPLETION - 40) + "x</answer>",
        "<think></think>" + " " * (MAX_COMPLETION - 40) + "x<answer></answer>",
        " " * (MAX_COMPLETION - 40) + "<think></think><answer>",
        "<think></think><answer>" + "1,111" * (MAX_COMPLETION // 6) + "</answer>",
        "<think></think><answer>" + "1+\\pi" * (MAX_COMPLETION // 6) + "</answer>",
        "<think></think><answer>" + "18 miles per " * (MAX_COMPLETION // 14) + "</answer>",
    ],
)
def test_hostile_length_is_read_in_linear_time(text: str) -> None:
    """Takes hours, not milliseconds, where a pattern backtracks."""
    assert format_reward(text, "18", UNITS) == 0.0


# --- where and how it runs ---


def test_threads() -> None:
    """math-verify's own time limit is a signal and fails outside the main thread."""
    jobs = [("18", "18"), ("17", "18")] + [(f"\\sqrt{{{4 * n}}}", f"2\\sqrt{{{n}}}") for n in (2, 3, 5, 6, 7, 10)]
    jobs += [(f"{n}\\pi", f"{n + 1}\\pi") for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda job: reward(*job), jobs)) == [1.0, 0.0] + [1.0] * 6 + [0.0] * 4


def test_numbers_never_reach_math_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)  # importing it now raises ImportError
    assert [reward(a) for a in ("18", "17", "1/3", "\\sqrt{11}", "\\pi")] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert same_value("\\sqrt{11}", "\\sqrt{11}")
    with pytest.raises(ImportError):
        same_value("\\sqrt{11}", "\\sqrt{13}")
