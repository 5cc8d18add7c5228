"""What arrives at a GenRL peer, read as the pool of a round. Everything in it was chosen by strangers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from thiefbench.defenses.base import ACCEPT, Defense, PastRound, PoolCompletion, Verdict
from thiefbench.engine.context import items_of
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.pool import Pool
from thiefbench.engine.spec import SpecError
from thiefbench.engine.views.defender import Judge
from thiefbench.integrations.genrl.messages import item_name, received_item
from thiefbench.pools.rounds import CARRIED, not_carried
from thiefbench.suite.analysis.recorded_rounds import Absent
from thiefbench.tasks.base import Item, Sampling, Task

MOST_CHARACTERS = 20_000
"""Of a received question, answer, test program or completion."""
MOST_GROUPS = 64
"""Of one sender in one round."""

_DEFAULT_TOP_K = 50
"""What transformers' `generate` takes where GenRL's `top_k` is None."""
_NEUTRAL = {"min_p": (None, 0.0), "repetition_penalty": (None, 1.0)}
"""Settings that change the sampler in a way that defenses do not follow, with the values that change nothing."""
_NO_SEEDS = "the seeds of completions, and a GenRL message holds only texts"


@dataclass(frozen=True)
class ReceivedGroup:
    """One message: all completions of one sender for one item.

    Attributes:
        sender: the key under which it lay in the DHT. GenRL signs nothing, so it is a claim.
        batch: the name that it was sent under, the MD5 of the question in honest ones.
        node: its number among the sender's messages for this item.
        item: the item in the sender's words; its id is the task's where question, answer and tests are the task's.
        texts: the completions.
        refused: why the message is not used, or an empty string; item and texts are then empty.
    """

    sender: str
    batch: str
    node: int
    item: Item
    texts: tuple[str, ...]
    refused: str = ""

    @property
    def name(self) -> tuple[str, str]:
        """The name of its game tree."""
        return self.sender, self.batch


@dataclass(frozen=True)
class ReceivedPool:
    """A round's pool at one node.

    Attributes:
        round: from 1.
        groups: those that were read, in a fixed order.
        refused: those that were not.
        offered: every completion, group by group.
        problems: why completions are refused, by their position in `offered`.
    """

    round: int
    groups: tuple[ReceivedGroup, ...]
    refused: tuple[ReceivedGroup, ...]
    offered: tuple[PoolCompletion, ...]
    problems: Mapping[int, str]


class PoolReader:
    """Reads messages with a node's own model and task.

    Args:
        trainer: the node's `GRPOLanguageTrainerModule`, whose model is used in place.
        task: rewards completions and makes prompts.
        group: G, completions per message.

    Attributes:
        policy, sampling: the node's model and how its trainer samples.
        known: the task's training items by question.

    Raises:
        SpecError: the trainer samples in a way that defenses do not follow.
    """

    def __init__(self, trainer: Any, task: Task, group: int) -> None:
        self.policy = Policy(trainer.model, trainer.processing_class)
        self.sampling = sampling_of(trainer.args)
        self.task, self.group = task, group
        self.known = {item.question: item for item in items_of(task, "train")}
        self._no_seed = Absent(_NO_SEEDS)

    def read(self, number: int, messages: Mapping[Any, Any]) -> ReceivedPool:
        """The pool of round `number`.

        A message that is not a group of `group` texts for a question of a bounded length is refused; so is a completion
        that no honest node could have sampled, because it is empty, too long or has a control token inside. Such a
        completion could break a node's update: GenRL divides by the number of tokens.
        """
        read = [
            self._group(sender, batch, node, message)
            for sender, batches in messages.items()
            for batch, nodes in (batches.items() if isinstance(batches, Mapping) else [("", [batches])])
            for node, message in enumerate(nodes if isinstance(nodes, Sequence) else [nodes])
        ]
        read.sort(key=lambda group: (group.sender, group.batch, group.node))
        sent: Counter[str] = Counter()
        groups: list[ReceivedGroup] = []
        refused: list[ReceivedGroup] = []
        for group in read:
            sent[group.sender] += 1
            reason = group.refused or (f"more than {MOST_GROUPS} messages" if sent[group.sender] > MOST_GROUPS else "")
            (refused if reason else groups).append(group)
        offered: list[PoolCompletion] = []
        problems: dict[int, str] = {}
        for place, group in enumerate(groups):
            rewards = self.task.reward(group.item, group.texts)
            for index, (text, reward) in enumerate(zip(group.texts, rewards, strict=True)):
                ids = tuple(self.policy.encode(text))
                if problem := self._problem(ids):
                    problems[len(offered)] = problem
                    ids = ids[: self.sampling.max_new_tokens]
                offered.append(
                    PoolCompletion(
                        group.item.id, place, index, group.sender, ids, text, len(ids) < self.sampling.max_new_tokens,
                        0.0 if problem else reward, seed=cast(int, self._no_seed), refused=bool(problem),
                    )
                )  # fmt: skip
        return ReceivedPool(number, tuple(groups), tuple(refused), tuple(offered), problems)

    def inspected(
        self, pool: ReceivedPool, defense: Defense, history: Sequence[PastRound], seed: int, judge: Judge | None
    ) -> tuple[list[Verdict], PastRound]:
        """A defense's verdicts on a pool, in its order, and what it remembers of the round.

        Raises:
            SpecError: the defense asks for what GenRL does not carry, or weights tokens.
        """
        items = {group.item.id: group.item for group in pool.groups}
        prompts = [self.policy.prompt_ids(self.task.messages(item)) for item in items.values()]
        cache = ForwardCache(self.policy, prompts)
        places = {item_id: place for place, item_id in enumerate(items)}
        shown = Pool(pool.round, list(items.values()), pool.offered, (), cache, places)
        self._no_seed.asked = False
        try:
            verdicts, past = shown.inspected(defense, set(), self.sampling, history, seed, judge)
        except Exception as error:
            if self._no_seed.asked:
                raise SpecError(f"the defense {defense.name} needs {_NO_SEEDS}") from error
            raise
        if any(verdict.token_weights is not None for verdict in verdicts):
            raise SpecError(
                f"the defense {defense.name} weighs single tokens, which GenRL's loss does not take; let it "
                'reject with "drop"'
            )
        return verdicts, past

    def _group(self, sender: object, batch: object, node: int, message: object) -> ReceivedGroup:
        name = (str(sender), str(batch)[:100], node)
        if node > 0:
            return self._refused(name, "a second message for an item")
        try:
            state = message.world_state.environment_states  # type: ignore[attr-defined]
            texts = message.actions  # type: ignore[attr-defined]
            item = received_item(state)
        except (AttributeError, KeyError, TypeError):
            return self._refused(name, "no message of this game")
        if not isinstance(texts, list) or len(texts) != self.group:
            return self._refused(name, f"not {self.group} completions")
        everything = (item.question, item.answer, item.tests, *texts)
        if not all(isinstance(each, str) and len(each) <= MOST_CHARACTERS for each in everything):
            return self._refused(name, f"something that is not text of at most {MOST_CHARACTERS} characters")
        if item_name(item.question) != batch:
            return self._refused(name, "another name than its question's")
        prompt = self.policy.encode(item.question)
        room = self.policy.context
        if not self.policy.special.isdisjoint(prompt):
            return self._refused(name, "a control token in the question")
        if room is not None and len(self.policy.prompt_ids(self.task.messages(item))) + self._limit > room:
            return self._refused(name, "a question that leaves no room for a completion")
        known = self.known.get(item.question)
        facts = (item.answer, item.tests)
        same = known is not None and facts == (known.answer, known.tests)
        # Two senders can send one question with different answers.
        item_id = known.id if known is not None and same else f"{batch}-{hashlib.md5(repr(facts).encode()).hexdigest()}"
        return ReceivedGroup(*name, Item(item_id, item.question, item.answer, "", item.tests), tuple(texts))

    @property
    def _limit(self) -> int:
        return self.sampling.max_new_tokens

    def _problem(self, ids: tuple[int, ...]) -> str:
        if not ids:
            return "empty"
        if len(ids) > self._limit:
            return f"{len(ids)} tokens, over the limit of {self._limit}"
        return "" if self.policy.special.isdisjoint(ids) else "a control token inside the completion"

    @staticmethod
    def _refused(name: tuple[str, str, int], reason: str) -> ReceivedGroup:
        return ReceivedGroup(*name, Item("", "", "", ""), (), reason)


def accepted(pool: ReceivedPool) -> list[Verdict]:
    """The verdicts of a node without a defense."""
    return [ACCEPT] * len(pool.offered)


def sampling_of(config: Any) -> Sampling:
    """How a GenRL trainer samples.

    Raises:
        SpecError: in a way that defenses do not follow.
    """
    unsupported = [name for name, plain in _NEUTRAL.items() if getattr(config, name, None) not in plain]
    if unsupported:
        raise SpecError(
            f"of a sampler's settings a defense knows only temperature, top_k and top_p; leave "
            f"{', '.join(unsupported)} at the default"
        )
    top_k = _DEFAULT_TOP_K if config.top_k is None else config.top_k
    return Sampling(config.temperature, top_k, config.top_p, config.max_new_tokens)


def check_defense(defense: Defense) -> None:
    """Check that a defense needs nothing that GenRL does not carry.

    "homogeneous" is granted: peers start from the same weights and drift apart, because each learns from its own groups
    and a sample of the others'. What this costs shows in the false rejection rate.

    Raises:
        SpecError: it does.
    """
    if lacking := not_carried(defense, CARRIED - {"logprobs"}):
        raise SpecError(
            f"the defense {defense.name} needs {lacking}, and a GenRL message holds only texts; choose one that judges "
            "texts, such as similarity"
        )
    if defense.sees_labels:
        raise SpecError(f"the defense {defense.name} sees labels, which no peer of a live swarm has")
    if getattr(defense, "reject", "drop") == "mask":
        raise SpecError(
            f"the defense {defense.name} weighs single tokens, which GenRL's loss does not take; let it reject with "
            '"drop"'
        )
