"""`grounding`: words that are not the question's must stand where the policy's own answers have such words."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

from thiefbench.defenses.base import DefenderView, Defense, Requirement, Verdict
from thiefbench.defenses.rejection import Objection, Range, RejectOrMask, checked, judged
from thiefbench.tasks.base import Message

_TOKEN = re.compile(r"(?P<word>[^\W\d_]+)|(?P<number>\d+)|</?\w+>|[^\w\s]")
_NUMBER, _ASKED, _FOREIGN, _EDGE = "0", "a", "w", "edge"
"""What stands for numbers, words of the question, foreign words and an answer's edge; all other marks are neither
digits nor letters, but for tags, which have brackets."""


class Phrase(NamedTuple):
    """Words of an answer between two things that are no foreign words.

    Attributes:
        contexts: the two things, "_" between them; the same with what stands before them, and with what follows. "0" is
            a number, "a" a word of the question, "w" foreign words and "edge" an answer's edge; all else is itself.
        words: foreign words, that is, words that the question does not contain, as many as stand in a row; "" stands
            for one word of the question.
        place: where it stands in the answer.
    """

    contexts: tuple[str, ...]
    words: str
    place: Range


class Grounding(Defense):
    """Reject completions with foreign words in a place where the policy itself hardly ever writes any.

    Foreign words are those that the question does not contain. In "Omar hides 3, so 9 - 3 = 6", where the question says
    that Omar sold 3, "hides" stands between a word of the question and a number. Which words stand there in answers of
    the policy shows the policy: in every round it answers the round's questions itself. It reads no reward and no
    sender, so that neither names nor the pool can mislead it.

    An answer is cut into its foreign phrases. A phrase's p-value in a context (see `Phrase`) is the share of the
    foreign phrases and the question's words there that are foreign and at most as frequent, by the number of own
    answers with them; the lowest of its contexts counts. This is conformal prediction in categories (Vovk, Gammerman
    and Shafer, Algorithmic Learning in a Random World, 2005, section 4.5): an opening word that nobody has used before
    is usual where every opening differs, and a verb that nobody has used is not where all verbs come from the question.
    A completion's score is its lowest p-value.

    What it cannot see:

    - false words that the question contains elsewhere ("Omar sells 7", where he has sold 3 and lost 7);
    - foreign words that the policy uses in the same context for something else ("Omar saves 3", where coupons save):
      it takes a few rounds of own answers until the wider contexts show these, and a payload is learned as fast;
    - foreign words where the policy writes many different ones, such as a phrase before or after the solution (`text`),
      or where it writes too little to compare with, such as between marks that it hardly uses;
    - numbers (`equations`) and lengths (`dos`);
    - what the policy has learned, as it then writes it itself.

    So it stops an attacker that does not know it, under any name and from the first round on, and one that chooses its
    words to suit gets past. Where answers hardly take words from the question, it stops nothing and rejects nothing: so
    it is with the human solutions of GSM8K, one for each of 4,000 questions to learn from.

    Args:
        false_rejection: the threshold for p-values: the share of the phrases in any one context that may be rejected
            though the policy has written them. Of completions it rejects about as many where a few contexts take nearly
            all of their words from the question: 0.9 to 1.7 % in five swarms without attack. While own answers have
            used a context fewer than 1 / false_rejection times, nothing in it is rejected.
        samples: own answers to every question in every round. With few, a foreign word in the first round is no rarer
            than an honest one. Sampling them is the cost: with the default, rounds took 1.7 and 1.9 times as
            long in two swarms without attack.
        system: the system prompt that the swarm puts before a question, if any. Left out where there is one, own
            answers are worded otherwise than the pool.
        reject: "drop", "zero", or "mask": the row is accepted and still counts in its group's mean and std, but nothing
            is learned from the phrases, and its advantage goes to the other tokens.
    """

    name: ClassVar[str] = "grounding"
    requires: ClassVar[frozenset[Requirement]] = frozenset({"homogeneous"})

    def __init__(
        self,
        false_rejection: float = 0.01,
        samples: int = 12,
        system: str = "",
        reject: RejectOrMask = "drop",
    ) -> None:
        if not 0 < false_rejection < 1 or samples < 1:
            raise ValueError("grounding: false_rejection lies between 0 and 1, and samples is at least 1")
        self.false_rejection, self.samples, self.system = false_rejection, samples, system
        self.reject: RejectOrMask = checked(self.name, reject, RejectOrMask)
        self.usage = Usage()

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject what scores below the threshold; the score is the p-value."""
        for answer in self._own_answers(view):
            self.usage.add(answer)
        p_values = PValues(self.usage)
        objections = {}
        for place, completion in enumerate(view.completions):
            phrases = phrases_of(completion.text, words_of(view.items[completion.item_id].question))
            unusual = [(p, phrase) for phrase in phrases if (p := p_values(phrase)) < self.false_rejection]
            if unusual:
                score, worst = min(unusual)
                reason = f"{worst.words[:60]!r} is not the question's, p-value {score:.4f}"
                objections[place] = Objection(score, reason, tuple(phrase.place for _, phrase in unusual))
        return judged(view, objections, self.reject)

    def _own_answers(self, view: DefenderView) -> list[list[Phrase]]:
        """The phrases of the policy's answers to the round's questions."""
        questions = [view.items[item_id].question for item_id in sorted(view.items) for _ in range(self.samples)]
        texts = view.policy.generate([self._prompt(question) for question in questions], view.sampling.max_new_tokens)
        return [
            list(phrases_of(text, words_of(question))) for question, text in zip(questions, texts, strict=True) if text
        ]

    def _prompt(self, question: str) -> list[Message]:
        before: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return [*before, {"role": "user", "content": question}]

    def state(self) -> dict[str, Any]:
        """How often own answers have used what."""
        return {"usage": self.usage.rows()} if self.usage.uses else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.usage = Usage.from_rows(state.get("usage", ()))


class Usage:
    """How often the policy's own answers use foreign words, by context.

    Attributes:
        uses: by context and words, how often the words stand there; "" counts the words of the question.
        answers: in how many answers.
    """

    def __init__(self) -> None:
        self.uses: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.answers: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, answer: Iterable[Phrase]) -> None:
        """Count an answer's phrases."""
        uses = [(context, phrase.words) for phrase in answer for context in phrase.contexts]
        for context, words in uses:
            self.uses[context][words] += 1
        for context, words in set(uses):
            self.answers[context][words] += 1

    def rows(self) -> list[list[str | int]]:
        """What was counted, as JSON."""
        return [
            [context, words, count, self.answers[context][words]]
            for context, counts in self.uses.items()
            for words, count in counts.items()
        ]

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Any]]) -> Usage:
        """Make it again from `rows`."""
        usage = cls()
        for context, words, uses, answers in rows:
            usage.uses[context][words] = uses
            usage.answers[context][words] = answers
        return usage


class PValues:
    """How unusual a new phrase is in its contexts: the share of uses that are foreign and at most as frequent.

    The phrase itself counts as one use, and a phrase in an own answer is as frequent as in the other own answers.
    """

    def __init__(self, usage: Usage) -> None:
        self._answers = usage.answers
        self._total = {context: counts.total() for context, counts in usage.uses.items()}
        self._frequencies: dict[str, list[int]] = {}
        self._reached: dict[str, list[int]] = {}
        for context, counts in usage.uses.items():
            foreign = sorted((usage.answers[context][words] - 1, count) for words, count in counts.items() if words)
            self._frequencies[context] = [frequency for frequency, _ in foreign]
            self._reached[context] = list(accumulate((count for _, count in foreign), initial=0))

    def __call__(self, phrase: Phrase) -> float:
        """The lowest p-value of a phrase in an answer that was not counted; 1 for words of the question."""
        known = [context for context in phrase.contexts if context in self._total] if phrase.words else []
        return min((self._in(context, phrase.words) for context in known), default=1.0)

    def _in(self, context: str, words: str) -> float:
        as_rare = self._reached[context][bisect_right(self._frequencies[context], self._answers[context][words])]
        return (as_rare + 1) / (self._total[context] + 1)


@dataclass
class _Part:
    """Foreign words, or one token of another kind.

    Attributes:
        mark: how it appears in a context.
        place: where it stands.
        words: the foreign words.
    """

    mark: str
    place: Range
    words: list[str] = field(default_factory=list)


def words_of(question: str) -> set[str]:
    """A question's words, in lower case."""
    return {match[0].lower() for match in _TOKEN.finditer(question) if match["word"]}


def phrases_of(answer: str, asked: set[str]) -> Iterator[Phrase]:
    """An answer's foreign phrases, and the question's words that have no foreign word beside them.

    Args:
        answer: its text.
        asked: the words of the question.
    """
    parts = [_Part(_EDGE, (0, 0))]
    for match in _TOKEN.finditer(answer):
        token, place = match[0].lower(), match.span()
        if not match["word"]:
            parts.append(_Part(_NUMBER if match["number"] else token, place))
        elif token in asked:
            parts.append(_Part(_ASKED, place))
        elif parts[-1].words:
            parts[-1].words.append(token)
            parts[-1].place = (parts[-1].place[0], place[1])
        else:
            parts.append(_Part(_FOREIGN, place, [token]))
    parts.append(_Part(_EDGE, (0, 0)))
    marks = [part.mark for part in parts]
    for number, part in enumerate(parts):
        if (part.words or part.mark == _ASKED) and _FOREIGN not in (marks[number - 1], marks[number + 1]):
            beside = f"{marks[number - 1]} _ {marks[number + 1]}"
            wider = f"{' '.join(marks[max(0, number - 2) : number])} _ {marks[number + 1]}"
            further = f"{marks[number - 1]} _ {' '.join(marks[number + 1 : number + 3])}"
            yield Phrase(tuple(dict.fromkeys((beside, wider, further))), " ".join(part.words), part.place)
