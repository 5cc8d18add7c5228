"""A round's pool as every honest node holds it, and how a defense gets to see it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from thiefbench.defenses.base import (
    Action,
    DefenderView,
    Defense,
    ItemFacts,
    LabelledView,
    PastRound,
    PoolCompletion,
    Verdict,
)
from thiefbench.engine.keys import generator, key
from thiefbench.engine.learning.cohort import TrainingRow
from thiefbench.engine.model.forward_cache import CompletionKey, ForwardCache
from thiefbench.engine.views.defender import DefenderJudge, DefenderPolicy, Judge
from thiefbench.tasks.base import Item, Sampling


@dataclass(frozen=True)
class Pool:
    """All completions of a round, ordered by group and place.

    Attributes:
        round: the round's number.
        items: of every group.
        offered: completions as defenses see them.
        answers: the same, as the policy reads them.
        reading: the policy's reading of them, shared by the defense and the update.
        prompts: by item id, which of the reading's prompts it is.
    """

    round: int
    items: Sequence[Item]
    offered: Sequence[PoolCompletion]
    answers: Sequence[CompletionKey]
    reading: ForwardCache
    prompts: dict[str, int]

    def with_gradient(self) -> list[CompletionKey]:
        """Answers of the groups with two different rewards: learned from unless the defense prevents it."""
        rewards: dict[int, set[float]] = {}
        for offered in self.offered:
            rewards.setdefault(offered.group, set()).add(offered.reward)
        placed = zip(self.answers, self.offered, strict=True)
        return [answer for answer, offered in placed if len(rewards[offered.group]) > 1]

    def lessons(self, verdicts: Sequence[Verdict]) -> list[TrainingRow]:
        """The rows as they enter the update; one verdict per row, in order."""
        return [
            TrainingRow(
                prompt=answer[0],
                targets=answer[1],
                reward=offered.reward if verdict.action == "accept" else 0.0,
                kept=verdict.action != "drop",
                token_weights=verdict.token_weights,
                group=offered.group,
                old_logprobs=offered.logprobs,
            )
            for answer, offered, verdict in zip(self.answers, self.offered, verdicts, strict=True)
        ]

    def inspected(
        self,
        defense: Defense,
        payload: set[tuple[int, int]],
        sampling: Sampling,
        history: Sequence[PastRound],
        seed: int,
        judge: Judge | None = None,
    ) -> tuple[list[Verdict], PastRound]:
        """A defense's verdicts in pool order, and the inspection as later rounds remember it.

        Args:
            defense: sees the pool in keyed-shuffled order, so that position tells nothing.
            payload: (group, place) of completions that carry the payload, for defenses that see labels.
            sampling: the swarm's settings.
            history: of finished rounds.
            seed: the cell's.
            judge: whom the defense may ask.

        Raises:
            ValueError: the defense gave something else than one verdict per completion.
        """
        order = shuffled(seed, self.round, len(self.offered))
        offered = tuple(self.offered[i] for i in order)
        noise = key(seed, "defense", self.round)  # hashed: the seed itself would tell the payload
        known = {
            "round": self.round,
            "completions": offered,
            "items": {item.id: ItemFacts(item.question, item.answer) for item in self.items},
            "sampling": sampling,
            "history": tuple(history),
            "rng": generator(seed, "defense", self.round),
            "policy": DefenderPolicy(self.reading, sampling, self.prompts, (noise,)),
            "judge": None if judge is None else DefenderJudge(judge, key(seed, "judge", self.round)),
        }
        view = DefenderView(**known)  # type: ignore[arg-type]
        if defense.sees_labels:
            truth = tuple((each.group, each.index) in payload for each in offered)
            view = LabelledView(**known, payload=truth)  # type: ignore[arg-type]
        verdicts = tuple(defense.inspect(view))
        if len(verdicts) != len(offered):
            raise ValueError(
                f"the defense {defense.name} gave {len(verdicts)} verdicts for {len(offered)} completions; "
                "inspect returns one per completion, in the view's order"
            )
        for verdict, completion in zip(verdicts, offered, strict=True):
            _check_verdict(verdict, completion, defense.name)
        placed = dict(zip(order, verdicts, strict=True))
        past = tuple(replace(each, seed=None, proof=None, logprobs=None) for each in offered)
        return [placed[i] for i in range(len(placed))], PastRound(self.round, past, verdicts)


def shuffled(seed: int, number: int, size: int) -> list[int]:
    """Pool indices in the order that the defense sees in a round."""
    return generator(seed, "shuffle", number).sample(range(size), size)


def _check_verdict(verdict: object, completion: PoolCompletion, defense: str) -> None:
    """Raise ValueError where a defense answered something that is not a verdict on this completion."""
    if not isinstance(verdict, Verdict) or verdict.action not in get_args(Action):
        raise ValueError(f"the defense {defense} gave {verdict!r}; a verdict's action is accept, zero or drop")
    weights = verdict.token_weights
    if weights is not None and (
        len(weights) != completion.length or not all(math.isfinite(weight) for weight in weights)
    ):
        raise ValueError(
            f"the defense {defense} gave {len(weights)} token weights for {completion.length} tokens (EOS included); "
            "it gives one finite number per token"
        )
