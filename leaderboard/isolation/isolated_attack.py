"""A submitted attack in separate, sandboxed processes, where it sees its view and nothing else.

To the swarm, `IsolatedAttack` is an attack like any other. The real class runs in the sandbox in which submitted
defenses run: no network, no files but its own, no writable place, limits on time, memory and output. It is a stranger,
so it is trusted neither with the round nor with its own success:

- **It poisons in a process of the round.** Each call of `poison` and `placebo`, and each choice of items, starts a
  fresh process, constructs the attack and draws its payload again. So its submissions are a function of the view and
  its generator: nothing is remembered between rounds, and a cell that was stopped goes on as if it had not been.
- **It judges in another process**, which never sees a view: whether a cell is attacked, defended or a control is not
  known there. What is judged is a completion and its item; verification asks again, in another order.
- **It asks through narrow questions**: the task composes and rewards, its copy of the policy samples and measures, the
  defense is queried, each as far as the threat model grants it (`attack_services`). Neither the model's weights nor the
  defense, its memory or its labels are ever in its process.

What is not possible yet is a rehearsal, and what `attack_guest` lists; such an attack is refused by name.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal, Self
from weakref import WeakSet

from thiefbench.attacks.base import Attack, AttackerView, ChoiceView, Decoy, Poison, ThreatModel, Withheld
from thiefbench.attacks.completions import writes_programs
from thiefbench.leaderboard.isolation import attack_wire as wire
from thiefbench.leaderboard.isolation.answer_time import AnswerTime
from thiefbench.leaderboard.isolation.attack_services import (
    ChoiceAnswers,
    Cost,
    OutcomeAnswers,
    TaskAnswers,
    ViewAnswers,
)
from thiefbench.leaderboard.isolation.frames import Array
from thiefbench.leaderboard.isolation.guest import Guest, Said, host_of
from thiefbench.leaderboard.isolation.limits import ATTACK_CAPS, ATTACK_QUERIES, POOL, Caps
from thiefbench.leaderboard.isolation.sandbox_paths import CALLED_ATTACKS, IMPORTED, AttackKind
from thiefbench.leaderboard.isolation.wire import Malformed, rng_out
from thiefbench.tasks.base import Ask, Completion, Item, Task


class AttackError(Exception):
    """An isolated attack failed, misbehaved or met a limit. One sentence for the user."""


class AttackProcess(Guest):
    """One process of an attack.

    Attributes:
        attack_kind: which kind of attack is expected in it.
    """

    kind = "attack"
    attack_kind: ClassVar[AttackKind] = "attack"
    fault = AttackError
    asking = "draw, choose, poison, placebo, outcome and spill"

    def __init__(self, spec: str, caps: Caps, hash_seed: int) -> None:
        self.spec, self.caps, self.name = spec, caps, spec
        self._host = host_of("attack", spec, hash_seed)
        self.facts = self.checked(self._open())

    def request(
        self,
        call: str,
        request: Mapping[str, Any],
        seconds: float | None = None,
        answers: Any = None,
        arrays: Sequence[Array] = (),
    ) -> dict[str, Any]:
        """As `Guest`'s; raises AttackError."""
        return self._call(call, request, arrays, seconds, answers)

    def checked(self, data: Mapping[str, Any]) -> wire.Facts:
        """What the attack says of itself; raises AttackError where it is not allowed."""
        try:
            facts = wire.facts_in(data)
        except Malformed as error:
            self._fail(f"gave {error}")
        if facts.kind != self.attack_kind:
            self._fail(
                f"is {CALLED_ATTACKS[facts.kind]}, and its files import what {CALLED_ATTACKS[self.attack_kind]} "
                f"imports; import {IMPORTED[facts.kind]} and nothing of the contracts of other kinds"
            )
        if facts.threat.rehearsal:
            self._fail("wants to rehearse before round 1, which is not possible yet for a submitted attack")
        if facts.threat.history and not (facts.threat.policy or facts.threat.queries):
            self._fail(
                "keeps the pools of earlier rounds, which is possible only together with the policy or queries: "
                "without these, a verifier computes its submissions again round by round"
            )
        if facts.threat.queries > ATTACK_QUERIES:
            self._fail(
                f"wants {facts.threat.queries} queries of the defense per slot and round, and a submitted attack is "
                f"granted at most {ATTACK_QUERIES}"
            )
        if facts.lacking:
            self._fail(f"needs {facts.lacking[0]}, which is not possible yet for a submitted attack")
        return facts

    def fault_in(self, what: str) -> AttackError:
        """End the process and return the error that says why."""
        try:
            self._fail(what)
        except AttackError as error:
            return error


class IsolatedAttack(Attack):
    """An attack whose class is loaded in the sandbox, never here.

    Args:
        spec: its spec string; it may name a file.
        caps: what it may use; None for the published limits.
        hash_seed: of the isolated Python; equal ones make sets and dictionaries of text iterate alike.

    Attributes:
        spec, caps: the arguments.
        published: its published limits.
        process: of every one of its processes.
        about: the first line of its docstring.
        costs: by round, or by exchange of weights, what it used there; where one is played again, the last time
            counts.
        noted: called after `costs` has changed.
        said: what its processes said while it poisoned, if that is to be kept (see
            `thiefbench.leaderboard.isolation.guest.contradictory`).

    Raises:
        AttackError: it cannot be constructed, or needs what a submitted attack cannot have.
        SandboxUnavailable: this machine has no working sandbox.
        SpecStringError: the spec string is malformed, or names a file that is not there.
    """

    name: str  # type: ignore[misc]  # of plain attacks constants of the class, here reported by the process
    threat: ThreatModel  # type: ignore[misc]
    reference: wire.Reference

    published: ClassVar[Caps] = ATTACK_CAPS
    process: ClassVar[type[AttackProcess]] = AttackProcess

    def __init__(self, spec: str, caps: Caps | None = None, hash_seed: int = 0) -> None:
        self.spec, self.caps, self._hash_seed = spec, caps or self.published, hash_seed
        self.costs: dict[int, Cost] = {}
        self.noted: Callable[[], None] = lambda: None
        self.said: set[Said] | None = None
        self._times: list[float] = []
        self._judgements, self._judging = 0, 0.0
        self._answering = AnswerTime(0.0, "its judgements")
        self._choosing = Cost()
        self._drawn: tuple[Task, tuple[Any, ...]] | None = None
        self._members: WeakSet[Self] = WeakSet()
        self._judge = self.process(spec, self.caps, hash_seed)
        self._take(self._judge.facts)

    def draw_for(self, task: Task, rng: random.Random) -> Self:
        """The member that the attack draws, which judges in a process of its own."""
        member = type(self)(self.spec, self.caps, self._hash_seed)
        self._members.add(member)
        self._check_alike(member._judge, member._judge.facts)  # before it is granted anything
        # Whoever made this one reads what the member used.
        member.costs, member.noted, member._times, member.said = self.costs, self.noted, self._times, self.said
        member._drawn = (task, rng.getstate())
        facts = member._draw(member._judge)
        if (facts.threat, facts.reference) != (self.threat, self.reference):
            raise member._judge.fault_in("has another threat model or reference once its payload is drawn")
        member._take(facts)
        return member

    def fits(self, task: Task) -> bool:
        """What the drawn member said of the task."""
        return self._facts.fits

    def describe(self) -> dict[str, str]:
        """The drawn payload in words."""
        return dict(self._facts.payload)

    def libraries(self) -> dict[str, str]:
        """Modules that it has published."""
        return dict(self._facts.libraries)

    def probes(self, task: Task) -> Sequence[Item] | None:
        """The items to evaluate, if it has any."""
        return self._facts.probes

    def poison(self, view: AttackerView) -> list[Poison]:
        """The isolated attack's submissions; raises AttackError."""
        cost = self._cost_of(view.round)
        submissions = self._submitted("poison", view, cost)
        cost.sent = sum(not (each is None or isinstance(each, (Decoy, Withheld))) for each in submissions)
        self.noted()
        return submissions

    def placebo(self, view: AttackerView) -> list[Poison]:
        """Their clean counterparts; raises AttackError."""
        submissions = self._submitted("placebo", view, self._cost_of(view.round))
        self.noted()
        return submissions

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float | None:
        """What the judging process says of a completion; raises AttackError."""
        return self._judged("outcome", item, completion, ask)

    def spill(self, item: Item, completion: Completion, ask: Ask) -> float | None:
        """What the judging process says of a completion outside of the probes; raises AttackError."""
        return self._judged("spill", item, completion, ask) if self._facts.spills else None

    def _judged(self, call: Literal["outcome", "spill"], item: Item, completion: Completion, ask: Ask) -> float | None:
        request = {"item": wire.item_out(item), "completion": wire.completion_out(completion)}
        self._judgements += 1
        pools = 1 + self._judgements / POOL  # a slow start is no fault
        self._answering.most = self.caps.service_seconds * pools
        answers = OutcomeAnswers(ask, item, self.caps, self._answering)
        reply = self._judge.request(call, request, OUTCOME_SECONDS, answers)
        self._judging += self._judge.seconds
        if self._judging > (most := self.caps.seconds * pools):
            raise self._judge.fault_in(f"took more than {most:.0f} seconds to judge {self._judgements:,} completions")
        try:
            return wire.outcome_in(reply.get("outcome"))
        except Malformed as error:
            raise self._judge.fault_in(f"gave {error}") from error

    def choose_items(self, items: Sequence[Item], count: int, rng: random.Random) -> Sequence[Item]:
        """The items that it picks; raises AttackError."""
        if not self._facts.chooses:
            return Attack.choose_items(self, items, count, rng)  # not a wrapper's, which asks an inner attack
        return self._chosen(items, count, rng)

    def choose_items_from(self, items: Sequence[Item], view: ChoiceView) -> Sequence[Item]:
        """The items that it picks by the beacon or the history; raises AttackError."""
        if not self._facts.chooses:
            return Attack.choose_items(self, items, view.count, view.rng)
        return self._chosen(items, view.count, view.rng, view)

    def _chosen(
        self, items: Sequence[Item], count: int, rng: random.Random, view: ChoiceView | None = None
    ) -> list[Item]:
        request = {
            "items": [wire.item_out(item) for item in items], "count": count, "rng": rng_out(rng),
            "view": None if view is None else wire.choice_out(view),
        }  # fmt: skip
        assert self._drawn is not None, "nobody picks items before the payload is drawn"
        answers = TaskAnswers(self._drawn[0], items, self.caps, oracle=self.threat.oracle)
        seconds = self.caps.seconds
        if view is not None:
            answers = ChoiceAnswers(view, items, self.caps, self._choosing, self.threat)
            seconds *= max(1.0, count * view.group / POOL)
        with self._in_fresh() as process:
            chosen = process.request("choose", request, seconds, answers).get("chosen")
            if not isinstance(chosen, list):
                raise process.fault_in("picked something other than a list of items")
            sound = all(type(at) is int and 0 <= at < len(items) for at in chosen)
            if not sound or len(chosen) != count:  # one item may be picked several times, as in process
                raise process.fault_in(f"picked something other than {count} of the items that it was offered")
        return [items[at] for at in chosen]

    def _cost_of(self, number: int) -> Cost:
        """What it uses in a round, with what it used to pick the round's items."""
        cost = self.costs[number] = self._choosing
        self._choosing = Cost()
        return cost

    @property
    def attack_kind(self) -> AttackKind:
        """Which kind of attack it is."""
        return self.process.attack_kind

    @property
    def about(self) -> str:
        """The first line of its docstring."""
        return self._facts.about

    @property
    def slowest(self) -> float:
        """Seconds of its own time in the slowest round so far."""
        return max(self._times, default=0.0)

    def close(self) -> None:
        """End the judging process, and those of the members that it drew."""
        for member in self._members:
            member._judge.close()
        self._judge.close()

    def _take(self, facts: wire.Facts) -> None:
        self._facts, self.name, self.threat, self.reference = facts, facts.name, facts.threat, facts.reference

    def _fresh(self) -> AttackProcess:
        """A new process with the member drawn."""
        process = self.process(self.spec, self.caps, self._hash_seed)
        process.said = self.said
        self._check_alike(process, process.facts)
        if self._drawn is not None:
            drawn = self._draw(process)
            self._check_alike(process, drawn)
            if drawn != self._facts:
                raise process.fault_in("draws another payload in a second process; draw from the generator alone")
        return process

    def _check_alike(self, process: AttackProcess, facts: wire.Facts) -> None:
        """Raise AttackError where the attack says of itself in one process what it did not say in the first."""
        if (facts.threat, facts.reference) != (self.threat, self.reference):
            raise process.fault_in("states another threat model or reference in a second process")

    def _draw(self, process: AttackProcess) -> wire.Facts:
        assert self._drawn is not None
        task, state = self._drawn
        rng = random.Random()
        rng.setstate(state)
        request = {"task": wire.task_out(task, writes_programs(task)), "rng": rng_out(rng)}
        answers = TaskAnswers(task, (), self.caps, oracle=self.threat.oracle)
        return process.checked(process.request("draw", request, answers=answers))

    @contextmanager
    def _in_fresh(self) -> Iterator[AttackProcess]:
        """A new process with the member drawn, for one request, whose time counts.

        Raises:
            AttackError: also where the block raises `Malformed`, about what came back.
        """
        process = self._fresh()
        try:
            yield process
            self._times.append(process.seconds)
        except Malformed as error:
            raise process.fault_in(f"gave {error}") from error
        finally:
            process.close()

    def _asked_about(self, view: AttackerView) -> list[Item]:
        """The items that it may ask about in a view: of the slots, each once, and its probes."""
        return list(dict.fromkeys((*(slot.item for slot in view.slots), *(self._facts.probes or ()))))

    def _submitted(self, call: wire.Part, view: AttackerView, cost: Cost) -> list[Poison]:
        items = self._asked_about(view)
        answers = ViewAnswers(view, items, self.caps, cost, len(view.slots), self.threat.oracle)
        seconds = self.caps.seconds * max(1.0, len(view.slots) / POOL)
        with self._in_fresh() as process:
            reply = process.request(call, {"view": wire.view_out(view, items)}, seconds, answers)
            return wire.submissions_in(reply.get("submissions"), len(view.slots))


OUTCOME_SECONDS: Final = 10.0
"""Of an attack's own time to judge one completion."""

SMALL = replace(ATTACK_CAPS, seconds=10.0)
"""The limits of a quick look, as in a check."""
