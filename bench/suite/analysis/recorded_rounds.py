"""The interface of recorded rounds for a replay, whoever recorded them, and placeholders for missing data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from thiefbench.defenses.base import Defense, PoolCompletion, Verdict
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.pool import Pool
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.views.defender import Judge
from thiefbench.errors import UserError
from thiefbench.suite.store.records import Score
from thiefbench.tasks.base import Item, Sampling


class ReplayError(UserError):
    """A defense cannot be replayed on a recorded pool. One sentence for the user."""


class LackingError(ReplayError):
    """The recording lacks what the defense needs; the defense itself has not failed."""


class NotRecordedError(Exception):
    """A defense asked for something that the recording lacks."""


class Absent:
    """A placeholder for data that a recording lacks: a pool's forward passes and the policy, or token ids.

    It remembers every access, so that a defense that catches the error and continues gets no score either.

    Args:
        what: what is missing and what to do about it, to follow "NAME needs ".
    """

    def __init__(self, what: str) -> None:
        self.what, self.asked = what, False

    @property
    def policy(self) -> Absent:
        """Accessed by the view of the policy before any question."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying an object looks for such
            raise AttributeError(name)
        self._ask()

    def __len__(self) -> int:
        self._ask()

    def __iter__(self) -> Iterator[int]:
        self._ask()

    def __getitem__(self, place: object) -> int:
        self._ask()

    def __add__(self, other: object) -> tuple[int, ...]:
        self._ask()

    def _computed(self, *_: object) -> Any:
        self._ask()

    # Python looks these up on the class, past __getattr__: what a number or a text is asked by its operators.
    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = _computed
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __abs__ = __round__ = _computed
    __float__ = __int__ = __index__ = __contains__ = __bool__ = __str__ = __format__ = _computed

    def __eq__(self, other: object) -> bool:
        self._ask()

    def __hash__(self) -> int:
        self._ask()

    def _ask(self) -> NoReturn:
        self.asked = True
        raise NotRecordedError(f"there is no such thing here: {self.what}")


class AbsentText(Absent):
    """As `Absent`, for a text: code written in C, such as `re`, refuses it by its type before it asks it anything."""

    @classmethod
    def refused_by(cls, problem: Exception | None) -> bool:
        """Whether an error is such a refusal; its message names the type that came in place of a text."""
        return isinstance(problem, TypeError) and cls.__name__ in str(problem)


class Recorded(Protocol):
    """Rounds that a defense may judge again."""

    @property
    def pools(self) -> Mapping[int, Sequence[CompletionRow]]:
        """The rows of every round, ordered by cohort, group and index; rounds ascend."""

    @property
    def cohorts(self) -> Sequence[Recorded]:
        """The same for each cohort, which has its own pools and its own defense."""

    @property
    def kept(self) -> Sequence[int]:
        """The rounds whose policy is available."""

    @property
    def absent(self) -> Sequence[Absent]:
        """The placeholders in the pools for data that was not recorded."""

    @property
    def seed(self) -> int:
        """The seed for the order of pools and the defense's random generator."""

    @property
    def sampling(self) -> Sampling:
        """The swarm's."""

    @property
    def swarm(self) -> SwarmSpec | None:
        """The swarm's settings; None if they are not recorded."""

    @property
    def without_policy(self) -> str:
        """Why there is no policy and what to do about it, to follow "NAME needs "."""

    def lacks(self, defense: Defense) -> str:
        """Why this recording lacks what a defense requires; empty if it lacks nothing."""

    def judge_for(self, defense: Defense) -> Judge | None:
        """The judge for a defense that requires one."""

    def pool(self, number: int, cache_of: Callable[[Sequence[Item]], ForwardCache]) -> Pool:
        """A round's pool; `cache_of` creates the forward cache for its distinct items' prompts."""

    def pool_with_policy(self, number: int) -> Pool:
        """A round's pool with its model."""

    def scores(self, actions: Mapping[int, Sequence[Verdict]]) -> dict[str, Score]:
        """Rejection rates of verdicts on some rounds, each round's in the order of its pool."""


def pool_of(
    number: int,
    items: Sequence[Item],
    offered: Sequence[PoolCompletion],
    cache_of: Callable[[Sequence[Item]], ForwardCache],
) -> Pool:
    """The pool of recorded completions.

    Args:
        number: the round.
        items: of every group.
        offered: ordered by group and index.
        cache_of: creates the forward cache for the distinct items' prompts; if it returns an `Absent`, the pool has
            no answers for a policy.
    """
    distinct = {item.id: item for item in items}
    prompts = {item_id: place for place, item_id in enumerate(distinct)}
    reading = cache_of(list(distinct.values()))
    answers = []
    if isinstance(reading, ForwardCache):
        closing = (reading.policy.eos,)
        answers = [(prompts[each.item_id], each.ids + (closing if each.ended else ())) for each in offered]
    return Pool(number, items, offered, answers, reading, prompts)
