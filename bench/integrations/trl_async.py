"""A defense inside TRL's asynchronous GRPO trainer (`trl.experimental.async_grpo`, as of TRL 1.16.0).

Its rollout loop scores one group at a time, in a process of its own that holds no model.
`_AsyncRolloutLoop._score_group` sums the reward functions, leaves a completion whose reward is None out of its group's
mean, and gives every completion one advantage. `DefendedScoring` asks a defense between the two. This module does not
import trl.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from thiefbench.defenses.base import Action, Verdict
from thiefbench.defenses.skipping import SKIP
from thiefbench.engine.spec import SpecError
from thiefbench.integrations.inspector import Handed, Inspector
from thiefbench.pools.rounds import FiledCompletion, FiledItem
from thiefbench.tasks.base import Sampling

SYSTEM: Final = "TRL's asynchronous trainer"
_ACTIONS: Final[frozenset[Action]] = frozenset({"zero", "drop", SKIP})
_NO_POLICY: Final = "the policy, and the process that scores in TRL's asynchronous trainer holds no model"


class DefendedScoring:
    """Put it before a rollout loop, so that its groups are scored behind a defense.

    ``class Defended(DefendedScoring, _AsyncRolloutLoop): defense = "arithmetic"``, and a subclass of
    `AsyncRolloutWorker` with ``_loop_cls = Defended``. The loop's `_score_group` runs once for the rewards and, if
    something is rejected, again for the advantages: "zero" makes a reward 0, "drop" makes it None, and "skip" leaves it
    and sets the completion's own advantage to 0. Metrics are those of the rewards before the verdicts, and
    ``thiefbench/rejected``.

    Attributes:
        defense: a spec string.
        defense_seed: keys the order of pools and the defense's random generator.

    Raises:
        SpecError: when the class is made, if the defense needs what the trainer does not carry; when a group is scored,
            if it asks for that, or if TRL is too old.
    """

    defense: ClassVar[str]
    defense_seed: ClassVar[int] = 0

    def __init_subclass__(cls, **changes: Any) -> None:
        super().__init_subclass__(**changes)
        _inspector(cls.defense, cls.defense_seed)

    async def _score_group(self, group: Any) -> list[Any]:
        """The samples of a group; see `_AsyncRolloutLoop._score_group`."""
        if not hasattr(group, "completions_sequences"):
            raise SpecError("DefendedScoring reads groups as TRL 1.16 makes them; the installed TRL does not")
        score = super()._score_group  # type: ignore[misc]  # the loop's
        samples: list[Any] = await score(group)
        own = self.__dict__
        inspector = own.setdefault("_inspector", None) or _inspector(self.defense, self.defense_seed, _sampling(own))
        own["_inspector"] = inspector
        # One completion may give several samples, or none.
        places = [place for place, rows in enumerate(group.completions_sequences) for _ in rows]
        rewards = [math.nan] * len(group.completions)
        for place, sample in zip(places, samples, strict=True):
            rewards[place] = float(sample.metrics["reward"])
        eos = getattr(own.get("tokenizer"), "eos_token_id", None)
        verdicts = inspector.verdicts(_handed(group, rewards, eos))
        for place, sample in zip(places, samples, strict=True):
            sample.metrics["thiefbench/rejected"] = float(verdicts[place].action != "accept")
        if any(verdict.action != "accept" for verdict in verdicts):
            again = await self._scored_again(score, group, list(map(_after, verdicts, rewards)))
            for place, sample, other in zip(places, samples, again, strict=True):
                sample.advantage = 0.0 if verdicts[place].action == SKIP else other.advantage
        return samples

    async def _scored_again(self, score: Any, group: Any, rewards: Sequence[float | None]) -> list[Any]:
        """The samples of a group with these rewards instead of those of functions and environments."""

        def after_verdicts(**_: Any) -> list[float | None]:
            return list(rewards)

        changed = {
            "reward_funcs": [after_verdicts], "reward_func_names": ["after_verdicts"], "_env_reward_types": [],
            "_provides_rollout_reward": False,
        }  # fmt: skip
        before = {name: self.__dict__[name] for name in changed if name in self.__dict__}
        self.__dict__.update(changed)
        try:
            samples: list[Any] = await score(group)
            return samples
        finally:
            for name in changed:
                self.__dict__.pop(name)
            self.__dict__.update(before)


def _inspector(defense: str, seed: int, sampling: Sampling | None = None) -> Inspector:
    return Inspector(defense, SYSTEM, _ACTIONS, _NO_POLICY, sampling, seed)


def _sampling(loop: dict[str, Any]) -> Sampling | None:
    """What the loop asks of vLLM: temperature and length, and nothing that narrows the distribution."""
    if not {"temperature", "max_tokens"} <= loop.keys():
        return None
    return Sampling(temperature=loop["temperature"], top_k=0, top_p=1.0, max_new_tokens=loop["max_tokens"])


def _after(verdict: Verdict, reward: float) -> float | None:
    """The reward after the verdict; NaN before: no function scored it."""
    if verdict.action == "drop" or math.isnan(reward):
        return None
    return 0.0 if verdict.action == "zero" else reward


def _handed(group: Any, rewards: Sequence[float], eos: int | None) -> list[Handed]:
    """A group's completions. The column `answer` of the data set, where it has one, is the reference answer."""
    answers = group.reward_kwargs.get("answer")
    handed = []
    for place, (prompt, completion) in enumerate(zip(group.prompts, group.completions, strict=True)):
        answer = None if answers is None else str(answers[place])
        messages = tuple((message["role"], str(message["content"])) for message in prompt)
        question = "\n".join(content for role, content in messages if role == "user")
        item = FiledItem(f"group-{group.group_id}", question, answer, messages)
        text = "\n".join(str(message.get("content") or "") for message in completion if message["role"] == "assistant")
        ids = tuple(group.completions_ids[place])
        logprobs = tuple(
            float(value)
            for row in group.completions_sequences[place]
            for learned, value in zip(row.completion_mask, row.old_log_probs, strict=True)
            if learned
        )
        ended = bool(ids) and ids[-1] == eos
        reward = 0.0 if math.isnan(rewards[place]) else rewards[place]
        filed = FiledCompletion(
            None, text, reward, ids=ids[:-1] if ended else ids, ended=ended,
            # After a tool's answer, tokens may have been written anew, so that numbers are missing.
            logprobs=logprobs if len(logprobs) == len(ids) else None,
        )  # fmt: skip
        handed.append(Handed(item, filed))
    return handed
