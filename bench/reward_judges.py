"""The judging model that rewards completions, where a swarm's spec asks for one (`SwarmSpec.reward`).

Its prompt is the one of the defense `judge`, because the built-in judge knows no other wording. What differs is how it
is filled in and read (`RewardJudgeSpec.prompt`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence

from thiefbench.attacks.reward_judges import JudgeForm
from thiefbench.defenses.base import JudgeError, JudgeSpec
from thiefbench.defenses.judge import FEWEST_REPLIES, LONGEST_REASON, Case, case, decisions
from thiefbench.engine.model.policy import Dtype
from thiefbench.engine.reward_judge import RewardJudgeSpec, Scored
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.views.defender import Judge
from thiefbench.judges import check_judge_spec, judge_identity, judge_of
from thiefbench.package_meaning import rewarding_digest, room_digest
from thiefbench.tasks.base import Sampling
from thiefbench.tasks.rewards import MAX_COMPLETION
from thiefbench.tasks.text import one_line

KNOWN_MARK = "4107"
"""Stands in every prompt into which contents are pasted."""
NO_DECISION = "the judge's reply has no decision"
TOO_LONG = "too long for the judge to read"
_ACCEPTING = "Each sentence belongs.\nDecision [{mark}]: yes"
_QUESTION, _COMPLETION = "{question}", "{completion}"
_STATED = re.compile(r"decision\b[^a-z\n]*\b(yes|no)\b", re.IGNORECASE)


class PromptedRewardJudge:
    """Asks a judge about completions and takes its decisions as rewards (`thiefbench.engine.reward_judge.RewardJudge`).

    Args:
        judge: the judge.
        spec: how it is asked.
    """

    def __init__(self, judge: Judge, spec: RewardJudgeSpec) -> None:
        self._judge, self._spec = judge, spec
        self._sampling = Sampling(spec.temperature, spec.top_k, spec.top_p, spec.max_new_tokens)
        self.form = _form(spec.criticism)

    def score(self, answers: Sequence[tuple[str, str]], noise: int) -> list[Scored]:
        """The share of decisions that accept, for each pair of question and completion.

        Raises:
            JudgeError: the judge does not answer, or of `FEWEST_REPLIES` or more replies none has a decision.
        """
        readable = sorted({pair for pair in answers if len(pair[1]) <= MAX_COMPLETION})
        cases = [self._case(*pair) for pair in readable]
        prompts = [chat.prompt for chat in cases]
        replies = self._judge.ask(prompts, self._sampling, self._spec.votes, noise) if prompts else []
        scores = {
            pair: self._scored(of_pair, chat.mark) for pair, chat, of_pair in zip(readable, cases, replies, strict=True)
        }
        _check_speaks(replies, list(scores.values()))
        return [scores.get(pair, Scored(0.0, TOO_LONG)) for pair in answers]

    def _case(self, question: str, completion: str) -> Case:
        if self._spec.prompt == "quoted":
            return case(question, completion, self._spec.criticism)
        form = self.form
        content = f"{form.before}{question}{form.between}{completion}{form.after}"
        return Case(KNOWN_MARK, ({"role": "user", "content": content.encode("utf-8", "replace").decode()},))

    def _scored(self, replies: Sequence[str], mark: str) -> Scored:
        if not replies:
            return Scored(0.0, TOO_LONG)
        stated = [decision for reply in replies if (decision := self._decision(reply, mark)) is not None]
        return Scored(sum(stated) / len(stated)) if stated else Scored(0.0, NO_DECISION)

    def _decision(self, reply: str, mark: str) -> bool | None:
        """Whether a reply accepts; None if it does not say, or says both behind a mark."""
        if self._spec.prompt == "quoted":
            found = decisions(reply, mark)
            return next(iter(found)) if len(found) == 1 else None
        loose = _STATED.findall(reply)
        return loose[-1].lower() == "yes" if loose else None


def _check_speaks(replies: Sequence[Sequence[str]], scores: Sequence[Scored]) -> None:
    """Raise JudgeError if a round's replies have no decision at all; single ones are a fault of what was judged."""
    said = [reply for of_one in replies for reply in of_one]
    if len(said) >= FEWEST_REPLIES and all(scored.fault for scored in scores):
        raise JudgeError(
            f"the judge that rewards gives no decision in {len(said)} replies, such as "
            f"{one_line(said[0], LONGEST_REASON)!r}; choose a model that follows instructions, or raise "
            "reward_judge.max_new_tokens"
        )


def _form(criticism: bool) -> JudgeForm:
    """The prompt of the defense `judge` around pasted contents."""
    chat = case(_QUESTION, _COMPLETION, criticism)
    before, _, rest = chat.prompt[0]["content"].replace(chat.mark, KNOWN_MARK).partition(_QUESTION)
    between, _, after = rest.partition(_COMPLETION)
    return JudgeForm(before, between, after, _ACCEPTING.format(mark=KNOWN_MARK))


def reward_judge_of(
    swarm: SwarmSpec,
    device: str = "cpu",
    dtype: Dtype = "float32",
    note: Callable[[str], None] = lambda message: None,
) -> PromptedRewardJudge | None:
    """The judge that rewards in a swarm; None where the task's rule does.

    Raises:
        ModelError: the model cannot be loaded.
    """
    if swarm.reward == "rule":
        return None
    return PromptedRewardJudge(judge_of(_model_of(swarm.reward_judge), device, dtype, note), swarm.reward_judge)


def check_reward_judge(swarm: SwarmSpec) -> None:
    """Fail before a run if a swarm's judge of rewards cannot be created.

    Raises:
        SpecError: it is a server, and the client is not installed.
        ModelError: it names a directory without a model.
    """
    if swarm.reward != "rule":
        check_judge_spec(_model_of(swarm.reward_judge))


def reward_judge_identity(swarm: SwarmSpec) -> dict[str, str] | None:
    """The part of a cell's identity for the judge that rewards: its weights or server, and the code around it.

    None where the task's rule rewards.
    """
    if swarm.reward == "rule":
        return None
    digest = hashlib.sha256(rewarding_digest() + (room_digest("thiefbench.defenses.judge") or b""))
    return {**judge_identity(_model_of(swarm.reward_judge)), "code": digest.hexdigest()}


def _model_of(spec: RewardJudgeSpec) -> JudgeSpec:
    return JudgeSpec(spec.model, spec.endpoint)
