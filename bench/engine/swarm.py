"""A swarm and its rounds: generate, all-gather, inspect, reward, update (the figure of arXiv:2511.09780).

The engine knows the three contracts (task, attack, defense) and never a concrete one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import get_args

from thiefbench.attacks.base import Attack, AttackerView, Poison, Slot
from thiefbench.defenses.base import Action, DefenderView, Defense, Facts, LabelledView, Offered, Past, Verdict
from thiefbench.engine.cohort import Cohort, Lesson
from thiefbench.engine.decoding import sample
from thiefbench.engine.noise import Purpose, generator, key
from thiefbench.engine.policy import Policy
from thiefbench.engine.reading import Reading
from thiefbench.engine.spec import Role, SpecError, SwarmSpec
from thiefbench.engine.topology import Duty, assign_items, duties
from thiefbench.engine.transport import Offer, Received, receive
from thiefbench.engine.views import AttackerPolicy, DefenderPolicy
from thiefbench.tasks.base import Completion, Item, Split, Task


@dataclass(frozen=True)
class Row:
    """One completion of one round, with its truth: what the store keeps.

    Attributes:
        phase: "train" for a round's pool, "eval" for an evaluation after it (round 0: before the first).
        round: rounds finished so far for "eval", the round's own number for "train".
        node: who sent it; -1 for an evaluation.
        sender: the pseudonym the defense saw.
        malicious: sent by a malicious node.
        payload: carries the attack's payload.
        reward: the task's reward, before any verdict.
        refused: why the transport gave it reward 0, or empty.
        action, score, reason, token_weights: the verdict; "accept" in evaluations.
        advantage: what multiplied its log-prob gradient.
        outcome: the attack's outcome on it; None where it says nothing.
    """

    phase: str
    round: int
    node: int
    sender: str
    item_id: str
    group: int
    place: int
    ids: tuple[int, ...]
    text: str
    ended: bool
    malicious: bool
    payload: bool
    reward: float
    refused: str
    action: str
    score: float | None
    reason: str
    token_weights: tuple[float, ...] | None
    advantage: float
    outcome: float | None


@dataclass(frozen=True)
class RoundRecord:
    """What one round or evaluation leaves: its rows, seconds by phase, and the update's gradient norm."""

    rows: list[Row]
    seconds: dict[str, float]
    grad_norm: float = 0.0


@dataclass
class _Clock:
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


class Swarm:
    """m nodes, f of them malicious, learning together from one pool a round.

    All honest nodes hold equal weights and are one cohort.

    Args:
        spec: who answers what, how they sample and learn.
        role: "attack"; "placebo" (malicious slots and choices as in the attack, clean completions); "control" (every
            node honest, the attack only defines the outcome that is measured).
        policy: the start weights; the swarm owns and changes them.
        task: what is asked.
        attack: the poisoner; its payload is drawn by `seed`.
        defense: the cohort's filter.
        seed: keys items, noise, payload, pseudonyms and shuffles.

    Raises:
        SpecError: the attack does not fit the topology.
    """

    def __init__(
        self, spec: SwarmSpec, role: Role, policy: Policy, task: Task, attack: Attack, defense: Defense, seed: int
    ) -> None:
        if spec.topology not in attack.threat.topologies:
            fitting = " or ".join(sorted(attack.threat.topologies))
            raise SpecError(f"the attack {attack.name} needs the {fitting} topology, and this swarm is {spec.topology}")
        self.spec, self.role, self.task, self.seed = spec, role, task, seed
        self.attack = attack.draw(generator(seed, "payload"))
        self.cohort = Cohort(policy, spec, defense)
        self.honest = spec.nodes if role == "control" else spec.nodes - spec.malicious
        self.senders = [f"{key(seed, 'sender', node) & 0xFFFFFFFF:08x}" for node in range(spec.nodes)]
        self.history: list[Past] = []
        self._prompts: dict[str, list[int]] = {}

    @property
    def policy(self) -> Policy:
        """The cohort's current model."""
        return self.cohort.policy

    def round(self, number: int) -> RoundRecord:
        """Play round `number`, counted from 1."""
        clock = _Clock()
        owed = duties(self.spec, generator(self.seed, "duties", number))
        items = self._items_of_round(number, owed)
        with clock.phase("sample"):
            honest = self._honest_offers(number, items, [duty for duty in owed if duty.node < self.honest])
        with clock.phase("attack"):
            mine = sorted((d for d in owed if d.node >= self.honest), key=lambda d: (d.group, d.node, d.index))
            malicious, payload = self._malicious_offers(number, items, mine)
        with clock.phase("gather"):
            offers = {(offer.group, offer.place): offer for offer in (*honest, *malicious)}
            pool = [offers[duty.group, duty.place] for duty in owed]
            received = receive(self.policy, pool, self.spec.sampling.max_new_tokens)
        with clock.phase("reward"):
            rewards = self._rewards(items, received)
        with clock.phase("inspect"):
            reading, place = self._reading(items, received, rewards)
            verdicts = self._inspect(number, items, owed, received, rewards, payload, reading, place)
        with clock.phase("update"):
            step = self.cohort.update(
                reading.prompts,
                [
                    Lesson(
                        prompt=place[items[offer.group].id],
                        targets=offer.ids if got.completion.ids or got.completion.ended else (),
                        reward=reward if verdict.action == "accept" else 0.0,
                        kept=verdict.action != "drop",
                        token_weights=verdict.token_weights,
                    )
                    for offer, got, reward, verdict in zip(pool, received, rewards, verdicts, strict=True)
                ],
                reading,
            )
        rows = []
        for i, (duty, got, verdict) in enumerate(zip(owed, received, verdicts, strict=True)):
            done = got.completion
            rows.append(
                Row(
                    phase="train", round=number, node=duty.node, sender=self.senders[duty.node],
                    item_id=items[duty.group].id, group=duty.group, place=duty.place, ids=done.ids, text=done.text,
                    ended=done.ended, malicious=duty.node >= self.honest, payload=(duty.group, duty.place) in payload,
                    reward=rewards[i], refused=got.refused, action=verdict.action, score=verdict.score,
                    reason=verdict.reason, token_weights=verdict.token_weights, advantage=step.advantages[i],
                    outcome=self.attack.outcome(items[duty.group], done, self),
                )
            )  # fmt: skip
        return RoundRecord(rows, clock.seconds, step.grad_norm)

    def evaluate(self, number: int, completions: int) -> RoundRecord:
        """Sample held-out items (or the attack's probes) with the honest policy and measure reward and outcome.

        Args:
            number: rounds finished so far.
            completions: how many to draw, spread evenly over the items; items and keys are those of every other cell
                with this seed.
        """
        clock = _Clock()
        pool = self.attack.probes(self.task) or _items(self.task, "test")
        order = generator(self.seed, "evaluation").sample(range(len(pool)), len(pool))
        items = [pool[order[i % len(order)]] for i in range(completions)]
        with clock.phase("evaluate"):
            distinct = {item.id: item for item in items}
            place = {item_id: i for i, item_id in enumerate(distinct)}
            keys = [self._key("eval", 0, -1, 0, item, i) for i, item in enumerate(items)]
            done = sample(
                self.policy,
                [self._prompt(item) for item in distinct.values()],
                [place[item.id] for item in items],
                keys,
                self.spec.sampling,
            )
            rows = [
                Row(
                    phase="eval", round=number, node=-1, sender="", item_id=item.id, group=-1, place=i, ids=made.ids,
                    text=made.text, ended=made.ended, malicious=False, payload=False,
                    reward=self.reward(item, made.text) if self.policy.special.isdisjoint(made.ids) else 0.0,
                    refused="", action="accept", score=None, reason="", token_weights=None, advantage=0.0,
                    outcome=self.attack.outcome(item, made, self),
                )
                for i, (item, made) in enumerate(zip(items, done, strict=True))
            ]  # fmt: skip
        return RoundRecord(rows, clock.seconds)

    def remember(self, rows: Iterable[Row]) -> None:
        """Rebuild the history that defenses see from the rows of finished rounds, as after a restart."""
        rounds: dict[int, list[Row]] = {}
        for row in rows:
            if row.phase == "train":
                rounds.setdefault(row.round, []).append(row)
        self.history = []
        for number, part in sorted(rounds.items()):
            shuffled = [part[i] for i in self._shuffle(number)]
            offered = (
                Offered(r.item_id, r.group, r.place, r.sender, r.ids, r.text, r.ended, r.reward) for r in shuffled
            )
            verdicts = (Verdict(r.action, r.score, r.token_weights, r.reason) for r in shuffled)  # type: ignore[arg-type]
            self.history.append(Past(number, tuple(offered), tuple(verdicts)))

    def reward(self, item: Item, text: str) -> float:
        """The task's reward of one text (what an attack may ask while it judges its outcome)."""
        return self.task.reward(item, [text])[0]

    def _items_of_round(self, number: int, owed: Sequence[Duty]) -> list[Item]:
        items = _items(self.task, "train")

        def draw(whose: int | str, count: int) -> list[Item]:
            if count > len(items):
                raise SpecError(f"a node needs {count} distinct items a round, and the task has {len(items)}")
            return generator(self.seed, "items", number, whose).sample(items, count)

        def choose(node: int, count: int) -> Sequence[Item] | None:
            if node < self.honest:
                return None
            return self.attack.choose_items(items, count, generator(self.seed, "choice", number, node))

        return assign_items(self.spec, owed, draw, choose)

    def _honest_offers(self, number: int, items: Sequence[Item], owed: Sequence[Duty]) -> list[Offer]:
        keys = [self._key("train", number, d.node, d.position, items[d.group], d.index) for d in owed]
        groups = sorted({duty.group for duty in owed})
        place = {group: i for i, group in enumerate(groups)}
        prompts = [self._prompt(items[group]) for group in groups]
        done = sample(self.policy, prompts, [place[d.group] for d in owed], keys, self.spec.sampling)
        return [
            Offer(duty.node, duty.group, duty.place, self._on_the_wire(made))
            for duty, made in zip(owed, done, strict=True)
        ]

    def _malicious_offers(
        self, number: int, items: Sequence[Item], owed: Sequence[Duty]
    ) -> tuple[list[Offer], set[tuple[int, int]]]:
        """What the colluding nodes send, and which (group, place) of it carries the payload."""
        if not owed:
            return [], set()
        threat = self.attack.threat
        noise = (self.seed, number)
        view = AttackerView(
            round=number,
            slots=tuple(Slot(_as_granted(items[d.group], threat.oracle), d.node, d.group, d.index) for d in owed),
            task=self.task,
            rng=generator(*noise, "attack"),
            policy=AttackerPolicy(self.policy, self.task, self.spec.sampling, noise) if threat.policy else None,
        )
        made = self.attack.poison(view) if self.role == "attack" else self.attack.placebo(view)
        if len(made) != len(owed):
            raise ValueError(f"the attack {self.attack.name} gave {len(made)} completions for {len(owed)} slots")
        left = [duty for duty, poison in zip(owed, made, strict=True) if poison is None]
        sent = [
            Offer(duty.node, duty.group, duty.place, self._encode(poison))
            for duty, poison in zip(owed, made, strict=True)
            if poison is not None
        ]
        payload = {(offer.group, offer.place) for offer in sent} if self.role == "attack" else set()
        return [*sent, *self._honest_offers(number, items, left)], payload

    def _reading(
        self, items: Sequence[Item], received: Sequence[Received], rewards: Sequence[float]
    ) -> tuple[Reading, dict[str, int]]:
        """The pool as the policy reads it, and the place of each item's prompt in it.

        Rows of groups with two different rewards will be learned from unless the defense says otherwise.
        """
        distinct = {item.id: item for item in items}
        place = {item_id: i for i, item_id in enumerate(distinct)}
        size = self.spec.group
        closing = (self.policy.eos,)
        expected = [
            (place[items[i // size].id], got.completion.ids + (closing if got.completion.ended else ()))
            for i, got in enumerate(received)
            if len(set(rewards[i - i % size : i - i % size + size])) > 1
        ]
        return Reading(self.policy, [self._prompt(item) for item in distinct.values()], expected), place

    def _inspect(
        self,
        number: int,
        items: Sequence[Item],
        owed: Sequence[Duty],
        received: Sequence[Received],
        rewards: Sequence[float],
        payload: set[tuple[int, int]],
        reading: Reading,
        place: dict[str, int],
    ) -> list[Verdict]:
        """The defense's verdicts, in pool order; it sees the pool shuffled."""
        order = self._shuffle(number)
        offered = tuple(self._offered(owed[i], items, received[i], rewards[i]) for i in order)
        known = {
            "round": number,
            "completions": offered,
            "items": {item.id: Facts(item.question, item.answer) for item in items},
            "sampling": self.spec.sampling,
            "history": tuple(self.history),
            "rng": generator(self.seed, "defense", number),
            "policy": DefenderPolicy(
                reading,
                self.spec.sampling,
                place,
                (key(self.seed, "defense", number),),  # hashed: the seed itself would tell the payload
            ),
        }
        defense = self.cohort.defense
        view = DefenderView(**known)  # type: ignore[arg-type]
        if defense.sees_labels:
            truth = tuple((owed[i].group, owed[i].place) in payload for i in order)
            view = LabelledView(**known, payload=truth)  # type: ignore[arg-type]
        verdicts = list(defense.inspect(view))
        if len(verdicts) != len(offered):
            raise ValueError(
                f"the defense {defense.name} gave {len(verdicts)} verdicts for {len(offered)} completions; "
                "inspect returns one per completion, in the view's order"
            )
        for verdict, completion in zip(verdicts, offered, strict=True):
            _check_verdict(verdict, completion, defense.name)
        self.history.append(Past(number, offered, tuple(verdicts)))
        by_place = dict(zip(order, verdicts, strict=True))
        return [by_place[i] for i in range(len(received))]

    def _shuffle(self, number: int) -> list[int]:
        """Pool indices in the order that the defense sees: keyed, so position tells nothing."""
        size = self.spec.prompts * self.spec.group
        return generator(self.seed, "shuffle", number).sample(range(size), size)

    def _offered(self, duty: Duty, items: Sequence[Item], got: Received, reward: float) -> Offered:
        done = got.completion
        return Offered(
            items[duty.group].id,
            duty.group,
            duty.place,
            self.senders[duty.node],
            done.ids,
            done.text,
            done.ended,
            reward,
        )

    def _rewards(self, items: Sequence[Item], received: Sequence[Received]) -> list[float]:
        rewards: list[float] = []
        size = self.spec.group
        for group, item in enumerate(items):
            part = received[group * size : (group + 1) * size]
            given = self.task.reward(item, [got.completion.text for got in part])
            rewards += [0.0 if got.refused else reward for got, reward in zip(part, given, strict=True)]
        return rewards

    def _encode(self, poison: Poison) -> tuple[int, ...]:
        """Token ids on the wire of a submission; text is encoded, cut to the limit and ended with EOS."""
        if not isinstance(poison, str):
            return tuple(poison or ())
        ids = (*self.policy.encode(poison), self.policy.eos)
        return ids[: self.spec.sampling.max_new_tokens]

    def _on_the_wire(self, done: Completion) -> tuple[int, ...]:
        return (*done.ids, self.policy.eos) if done.ended else done.ids

    def _key(self, purpose: Purpose, number: int, node: int, position: int, item: Item, index: int) -> int:
        return key(self.seed, purpose, number, node, position, item.id, index)

    def _prompt(self, item: Item) -> list[int]:
        if item.id not in self._prompts:
            self._prompts[item.id] = self.policy.prompt_ids(self.task.messages(item))
        return self._prompts[item.id]


@cache
def _items(task: Task, split: Split) -> list[Item]:
    return [Item.from_row(row) for row in task.items(split)]


def _as_granted(item: Item, oracle: bool) -> Item:
    return item if oracle else Item(item.id, item.question, item.answer, "", item.tests)


def _check_verdict(verdict: object, completion: Offered, defense: str) -> None:
    """Raise ValueError where a defense answered something that is not a verdict on this completion."""
    if not isinstance(verdict, Verdict) or verdict.action not in get_args(Action):
        raise ValueError(f"the defense {defense} gave {verdict!r}; a verdict's action is accept, zero or drop")
    tokens = len(completion.ids) + completion.ended
    weights = verdict.token_weights
    if weights is not None and (len(weights) != tokens or not all(math.isfinite(weight) for weight in weights)):
        raise ValueError(
            f"the defense {defense} gave {len(weights)} token weights for {tokens} tokens (EOS included); "
            "it gives one finite number per token"
        )
