"""Defenses that `thiefbench leaderboard check` is to find fault with, each with one fault."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np

from thiefbench.defenses.answer_keys import ANSWER_KEYS, key_of, public_of
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Requirement, Verdict
from thiefbench.defenses.rule_rewards import RULE_REWARDS, rule_reward_of

COUNTER = itertools.count()


class Fine(Defense):
    """Accepts everything, and remembers how many rounds it saw."""

    name: ClassVar[str] = "fine"

    def __init__(self) -> None:
        self.rounds = 0

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.rounds += 1
        return [ACCEPT] * len(view.completions)

    def state(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def restore(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


class Positional(Fine):
    """Judges by place."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("zero") if place % 5 == 0 else ACCEPT for place, _ in enumerate(view.completions)]


class DrawsAndCounts(Positional):
    """Judges by place, after a draw that it does not use."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        view.rng.random()
        return super().inspect(view)


class DrawsBySlot(Fine):
    """Rejects a few that it draws, whatever the order of the pool."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        slots = sorted((offered.group, offered.index) for offered in view.completions)
        drawn = set(view.rng.sample(slots, len(slots) // 8))
        return [Verdict("zero") if (o.group, o.index) in drawn else ACCEPT for o in view.completions]


class Counting(Fine):
    """Counts over all its instances."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        number = float(next(COUNTER))
        return [Verdict("accept", number)] * len(view.completions)


class Hashing(Fine):
    """Judges by Python's own hash of a text."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("accept", float(hash(offered.text) % 1000)) for offered in view.completions]


class Clock(Fine):
    """Judges by the time."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("accept", time.perf_counter())] * len(view.completions)


class Letters(Fine):
    """Judges by the letters of a pseudonym."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("accept", float(len(o.sender)) + ord(o.sender[-1])) for o in view.completions]


class Forgets(Fine):
    """Does not take back its state."""

    def restore(self, state: dict[str, Any]) -> None:
        pass


class HashesLater(Fine):
    """Rejects from round 2 on what comes first out of a set of earlier texts."""

    def __init__(self) -> None:
        self.texts: set[str] = set()

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        first = next(iter(set(self.texts)), None)
        self.texts |= {each.text for each in view.completions}
        return [Verdict("drop") if each.text == first else ACCEPT for each in view.completions]

    def state(self) -> dict[str, Any]:
        return {"texts": sorted(self.texts)}

    def restore(self, state: dict[str, Any]) -> None:
        self.texts = set(state["texts"])


class Hides(Fine):
    """Its verdicts depend on rounds that its state does not tell of."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.rounds += 1
        return [Verdict("accept", float(self.rounds))] * len(view.completions)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


class LateToFail(Fine):
    """Raises in its third round."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        if view.round == 3:
            raise RuntimeError("too late")
        return super().inspect(view)


class Remembers(Fine):
    """Rejects everything from its ninth round on, of which its state does not tell."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.rounds += 1
        return [ACCEPT if self.rounds < 9 else Verdict("zero")] * len(view.completions)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


class RemembersFirst(Fine):
    """Zeroes in round 4 what comes from whoever stood first in round 3."""

    def __init__(self) -> None:
        self.first = ""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        if view.round == 3:
            self.first = view.completions[0].sender
        return [
            Verdict("zero") if view.round == 4 and each.sender == self.first else ACCEPT for each in view.completions
        ]

    def state(self) -> dict[str, Any]:
        return {"first": self.first}

    def restore(self, state: dict[str, Any]) -> None:
        self.first = state["first"]


class LettersLater(Fine):
    """Judges by the letters of a pseudonym in round 20."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        letters = sum(ord(each) for each in view.completions[0].sender)
        return [Verdict("accept", float(letters)) if view.round == 20 else ACCEPT for _ in view.completions]


class PositionalAtSize(Fine):
    """Judges by place in pools as large as those of suites."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        large = len(view.completions) == 384
        return [Verdict("zero") if large and place % 5 == 0 else ACCEPT for place, _ in enumerate(view.completions)]


class Averages(Fine):
    """Its scores are averages of those that it gave before."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        before = [verdict.score for past in view.history for verdict in past.verdicts]
        assert None not in before, "every verdict had a score"
        mean = math.fsum(score for score in before if score is not None) / max(1, len(before))
        return [Verdict("accept", (mean + len(each.text)) / 2) for each in view.completions]


class RemembersNumbers(Fine):
    """Keeps what the policy says of a text, which is no longer so once the policy has learned."""

    requires: ClassVar[frozenset[Requirement]] = frozenset({"homogeneous"})

    def __init__(self, floor: float = -4.0) -> None:
        super().__init__()
        self.floor = floor
        self.means: dict[str, float] = {}

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        new = [each for each in view.completions if each.text not in self.means]
        for each, logprobs in zip(new, view.policy.token_logprobs(new), strict=True):
            self.means[each.text] = float(logprobs.mean()) if len(logprobs) else 0.0
        self.rounds += 1
        return [ACCEPT if self.means[each.text] > self.floor else Verdict("drop") for each in view.completions]


class RemembersLong(Fine):
    """Rejects everything from its 62nd round on, of which its state does not tell."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.rounds += 1
        return [ACCEPT if self.rounds < 62 else Verdict("zero")] * len(view.completions)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


class KeysOfNumbers(Fine):
    """Forgets that keys in JSON are text."""

    def __init__(self) -> None:
        self.counts: dict[Any, int] = {}

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.counts[view.round] = self.counts.get(view.round - 1, 0) + 1
        return [Verdict("accept", float(self.counts[view.round]))] * len(view.completions)

    def state(self) -> dict[str, Any]:
        return {"counts": self.counts}

    def restore(self, state: dict[str, Any]) -> None:
        self.counts = state["counts"]


class SharesStrikes(Fine):
    """Counts in a dictionary of the class, which all instances share."""

    strikes: ClassVar[dict[str, int]] = {}

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        for sender in {each.sender for each in view.completions}:
            self.strikes[sender] = self.strikes.get(sender, 0) + 1
        return [Verdict("drop") if self.strikes[each.sender] >= 8 else ACCEPT for each in view.completions]

    def state(self) -> dict[str, Any]:
        return {"strikes": dict(self.strikes)}

    def restore(self, state: dict[str, Any]) -> None:
        self.strikes.clear()
        self.strikes.update(state["strikes"])


class Spots(Fine):
    """Draws from a generator without a seed."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        rng = random.Random()
        return [Verdict("drop") if rng.random() < 0.3 else ACCEPT for _ in view.completions]


class SpotsTogether(Fine):
    """Draws from the generator of its process."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("drop") if random.random() < 0.3 else ACCEPT for _ in view.completions]


class SpotsOfNumpy(Fine):
    """The same, of numpy."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("drop") if np.random.rand() < 0.3 else ACCEPT for _ in view.completions]


class Reasons(Fine):
    """Gives reasons in the order of a set."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        names = {str(number) for number in range(50)}
        return [Verdict("accept", reason=f"in {' '.join(names)}") for _ in view.completions]


class Caches(Fine):
    """Keeps what the policy said of a text in an earlier round."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, tuple[int, ...], bool], float] = {}

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        keys = [(each.item_id, each.ids, each.ended) for each in view.completions]
        new = {key: each for key, each in zip(keys, view.completions, strict=True) if key not in self.known}
        said = view.policy.token_logprobs(list(new.values()))
        self.known |= {key: float(row.sum()) for key, row in zip(new, said, strict=True)}
        return [Verdict("accept", self.known[key]) for key in keys]

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


class Window(Fine):
    """After a restart its window has no end, which changes no verdict."""

    def __init__(self) -> None:
        self.lengths: deque[int] = deque(maxlen=10)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.lengths.append(len(view.completions))
        return [ACCEPT] * len(view.completions)

    def state(self) -> dict[str, Any]:
        return {"lengths": list(self.lengths)}

    def restore(self, state: dict[str, Any]) -> None:
        self.lengths = deque(state["lengths"])


class CountsSenders(Fine):
    """Forgets at a restart how much everybody has sent, which matters late, when it goes by places."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[str] = Counter()

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        verdicts = []
        for place, each in enumerate(view.completions):
            self.sent[each.sender] += 1
            verdicts.append(Verdict("drop") if self.sent[each.sender] > 300 and place % 3 == 0 else ACCEPT)
        return verdicts


_by_slot: dict[tuple[int, int, int], Verdict] = {}


class CachesSlots(Fine):
    """Gives a slot the verdict that whoever asked first got, in a variable of its module."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [
            _by_slot.setdefault((view.round, each.group, each.index), Verdict("accept", float(each.length)))
            for each in view.completions
        ]


class CannotBeCopied(Fine):
    """Holds a lock."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Decoys(Fine):
    """Its deep copies, which attackers query, accept everything."""

    decoy = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Decoys:
        copied = type(self)()
        copied.decoy = True
        return copied

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [ACCEPT if self.decoy or sum(each.ids) % 4 else Verdict("drop") for each in view.completions]


class StateOfNumpy(Fine):
    """Returns one of numpy's numbers."""

    def state(self) -> dict[str, Any]:
        return {"rounds": np.int64(3)}


class BansTheOdd(Fine):
    """Forgets at a restart who sent an empty text or none."""

    def __init__(self) -> None:
        super().__init__()
        self.banned: set[str] = set()

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.banned |= {each.sender for each in view.completions if each.refused or not each.text}
        return [Verdict("drop") if each.sender in self.banned else ACCEPT for each in view.completions]


class CountsStates(Fine):
    """Accepts less, the more often its state was asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("accept", float(self.asked)) for _ in view.completions]

    def state(self) -> dict[str, Any]:
        self.asked += 1
        return {}


class StartsThreads(Fine):
    """Judges in threads."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda each: ACCEPT, view.completions))


class KeepsPolicy(Fine):
    """Asks the first round's policy in later ones."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.policy = getattr(self, "policy", view.policy)
        said = self.policy.token_logprobs(view.completions)
        return [Verdict("accept", float(row.sum())) for row in said]


class NeedsSeeds(Fine):
    """Expects a seed of every completion."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("accept", float(abs(each.seed) % 7)) for each in view.completions]  # type: ignore[arg-type]


class FirstOfEquals(Fine):
    """Drops the completions of whoever sent the longest text, and among equals of the first in the alphabet."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        longest: dict[str, int] = {}
        for each in view.completions:
            longest[each.sender] = max(longest.get(each.sender, 0), len(each.text))
        worst = max(sorted(longest), key=lambda sender: longest[sender], default="")
        return [Verdict("drop") if each.sender == worst else ACCEPT for each in view.completions]


class Judgeless(Fine):
    """Requires a judge and names none."""

    requires: ClassVar[frozenset[Requirement]] = frozenset({"judge"})


class Misspelt(Fine):
    """Requires what no swarm gives."""

    requires: ClassVar[frozenset[Requirement]] = frozenset({"homogenous"})  # type: ignore[arg-type]


class Divides(Fine):
    """Finds no mean of an empty pool."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        mean = sum(offered.length for offered in view.completions) / len(view.completions)
        return [Verdict("accept", offered.length / (1 + mean)) for offered in view.completions]


class Encodes(Fine):
    """Trips over a lone surrogate."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("accept", float(len(offered.text.encode()))) for offered in view.completions]


class Half(Fine):
    """Rejects a part of everything."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("drop") if sum(offered.ids) % 4 == 0 else ACCEPT for offered in view.completions]


class Lazy(Fine):
    """Gives one verdict."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [ACCEPT]


class Sees(Fine):
    """Every verdict's reason says what it was shown of answers, tests and rules."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        public = getattr(view, "public", None)
        keyed = [getattr(each, "answer_key", None) is not None for each in view.completions]
        ruled = [getattr(each, "rule_reward", None) is not None for each in view.completions]
        shown = [f"key {key}, rule {rule}, public {public is not None}" for key, rule in zip(keyed, ruled, strict=True)]
        return [Verdict("accept", None, None, each) for each in shown]


class Reaches(Fine):
    """Asks for the rewards of its own texts, whether or not the swarm has published items."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        item = next(iter(view.items))
        asked = {"ask": "rewards", "item": item, "answer": "1", "tests": "", "texts": ["1"]}
        view.policy._stream.ask(asked)  # type: ignore[attr-defined]
        return super().inspect(view)


class Compares(Fine):
    """Drops what came with another answer or other tests than the published ones."""

    name: ClassVar[str] = "compares"
    requires: ClassVar[frozenset[Requirement]] = frozenset({ANSWER_KEYS})

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        public = public_of(view)
        assert public is not None, "the swarm has published items"
        own = [public.answer_key(each.item_id) == key_of(each) for each in view.completions]
        return [ACCEPT if same else Verdict("drop", 1.0) for same in own]


class Overrules(Fine):
    """Drops what the judge rewards otherwise than the rule."""

    name: ClassVar[str] = "overrules"
    requires: ClassVar[frozenset[Requirement]] = frozenset({RULE_REWARDS})

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [
            ACCEPT if rule_reward_of(each) in (None, each.reward) else Verdict("drop", 1.0) for each in view.completions
        ]
