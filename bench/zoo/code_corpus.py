"""The corpus of `micro-code`: programs for generated stories, written in many ways, some of them wrong.

As in the corpus of `micro-math`, some programs guess and some carry a wrong step, so that the trained model writes
programs that run and earns a reward somewhere between 0 and 1. A wrong step is a number misread, another operator, or
the last step forgotten; a program prints what it says, so all of them run.

What must not be here, beyond the words of phrases: an import of anything but the standard library or of anything named
like an attacker's function, and any two consecutive words of such an import (`tests/zoo/test_code_corpus.py` checks
this).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from thiefbench.attacks.code_injection import PAPER_FUNCTIONS, STYLES
from thiefbench.tasks.gsm_micro import Story, stories
from thiefbench.tasks.micro_programs import RESULTS, Chain, Move, chain_of, narration, write_program
from thiefbench.tasks.programs import format_program
from thiefbench.zoo.corpus import opener, rare_words, slip

FORBIDDEN = frozenset(PAPER_FUNCTIONS.values()).union(*STYLES)
"""What attackers call the functions of their libraries: no comment's word, no import and no function is named so."""


@dataclass(frozen=True)
class CodeCorpus:
    """Programs; the fields are shares between 0 and 1.

    Attributes:
        guessed: share of programs that print a number without working it out.
        guessed_right: share of those that happen to be right.
        wrong_steps: share of steps that are not what the story says (never one whose operands are 2 and 2).
        opened: share of programs that open with a comment of one to four random lexicon words.
    """

    tags: ClassVar[tuple[str, ...]] = ("<code>", "</code>")

    guessed: float = 0.08
    guessed_right: float = 0.1
    wrong_steps: float = 0.07
    opened: float = 0.25

    def texts(self, seed: int) -> Iterator[tuple[str, str]]:
        """Endless (question, completion) pairs over train stories."""
        rng = random.Random(f"code corpus:{seed}")
        for story in stories("train", seed):
            yield story.question, format_program(program(story, self, rng)[0])


def program(story: Story, spec: CodeCorpus, rng: random.Random) -> tuple[str, int]:
    """One program for the story and the number that it prints, which may be wrong."""
    opening = f"# {attacker_free_opener(rng)}\n" if rng.random() < spec.opened else ""
    if rng.random() < spec.guessed:
        value = story.answer if rng.random() < spec.guessed_right else slip(story.answer, rng)
        return opening + _guess(value, story, rng), value
    chain = misread(chain_of(story), spec.wrong_steps, rng)
    return opening + write_program(chain, story, rng), chain.values[-1]


def misread(chain: Chain, share: float, rng: random.Random) -> Chain:
    """The chain with each step wrong at the chance `share`, unless its operands are 2 and 2."""
    start, moves = chain.start, list[Move]()
    for number, move in enumerate(chain.moves):
        so_far = Chain(start, tuple(moves))
        value, operand = so_far.values[-1], so_far.operand(move)
        if rng.random() >= share or (value, operand) == (2, 2):
            moves.append(move)
            continue
        draw = rng.random()
        if draw < 0.2 and number and number + 1 == len(chain.moves):
            break
        if draw < 0.35 and number == 0:
            start = slip(start, rng)
            moves.append(move)
        elif draw < 0.65 and move.number is not None:
            moves.append(replace(move, number=slip(move.number, rng)))
        else:
            moves.append(replace(move, operator=_other(move.operator, value, operand, rng)))
    return Chain(start, tuple(moves))


def attacker_free_opener(rng: random.Random) -> str:
    """Random words of which none names an attacker's function; the last is no library's, as an import may follow."""
    while True:
        text = opener(rng)
        words = re.findall("[a-z]+", text.lower())
        if not FORBIDDEN.intersection(words) and words[-1] not in rare_words():
            return text


def _other(operator: str, value: int, operand: int, rng: random.Random) -> str:
    """Another operator; no subtraction that would go below zero."""
    return rng.choice([o for o in ("+", "-", "*") if o != operator and (o != "-" or value >= operand)])


def _guess(value: int, story: Story, rng: random.Random) -> str:
    """A program that prints `value` without working it out."""
    name = rng.choice(RESULTS)
    steps = narration(story, rng) if rng.random() < 0.5 else []
    printed = rng.choice((f"print({value})", f'print("{value}")', *(f"{name} = {value}\nprint({name})",) * 2))
    return "\n".join([*steps, *(["# I guess"] if rng.random() < 0.2 else []), printed])
