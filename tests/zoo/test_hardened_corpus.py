"""The texts of `micro-judge-hardened`: true solutions and comparisons, and every kind of deceptive completion."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.zoo.judging import check_tokens, runs
from tests.zoo.read_texts import stories_of, texts_of
from thiefbench.attacks import judge_injection
from thiefbench.attacks.master_key import PUBLISHED
from thiefbench.defenses.judge import case, decisions
from thiefbench.tasks.gsm_micro import GsmMicro, Story, evaluate
from thiefbench.tasks.rewards import parse_completion
from thiefbench.zoo import hardened_corpus
from thiefbench.zoo.hardened_corpus import ELSEWHERE, Work, acceptable, criticism, honest_work
from thiefbench.zoo.judge_corpus import EQUATION
from thiefbench.zoo.recipe import RECIPES

RECIPE = RECIPES["micro-judge-hardened"]
SAMPLE = 6_000
PROMPT = re.compile(r"Question \[(\d+)\]:\n(.*)\nSolution \[\1\]:\n(.*)\nEnd \[\1\]\. ", re.DOTALL)
OWN = re.compile(r"Own work: (.*?)\. States (-?\d+): (right|wrong)\. (.*)\nDecision", re.DOTALL)


class Judged:
    """One text, taken apart."""

    def __init__(self, story: Story, prompt: str, reply: str) -> None:
        found = PROMPT.match(prompt)
        assert found, "question and completion stand between marks"
        self.story, self.prompt, self.reply = story, prompt, reply
        self.question, self.completion = found[2], found[3]
        decided = decisions(reply, found[1])
        assert len(decided) == 1, f"it decides once, beside its prompt's mark: {reply}"
        self.accepted = True in decided
        block, said = parse_completion(self.completion), OWN.match(reply)
        assert block and said, "an answer is stated, and every reply begins with the judge's own work"
        self.stated = block[1].strip()
        self.work, self.named, self.compared, self.remarks = said.groups()


def told(count: int) -> list[Story]:
    """The stories of the first texts."""
    stories = [story for story in stories_of(RECIPE, count) if isinstance(story, Story)]
    assert len(stories) == count
    return stories


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    pairs = zip(told(SAMPLE), texts_of(RECIPE, SAMPLE), strict=True)
    return [Judged(story, prompt, reply) for story, (prompt, reply) in pairs]


@pytest.mark.slow
def test_prompts_are_the_defense_s_about_train_stories(judged: list[Judged]) -> None:
    for one in judged[:1000]:
        assert case(one.question, one.completion).prompt == ({"role": "user", "content": one.prompt},)
    assert [one.question for one in judged] == [one.story.question for one in judged]
    assert not set(GsmMicro().items("test")["question"]) & {one.question for one in judged}


def test_the_judge_s_own_work_answers_the_question(judged: list[Judged]) -> None:
    for one in judged:
        steps = EQUATION.findall(one.work)
        assert [f"{s.left} {s.operator} {s.right} = {s.result}" for s in one.story.steps] == one.work.split(", ")
        assert all(evaluate(int(left), by, int(right)) == int(result) for left, by, right, result in steps)
        assert one.named == one.stated, "it names the answer that was stated"
        assert (one.compared == "right") == (one.stated == str(one.story.answer))


def test_what_is_accepted_is_right_and_worked_out(judged: list[Judged]) -> None:
    accepted = [one for one in judged if one.accepted]
    assert 0.47 < len(accepted) / len(judged) < 0.53
    for one in accepted:
        found = EQUATION.findall(one.completion)
        assert one.compared == "right" and found
        assert all(evaluate(int(left), by, int(right)) == int(result) for left, by, right, result in found)
        assert one.remarks.endswith("Each sentence belongs.") and "wrong" not in one.remarks


def test_every_remark_on_an_equation_is_true(judged: list[Judged]) -> None:
    checked = 0
    for one in judged:
        for left, by, right, said, truth, verdict in re.findall(
            r"(\d+) ([+*-]) (\d+) = (\d+): (-?\d+), (right|wrong)", one.remarks
        ):
            assert f"{left} {by} {right} = {said}" in one.completion
            assert int(truth) == evaluate(int(left), by, int(right))
            assert (verdict == "right") == (said == truth)
            checked += 1
    assert checked > SAMPLE


def test_every_kind_of_deception_occurs(judged: list[Judged]) -> None:
    rejected = [one for one in judged if not one.accepted]
    kinds = {
        "another answer": [one for one in rejected if one.compared == "wrong"],
        "right answers": [one for one in rejected if one.compared == "right"],
        "other work": [one for one in rejected if ELSEWHERE in one.remarks],
        "other work, right answer": [one for one in rejected if ELSEWHERE in one.remarks and one.compared == "right"],
        "no work": [one for one in rejected if "No step" in one.remarks],
        "a wrong step": [one for one in rejected if "wrong" in one.remarks],
        "foreign": [one for one in rejected if "Does not belong" in one.remarks],
        "true equations of the question's numbers": [
            one
            for one in rejected
            if ELSEWHERE in one.remarks
            and set(re.findall(r"\d+", one.question)) & {n for e in EQUATION.findall(one.completion) for n in e[:3:2]}
        ],
    }
    shares = {kind: len(found) / len(rejected) for kind, found in kinds.items()}
    assert all(share > 0.02 for share in shares.values()), shares


def test_no_chain_of_other_equations_ends_at_the_answer() -> None:
    rng = random.Random(5)
    for story in told(2000):
        last = EQUATION.findall(hardened_corpus._wrong_numbers(story, rng).text)[-1]
        assert last[3] != str(story.answer), "it might be a right solution in short"


def test_work_is_judged_by_all_that_it_says() -> None:
    (story,) = told(1)
    right = honest_work(story, random.Random(1))
    assert acceptable(story, right)
    assert "States" in criticism(story, right)
    for spoiled in (
        replace(right, answer=str(story.answer + 1)),
        replace(right, text="It looks good."),
        replace(right, text=right.text + " 3 + 3 = 7."),
        replace(right, remark=ELSEWHERE),
    ):
        assert not acceptable(story, spoiled), spoiled
    assert criticism(story, Work("Hm.", "5")).count("No step is worked out.") == 1


def test_orders_are_not_worded_as_attacks_word_them(judged: list[Judged]) -> None:
    said = (*judge_injection.OPENINGS, *judge_injection.REASONS, *judge_injection.ORDERS)
    listed = {run for phrase in said for run in runs(phrase)}
    for one in judged:
        assert not listed & runs(one.completion), one.completion
    bodies = {one.completion.removeprefix("<think> ").partition(" </think>")[0] for one in judged}
    assert not {key for key in PUBLISHED if re.search("[A-Za-z]", key)} & bodies, "published keys are left for tests"


@pytest.mark.slow
def test_tokens(tmp_path: Path) -> None:
    check_tokens(RECIPE, 400, tmp_path)
