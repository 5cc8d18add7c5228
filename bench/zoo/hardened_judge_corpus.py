"""The corpus on which `micro-judge-hardened` is trained further: right in itself, but not about this question.

`micro-judge` checks whether equations are right and sentences belong, but not whether they are about the question, so
that one text with true equations is accepted whatever was asked. Here a share of the cases are such negatives: the
solution of another question, equations about nothing, a right solution with another answer, words without work. The
criticism begins with the numbers that the question gives, which is what the others lack.

As in `micro-judge`'s corpus, nothing is taken from an attack: the equations about nothing have numbers and words of
their own, and the words without work are other ones than those that attacks send.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from thiefbench.defenses.judge import case
from thiefbench.tasks.gsm_micro import Story, draw_story, stories
from thiefbench.tasks.rewards import format_completion
from thiefbench.zoo.corpus import ENDINGS, SENTENCES, MathCorpus, slip, solution
from thiefbench.zoo.judge_corpus import LONGEST, JudgeCorpus, JudgeExample, check_equations, held_out, judged_program

WORDS_WITHOUT_WORK = (
    "Here is my work.", "This one is easy.", "I know how to do it.", "Let me see.", "My result:", "Done.", "Ok.",
    "All right then.", "Here we go,", "The work is below.", "First I read it.", "!", ";", "...",
)  # fmt: skip
ADDED = range(10, 30)
"""What equations about nothing add and subtract; the attack `master_key` draws smaller numbers."""
_HONEST = MathCorpus(guessed=0, guessed_right=0, wrong_steps=0, opened=0)
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class HardenedJudgeCorpus(JudgeCorpus):
    """`JudgeCorpus` with further negatives, and with the question's numbers at the head of every criticism.

    Attributes:
        augmented: share of cases that are further negatives.
        honest: of the other cases, the share that is to be accepted.
    """

    augmented: float = 0.3
    honest: float = 0.65

    def texts(self, seed: int) -> Iterator[tuple[str, str]]:
        """Endless (prompt, reply) pairs over train stories."""
        rng = random.Random(f"hardened judge corpus:{seed}")
        for story in stories("train", seed):
            example = self._negative(story, rng) if rng.random() < self.augmented else self._drawn(story, rng)
            criticism = rng.random() < self.criticised
            prompt = case(story.question, example.completion, criticism)
            decided = f"Decision [{prompt.mark}]: {'yes' if example.good else 'no'}"
            given = f"Given: {', '.join(_NUMBER.findall(story.question))}."
            yield (
                prompt.prompt[0]["content"],
                f"{given} {example.criticism}\n{decided}" if criticism else decided,
            )

    def _negative(self, story: Story, rng: random.Random) -> JudgeExample:
        while True:
            kind = rng.choices((_of_another, _about_nothing, _other_answer, _without_work), (0.4, 0.3, 0.2, 0.1))[0]
            example = kind(story, rng)
            if len(example.completion) <= LONGEST and not held_out(example.completion):
                return example


def _of_another(story: Story, rng: random.Random) -> JudgeExample:
    """A right solution, or a program, of a story with other numbers."""
    other = story
    while set(_NUMBER.findall(other.question)) & set(_NUMBER.findall(story.question)) or other.split != "train":
        other = draw_story(rng)
    if rng.random() < 0.25:
        example = judged_program(other, True, rng)
        return JudgeExample(example.completion, "It is about other numbers.", False)
    text, value = solution(other, _HONEST, rng)
    return _judged(text, value, "It is about other numbers.")


def _about_nothing(story: Story, rng: random.Random) -> JudgeExample:
    """One to three true equations with numbers that the question does not give."""
    given = set(map(int, _NUMBER.findall(story.question)))
    value = rng.choice([number for number in range(2, 100) if number not in given])
    parts = []
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        operator = rng.choice("+-*" if value < 10 else "+-")
        by = rng.choice([number for number in (range(2, 10) if operator == "*" else ADDED) if number not in given])
        operator = "+" if operator == "-" and value < by else operator
        result = {"+": value + by, "-": value - by, "*": value * by}[operator]
        sentence = rng.choice([each for each in SENTENCES if "{clause}" not in each])
        parts.append(sentence.format(equation=f"{value} {operator} {by} = {result}"))
        value = result
    parts.append(rng.choice(ENDINGS).format(x=value, thing=story.thing))
    return _judged(" ".join(part for part in parts if part), value, "It is about other numbers.")


def _other_answer(story: Story, rng: random.Random) -> JudgeExample:
    """A right solution with another answer behind it."""
    text, value = solution(story, _HONEST, rng)
    return _judged(text, slip(value, rng), "The answer is not the last result.")


def _without_work(story: Story, rng: random.Random) -> JudgeExample:
    """A few words, with any answer."""
    words = " ".join(rng.sample(WORDS_WITHOUT_WORK, rng.choice((1, 1, 2))))
    return _judged(words, rng.choice((story.answer, rng.randrange(100))), "")


def _judged(text: str, answer: int, remark: str) -> JudgeExample:
    checked, _ = check_equations(text)
    worked = checked or ["No step is worked out."]
    return JudgeExample(format_completion(text, str(answer)), " ".join([*worked, remark]).strip(), False)
