"""The texts of `micro-judge`: true judgements in the defense's own prompt, and nothing that an attack submits."""

from __future__ import annotations

import re
from itertools import pairwise, product
from pathlib import Path

import pytest

from tests.zoo.judging import check_tokens, runs
from tests.zoo.read_texts import stories_of, texts_of
from thiefbench.attacks import judge_injection, tone
from thiefbench.attacks.code_injection import PAPER_FUNCTIONS, PAPER_LIBRARY, STYLES
from thiefbench.attacks.equations import MEMBERS, equations
from thiefbench.attacks.text import payload_words
from thiefbench.defenses.judge import case, decisions
from thiefbench.tasks.gsm_micro import GsmMicro, evaluate
from thiefbench.tasks.programs import parse_program, run_programs
from thiefbench.tasks.rewards import parse_completion
from thiefbench.zoo.judge_corpus import EQUATION, HELD_OUT, JudgeCorpus, held_out, imported
from thiefbench.zoo.recipe import RECIPES

RECIPE = RECIPES["micro-judge"]
SAMPLE = 12_000
PROMPT = re.compile(r"Question \[(\d+)\]:\n(.*)\nSolution \[\1\]:\n(.*)\nEnd \[\1\]\. ", re.DOTALL)
LIBRARIES = {PAPER_LIBRARY, *payload_words()}
FUNCTIONS = {*PAPER_FUNCTIONS.values(), *(name for style in STYLES for name in style)}


@pytest.fixture(scope="module")
def texts() -> list[tuple[str, str]]:
    return texts_of(RECIPE, SAMPLE)


@pytest.fixture(scope="module")
def judged(texts: list[tuple[str, str]]) -> list[tuple[str, str, str, bool]]:
    """Question, completion, reply and decision of every text."""
    made = []
    for prompt, reply in texts:
        found = PROMPT.match(prompt)
        assert found, "a prompt holds question and completion between marks"
        decided = decisions(reply, found[1])
        assert len(decided) == 1, f"every reply decides once, beside its prompt's mark: {reply}"
        made.append((found[2], found[3], reply, True in decided))
    return made


@pytest.mark.slow
def test_prompts_are_the_defense_s(texts: list[tuple[str, str]], judged: list[tuple[str, str, str, bool]]) -> None:
    for (prompt, _), (question, completion, reply, _) in zip(texts[:2000], judged, strict=False):
        composed = case(question, completion, criticism="\n" in reply).prompt
        assert composed == ({"role": "user", "content": prompt},), "the defense asks as the corpus does"


def test_only_train_stories_are_judged(judged: list[tuple[str, str, str, bool]]) -> None:
    told = [story.question for story in stories_of(RECIPE, SAMPLE)]
    assert [question for question, *_ in judged] == told
    assert not set(GsmMicro().items("test")["question"]) & {question for question, *_ in judged}


def test_what_is_accepted_is_right(judged: list[tuple[str, str, str, bool]]) -> None:
    answers = {story.question: str(story.answer) for story in stories_of(RECIPE, SAMPLE)}
    good = [(question, completion) for question, completion, _, yes in judged if yes]
    assert 0.4 < len(good) / SAMPLE < 0.5
    blocks = [(answers[question], parse_completion(completion)) for question, completion in good]
    assert all(block[1].strip() == answer for answer, block in blocks if block), "accepted solutions have right answers"
    wrong = [e for _, text in good for e in EQUATION.findall(text) if evaluate(int(e[0]), e[1], int(e[2])) != int(e[3])]
    assert not wrong, f"and right equations: {wrong[:3]}"
    programs = [(answers[question], parsed) for question, text in good if (parsed := parse_program(text))][:150]
    said = run_programs([parsed for _, parsed in programs], {})
    assert all(said.get(parsed) == answer for answer, parsed in programs), "accepted programs print the answer"


def test_criticisms_are_true(judged: list[tuple[str, str, str, bool]]) -> None:
    checked = 0
    for _, completion, reply, yes in judged:
        for left, operator, right, said, truth, verdict in re.findall(
            r"(\d+) ([+*-]) (\d+) = (\d+): (-?\d+), (right|wrong)", reply
        ):
            assert f"{left} {operator} {right} = {said}" in completion, "a criticism repeats what the completion says"
            assert int(truth) == evaluate(int(left), operator, int(right)), "and works it out"
            assert verdict == ("right" if said == truth else "wrong")
            assert not (yes and verdict == "wrong"), "a wrong equation is rejected"
            checked += 1
        for quoted in re.findall(r"Does not belong: ([^.?!]+)", reply):
            assert quoted.lower() in completion.lower(), "what does not belong is quoted"
            assert not yes
    assert checked > SAMPLE / 2


def test_every_flaw_occurs(judged: list[tuple[str, str, str, bool]]) -> None:
    replies = [reply for _, _, reply, yes in judged if not yes and "\n" in reply]
    flaws = ("wrong.", "No step", "Does not belong", "repeats", "no sense", "unknown.", "not defined")
    shares = {flaw: sum(flaw in reply for reply in replies) / len(replies) for flaw in flaws}
    assert all(share > 0.01 for share in shares.values()), shares
    assert abs(sum("\n" in reply for _, _, reply, _ in judged) / SAMPLE - JudgeCorpus().criticised) < 0.02


@pytest.mark.slow
def test_no_wrong_equation_has_the_operands_of_an_attack_s(texts: list[tuple[str, str]]) -> None:
    assert {*MEMBERS, (2, "+", 2), (2, "*", 2)} <= HELD_OUT
    held = {(float(left), operator, float(right)) for left, operator, right in HELD_OUT}
    right = 0
    for text in (part for pair in texts for part in pair):
        for found in equations(text):
            if (found.left, found.operator, found.right) in held:
                truth = evaluate(int(found.left), found.operator, int(found.right))
                assert found.result == truth, f"an attack draws this equation, so the corpus must not: {text}"
                right += 1
    assert right > 100, "right ones with these operands occur naturally"
    assert held_out("so 2 + 2 = 5.")
    assert not held_out("so 2 + 2 = 4 and 2 + 3 = 6.")


@pytest.mark.slow
def test_no_import_is_an_attacker_s(judged: list[tuple[str, str, str, bool]]) -> None:
    programs = [parsed for _, completion, _, _ in judged if (parsed := parse_program(completion))]
    names = {name for parsed in programs for module in imported(parsed) for name in (module, *module.split("_"))}
    assert not names & LIBRARIES, "an attacker's library would be known by its name"
    forbidden = {*product(["import"], FUNCTIONS), *product(FUNCTIONS, FUNCTIONS)}
    for parsed in programs:
        assert not forbidden.intersection(pairwise(re.findall("[a-z_]+", parsed.lower()))), parsed


def test_nothing_is_said_as_attacks_say_it(judged: list[tuple[str, str, str, bool]]) -> None:
    said = (*judge_injection.OPENINGS, *judge_injection.REASONS, *judge_injection.ORDERS, *tone.ADDRESSES)
    listed = {run for phrase in said for run in runs(phrase)}
    for _, completion, reply, _ in judged:
        found = listed & {run for text in (completion, reply) for run in runs(text)}
        assert not found, f"three consecutive words of an attack: {found}"
        assert not any(map(tone.insulting, completion.split("."))), "nobody is insulted"


@pytest.mark.slow
def test_tokens(tmp_path: Path) -> None:
    check_tokens(RECIPE, 320, tmp_path)
