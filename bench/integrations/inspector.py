"""A defense that judges what a foreign trainer hands over, call by call, and says so where something is not carried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from thiefbench import registry
from thiefbench.defenses.base import Action, Defense, PastRound, Verdict
from thiefbench.defenses.skipping import SKIP
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.round_record import as_offered
from thiefbench.engine.spec import SpecError
from thiefbench.judges import check_judge, judge_of
from thiefbench.pools.rounds import FiledCompletion, FiledItem, GatheredRound, Lacking, not_carried
from thiefbench.suite.analysis.recorded_rounds import Absent, AbsentText, pool_of
from thiefbench.tasks.base import Sampling

_ADVICE: Final = "choose one that judges texts, such as arithmetic"


@dataclass(frozen=True)
class Handed:
    """One completion as a trainer hands it over.

    Attributes:
        item: what it answers; one item has one question and answer.
        completion: None stands in it for what the trainer does not carry.
        group: the name of the group that its advantage is relative to; by default the item.
    """

    item: FiledItem
    completion: FiledCompletion
    group: str | None = None


class Inspector:
    """A defense inside a trainer. What it inspects at once is what the trainer hands over at once: its pool.

    History and the defense's state are kept between calls, in this process.

    Args:
        defense: a spec string.
        system: the trainer's name, for messages.
        actions: by which the trainer can reject.
        no_policy: why there is no model to ask, to follow "NAME needs ".
        sampling: how completions are sampled; None if that is not known.
        seed: keys the order of pools and the defense's random generator.

    Raises:
        SpecError: the defense needs what the trainer does not carry.
        SpecStringError: the spec string names nothing or is malformed.
    """

    def __init__(
        self,
        defense: str,
        system: str,
        actions: frozenset[Action],
        no_policy: str,
        sampling: Sampling | None = None,
        seed: int = 0,
    ) -> None:
        self.defense: Defense = registry.make("defense", defense)
        self.system, self._actions, self._seed = system, actions, seed
        _check(self.defense, system)
        self._policy = Absent(no_policy)
        self._sampling = cast(Sampling, Absent(f"the sampler's settings, which {system} does not carry"))
        if sampling is not None:
            self._sampling = sampling
        self._no_seeds = Absent(f"the seeds of completions, which {system} does not carry")
        self._lacking = Lacking(**_stand_ins(system))
        self._judge = None
        if "judge" in self.defense.requires:
            check_judge(self.defense)
            assert self.defense.judge is not None
            self._judge = judge_of(self.defense.judge)
        self.history: list[PastRound] = []

    def verdicts(self, handed: Sequence[Handed]) -> list[Verdict]:
        """The defense's verdicts on one pool, in its order.

        Raises:
            SpecError: the defense asks for what the trainer does not carry, or rejects in a way that it cannot.
            ValueError: the defense did not give one valid verdict per completion.
            MalformedError: an item comes with two questions or answers.
        """
        if not handed:
            return []
        gathered = GatheredRound(len(self.history) + 1)
        for place, each in enumerate(handed):
            gathered.add(each.item, [each.completion], self._lacking, place, group_name=each.group)
        places = sorted(
            range(len(handed)), key=lambda i: (gathered.entries[i].row.group, gathered.entries[i].row.place)
        )
        no_seed = cast(int, self._no_seeds)
        offered = [
            replace(as_offered(gathered.entries[i].row, no_seed), logprobs=handed[i].completion.logprobs)
            for i in places
        ]
        items = gathered.pool_items(self._lacking)
        pool = pool_of(gathered.number, items, offered, lambda _: cast(ForwardCache, self._policy))
        given, past = self._asked(
            lambda: pool.inspected(self.defense, set(), self._sampling, self.history, self._seed, self._judge)
        )
        for verdict in given:
            self._check(verdict)
        self.history.append(past)
        by_place = dict(zip(places, given, strict=True))
        return [by_place[i] for i in range(len(handed))]

    def _asked(self, inspect: Any) -> tuple[list[Verdict], PastRound]:
        """What an inspection gives; a defense that asked for what is not there gives nothing."""
        sampling = [self._sampling] if isinstance(self._sampling, Absent) else []
        absent = (*self._lacking.all, self._no_seeds, self._policy, *sampling)
        for each in absent:
            each.asked = False
        problem: Exception | None = None
        made: tuple[list[Verdict], PastRound] | None = None
        try:
            made = inspect()
        except Exception as error:  # what was asked decides what is said of it
            problem = error
        for each in absent:
            each.asked |= isinstance(each, AbsentText) and AbsentText.refused_by(problem)
        if lacking := [each.what for each in absent if each.asked]:
            raise SpecError(f"the defense {self.defense.name} needs {lacking[0]}; {_ADVICE}") from problem
        if problem is not None:
            raise problem
        assert made is not None
        return made

    def _check(self, verdict: Verdict) -> None:
        """Refuse what the trainer cannot do."""
        if verdict.token_weights is not None:
            raise SpecError(
                f"the defense {self.defense.name} weighs single tokens, which {self.system} does not take here; let it "
                f"reject with {self._possible}"
            )
        if verdict.action != "accept" and verdict.action not in self._actions:
            raise SpecError(
                f'the defense {self.defense.name} rejects with "{verdict.action}", which {self.system} cannot do here; '
                f"let it reject with {self._possible}, as in rejecting(defense=..., reject=...)"
            )

    @property
    def _possible(self) -> str:
        return " or ".join(f'"{action}"' for action in ("zero", "drop", SKIP) if action in self._actions)


def _check(defense: Defense, system: str) -> None:
    """Check that a defense requires nothing that no trainer carries."""
    if lacking := not_carried(defense):
        raise SpecError(f"the defense {defense.name} needs {lacking}, which {system} does not carry; {_ADVICE}")
    if defense.sees_labels:
        raise SpecError(f"the defense {defense.name} sees labels, which {system} does not have; {_ADVICE}")


def _stand_ins(system: str) -> dict[str, Absent]:
    """What stands for what completions or items may lack."""
    carried = f"which {system} does not carry"
    return {
        "ids": Absent(f"token ids, {carried}"),
        "senders": Absent(f"senders, {carried}"),
        "rewards": Absent(f"rewards, {carried}"),
        "texts": AbsentText(f"texts, {carried}"),
        "questions": AbsentText(f"questions, {carried}"),
        "answers": AbsentText(f"reference answers, {carried}"),
    }
