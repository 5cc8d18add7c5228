"""The file format of recorded pools, version 1, as types: a header line, then one line per sender and item of a round.

Everything is strict and bounded, because files may come from strangers; docs/pools.md describes the format for people.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from thiefbench.engine.sampler import ControlTokens, sampler
from thiefbench.tasks.base import Sampling

VERSION = 1
LARGEST_REWARD = 1e6
LONGEST_NAME = 200


class MalformedError(ValueError):
    """A line does not follow the format.

    Args:
        reason: in words that do not depend on what strangers wrote, so that equal mistakes are counted together.
        detail: what exactly, printable and short.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason = reason


def _name(text: str) -> str:
    if not text.isprintable():  # names reach terminals and tables
        raise ValueError("must be printable characters")
    return text


def _text(text: str) -> str:
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("half of a surrogate pair is not text")
    return text


Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(_name)]
Text = Annotated[str, AfterValidator(_text)]
Reward = Annotated[float, Field(ge=-LARGEST_REWARD, le=LARGEST_REWARD, allow_inf_nan=False)]
LogProb = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class SamplingFields(_Strict):
    """The sampler's settings (`thiefbench.tasks.base.Sampling`); all but the last are required."""

    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    top_k: Annotated[int, Field(ge=0, lt=2**31)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    max_new_tokens: Annotated[int, Field(ge=1, lt=2**31)]
    control_tokens: ControlTokens = "drawn"

    def settings(self) -> Sampling:
        """The settings for the engine."""
        given = Sampling(self.temperature, self.top_k, self.top_p, self.max_new_tokens)
        return sampler(given, self.control_tokens)


class Header(_Strict):
    """The optional first line of a file.

    Attributes:
        thiefbench_pool: version of the format.
        task, model, tokenizer: notes for readers; nothing that they name is loaded.
        sampling: how honest nodes sample; a defense that compares with the sampler's support needs it.
        seed: determines the order in which defenses see a pool, and their random generator.
    """

    thiefbench_pool: Literal[1]
    task: Annotated[str, Field(max_length=LONGEST_NAME), AfterValidator(_name)] = ""
    model: Annotated[str, Field(max_length=LONGEST_NAME), AfterValidator(_name)] = ""
    tokenizer: Annotated[str, Field(max_length=LONGEST_NAME), AfterValidator(_name)] = ""
    sampling: SamplingFields | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class PromptMessage(_Strict):
    """One message of a chat prompt."""

    role: Name
    content: Text


class Line(_Strict):
    """One sender's answers to one item in one round.

    Attributes:
        round: its number; rounds are replayed in ascending order, whatever the order of the lines.
        sender: who sent it; the same name in every round.
        item: a name that distinguishes the problem from the round's others.
        question, answer: the item's, the same on all of its lines in a round.
        completions, rewards: the texts and their rewards, used unchanged; above 0 counts as rewarded.
        group: the group that advantages are relative to; by default the item.
        prompt: the chat messages given to the model; by default only the question.
        ids: token ids of each completion, without EOS.
        logprobs: the reported log-probs, one per token and one more for EOS if the completion ended.
        ended: whether the completion ended with EOS; by default true.
        malicious: whether the sender is malicious; left out or null if unknown.
        payload: whether each completion carries a payload; null if unknown.
    """

    round: Annotated[int, Field(ge=0, lt=2**31)]
    sender: Name
    item: Name
    question: Text
    answer: Text
    completions: Annotated[list[Text], Field(min_length=1, fail_fast=True)]
    rewards: Annotated[list[Reward], Field(fail_fast=True)]
    group: Name | None = None
    prompt: Annotated[list[PromptMessage], Field(min_length=1, fail_fast=True)] | None = None
    ids: Annotated[list[Annotated[list[TokenId], Field(fail_fast=True)]], Field(fail_fast=True)] | None = None
    logprobs: Annotated[list[Annotated[list[LogProb], Field(fail_fast=True)]], Field(fail_fast=True)] | None = None
    ended: Annotated[list[bool], Field(fail_fast=True)] | None = None
    malicious: bool | None = None
    payload: Annotated[list[bool | None], Field(fail_fast=True)] | None = None

    def check(self) -> None:
        """Raise MalformedError if its lists do not belong together."""
        count = len(self.completions)
        for name in ("rewards", "ids", "logprobs", "ended", "payload"):
            values = getattr(self, name)
            if values is not None and len(values) != count:
                raise MalformedError(f"{name} has another length than completions", f"{len(values)} and {count}")
        if self.logprobs is not None:
            if self.ids is None:
                raise MalformedError("logprobs without ids")
            lengths = [len(ids) + self.has_ended(place) for place, ids in enumerate(self.ids)]
            if [len(logprobs) for logprobs in self.logprobs] != lengths:
                raise MalformedError("logprobs has not one number per token, EOS included where the completion ended")
        if self.malicious is False and self.payload and any(self.payload):
            raise MalformedError("a payload from a sender that is not malicious")

    def has_ended(self, place: int) -> bool:
        """Whether a completion ended with EOS."""
        return self.ended is None or self.ended[place]
