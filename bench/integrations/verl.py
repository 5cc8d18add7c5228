"""A defense inside verl's rewards (as of verl 0.9.1).

verl has two kinds of reward manager. `AbstractRewardManager.__call__` gets a whole batch; 0.9.1 still ships it, but its
own trainer no longer calls it, as that of 0.8.0.dev did. `RewardManagerBase.run_single` gets one completion at a time,
in one of several processes. Both give back rewards and nothing else: advantages are computed elsewhere, from all of
them. So a defense can make a reward 0 there, but no row can leave its group or be skipped. This module does not import
verl.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from thiefbench.defenses.base import Action
from thiefbench.integrations.inspector import Handed, Inspector
from thiefbench.pools.rounds import FiledCompletion, FiledItem
from thiefbench.rollouts.fields import digest

SYSTEM: Final = "verl's reward manager"
_ACTIONS: Final[frozenset[Action]] = frozenset({"zero"})
_NO_POLICY: Final = "the policy, and verl's reward manager holds no model"


class DefendedRewards:
    """Put it before a reward manager, so that a defense inspects what it rewards.

    ``class Rewards(DefendedRewards, NaiveRewardManager): defense = "blacklist"``, named by
    ``reward.reward_manager.source=importlib`` with ``name`` and ``module.path``. Rejected completions get the reward 0;
    the field ``thiefbench_rejected`` of what the manager reports beside the reward says which, 0 or 1.

    With `run_single`, every call is a pool of one completion. History and state are those of one process.

    Attributes:
        defense: a spec string.
        defense_seed: keys the order of pools and the defense's random generator.

    Raises:
        SpecError: when the class is made, if the defense needs what verl does not carry; when something is rewarded, if
            it asks for that, or rejects otherwise than with reward 0.
    """

    defense: ClassVar[str]
    defense_seed: ClassVar[int] = 0

    def __init_subclass__(cls, **changes: Any) -> None:
        super().__init_subclass__(**changes)
        _inspector(cls.defense, cls.defense_seed)

    def __call__(self, data: Any, return_dict: bool = False) -> Any:
        """The rewards of a batch; see `AbstractRewardManager.__call__`."""
        made = super().__call__(data, return_dict=True)  # type: ignore[misc]  # the manager's
        rewards = made["reward_tensor"]
        handed = [self._handed(data[row], float(rewards[row].sum()), data) for row in range(len(data))]
        rejected = [verdict.action != "accept" for verdict in self._inspected.verdicts(handed)]
        rewards = rewards.clone()
        for row, each in enumerate(rejected):
            if each:
                rewards[row] = 0
        if not return_dict:
            return rewards
        extra = {**made.get("reward_extra_info", {}), "thiefbench_rejected": list(map(int, rejected))}
        return {**made, "reward_tensor": rewards, "reward_extra_info": extra}

    async def run_single(self, data: Any) -> dict[str, Any]:
        """The reward of one completion; see `RewardManagerBase.run_single`."""
        made = await super().run_single(data)  # type: ignore[misc]  # the manager's
        last = data[-1:]
        (verdict,) = self._inspected.verdicts([self._handed(last[0], float(made["reward_score"]), last)])
        rejected = verdict.action != "accept"
        extra = {**made.get("reward_extra_info", {}), "thiefbench_rejected": int(rejected)}
        return {**made, "reward_score": 0.0 if rejected else made["reward_score"], "reward_extra_info": extra}

    @property
    def _inspected(self) -> Inspector:
        own = self.__dict__
        if "_inspector" not in own:
            own["_inspector"] = _inspector(self.defense, self.defense_seed)
        inspector: Inspector = own["_inspector"]
        return inspector

    def _handed(self, row: Any, reward: float, data: Any) -> Handed:
        """A completion as a row of a `DataProto` has it; the group is verl's uid."""
        tokenizer: Any = self.__dict__["tokenizer"]
        tensors, others = row.batch, row.non_tensor_batch
        width = tensors["responses"].shape[-1]
        length = int(tensors["attention_mask"][-width:].sum())
        ids = tuple(map(int, tensors["responses"][:length].tolist()))
        ended = bool(ids) and ids[-1] == tokenizer.eos_token_id
        text = tokenizer.decode(list(ids), skip_special_tokens=True)
        prompt_mask = tensors["attention_mask"][:-width]
        prompt = [int(token) for token, there in zip(tensors["prompts"], prompt_mask, strict=True) if there]
        messages = tuple(
            (str(message["role"]), str(message["content"])) for message in others.get("raw_prompt", ())
        )  # what data sets with return_raw_chat carry
        users = [content for role, content in messages if role == "user"]
        question = "\n".join(users) or tokenizer.decode(prompt, skip_special_tokens=True)
        truth = (others.get("reward_model") or {}).get("ground_truth")
        answer = str(truth) if isinstance(truth, str | int | float) else None
        uid = str(others["uid"]) if "uid" in others else None
        logged = "rollout_log_probs" in tensors.keys()  # noqa: SIM118  (a TensorDict has no `in`)
        reported = tensors["rollout_log_probs"][:length].tolist() if logged else None
        filed = FiledCompletion(
            None, text, reward, ids=ids[:-1] if ended else ids, ended=ended,
            logprobs=None if reported is None else tuple(map(float, reported)),
        )  # fmt: skip
        return Handed(FiledItem(f"prompt-{digest(question, answer or '')}", question, answer, messages), filed, uid)


def _inspector(defense: str, seed: int) -> Inspector:
    return Inspector(defense, SYSTEM, _ACTIONS, _NO_POLICY, seed=seed)
