"""The settings of a judging model that rewards completions, and what the engine asks of it (`SwarmSpec.reward`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from thiefbench.attacks.reward_judges import JudgeForm
from thiefbench.engine.heterogeneity import STRICT, SpecError
from thiefbench.engine.keys import generator

Rewarding = Literal["rule", "judge", "mixed"]
JudgePrompt = Literal["pasted", "quoted"]


@dataclass(frozen=True)
class RewardJudgeSpec:
    """The judging model that rewards completions.

    Attributes:
        model: a built-in model, a local directory or a hub name; with `endpoint`, the name it is served under.
        endpoint: base URL of an OpenAI-compatible server; None loads the model.
        prompt: "pasted" puts question and completion into a prompt that everyone knows, as they come, and takes the
            last decision anywhere in the reply, as deployed swarms do. "quoted" is the prompt of the defense `judge`:
            control tokens are broken up, and a decision counts only beside a mark that the quoted text cannot contain.
        criticism: whether the judge writes a criticism before its decision.
        votes: replies drawn for a completion; its reward is the share of decisions that accept it.
        share: in swarms with reward: mixed, the share of items for which nobody has a rule, so that the judge rewards
            their completions.
        temperature, top_k, top_p, max_new_tokens: how replies are sampled.

    Raises:
        SpecError: a value is out of range.
    """

    __pydantic_config__ = STRICT

    model: str = "micro-judge"
    endpoint: str | None = None
    prompt: JudgePrompt = "pasted"
    criticism: bool = True
    votes: int = 1
    share: float = 0.5
    temperature: float = 0.6
    top_k: int = 10
    top_p: float = 0.9
    max_new_tokens: int = 256

    def __post_init__(self) -> None:
        if not self.model:
            raise SpecError("reward_judge.model must name a model")
        if self.prompt not in get_args(JudgePrompt):
            raise SpecError(f"reward_judge.prompt must be {' or '.join(get_args(JudgePrompt))}, got {self.prompt!r}")
        if not 0 < self.share < 1:
            raise SpecError(f"reward_judge.share must lie between 0 and 1, got {self.share}")
        if self.votes < 1 or self.max_new_tokens < 1:
            raise SpecError("reward_judge.votes and reward_judge.max_new_tokens must be at least 1")
        if not (self.temperature > 0 and 0 < self.top_p <= 1 and self.top_k >= 0):
            raise SpecError(
                "reward_judge.temperature must be above 0, top_p above 0 and at most 1, and top_k at least 0, got "
                f"{self.temperature}, {self.top_p} and {self.top_k}"
            )


@dataclass(frozen=True)
class Scored:
    """What a judge says about one completion.

    Attributes:
        reward: in [0, 1]; 0 with a fault.
        fault: why there is no reward, as a clause, such as a reply without a decision; empty if there is one.
    """

    reward: float
    fault: str = ""


class RewardJudge(Protocol):
    """A judging model that rewards completions."""

    @property
    def form(self) -> JudgeForm:
        """Its prompt and its decision in words, which are public."""

    def score(self, answers: Sequence[tuple[str, str]], noise: int) -> list[Scored]:
        """The reward of each pair of question and completion.

        Args:
            answers: the pairs; equal ones get equal rewards, and their order does not matter.
            noise: key of the seed and the round, for drawing replies.

        Raises:
            JudgeError: it does not answer, or not one of its replies has a decision.
        """


class CachedRewardJudge:
    """A judge of rewards that caches what it says, for pools that are judged repeatedly with few changes.

    Args:
        judge: the judge; what it says of a completion must not depend on the others.
    """

    def __init__(self, judge: RewardJudge) -> None:
        self._judge = judge
        self._scores: dict[tuple[str, str, int], Scored] = {}

    @property
    def form(self) -> JudgeForm:
        """The judge's."""
        return self._judge.form

    def score(self, answers: Sequence[tuple[str, str]], noise: int) -> list[Scored]:
        """The judge's rewards; it is asked only about what is new."""
        new = [pair for pair in dict.fromkeys(answers) if (*pair, noise) not in self._scores]
        if new:
            scores = self._judge.score(new, noise)
            self._scores |= {(*pair, noise): scored for pair, scored in zip(new, scores, strict=True)}
        return [self._scores[*pair, noise] for pair in answers]


def has_rule(rewarding: Rewarding, judge: RewardJudgeSpec, item_id: str) -> bool:
    """Whether nodes have a rule that can reward an item's completions; in mixed swarms, some items have none."""
    return rewarding != "mixed" or generator("has a rule", item_id).random() >= judge.share
