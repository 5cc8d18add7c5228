"""A swarm and its rounds: generate, all-gather, inspect, reward, update (the figure of arXiv:2511.09780).

The engine knows the three contracts (task, attack, defense) and never a concrete one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import ClassVar

import torch

from thiefbench.attacks.base import Attack, AttackerView, ChoiceView, Decoy, Seeded, Slot, Submission
from thiefbench.defenses.base import Defense, Offered, Past, Verdict
from thiefbench.engine.attacker import AttackerPolicy, DefenseQueries, Place
from thiefbench.engine.cohort import Cohort, Lesson
from thiefbench.engine.decoding import sample
from thiefbench.engine.fitting import check_requirements, drawn
from thiefbench.engine.noise import generator, key, slot_key
from thiefbench.engine.policy import Policy
from thiefbench.engine.pool import Pool
from thiefbench.engine.reading import Answer, Reading
from thiefbench.engine.rounds import Clock, RoundRecord, Row, beacon, remembered, slot_seed
from thiefbench.engine.spec import Role, SpecError, SwarmSpec
from thiefbench.engine.topology import Duty, assign_items, duties
from thiefbench.engine.transport import Offer, Received, malformed, receive
from thiefbench.engine.views import Judge
from thiefbench.tasks.base import Completion, Item, Split, Task

# An evaluation goes on until so many outcomes say something, but not past this multiple of what was asked for.
LEAST_JUDGED, MOST_DRAWN = 256, 8


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
        judge: whom the defense may ask.

    Raises:
        SpecError: the attack does not fit the topology or the task, or the defense needs what the swarm does not give.
    """

    _learner: ClassVar[type[Cohort]] = Cohort

    def __init__(
        self,
        spec: SwarmSpec,
        role: Role,
        policy: Policy,
        task: Task,
        attack: Attack,
        defense: Defense,
        seed: int,
        judge: Judge | None = None,
    ) -> None:
        if "judge" in defense.requires and judge is None:
            raise SpecError(f"the defense {defense.name} requires a judge; hand one to the swarm")
        self.attack = drawn(attack, seed, spec, task)
        # What an attacker has published is there for everyone, in the control as well.
        self.task = task.with_libraries(self.attack.libraries())
        self.spec, self.role, self.seed, self.judge = spec, role, seed, judge
        check_requirements(spec, defense)
        self.cohort = self._learner(policy, spec, defense)
        self.honest = spec.nodes if role == "control" else spec.nodes - spec.malicious
        self.history: list[Past] = []
        self._probes = list(self.attack.probes(self.task) or ())
        self._prompts: dict[str, list[int]] = {}
        self._known: dict[tuple[str, str], float] = {}  # the last rewards by item and text: attacks ask for them again

    @property
    def policy(self) -> Policy:
        """The cohort's current model."""
        return self.cohort.policy

    def round(self, number: int) -> RoundRecord:
        """Play round `number`, counted from 1."""
        clock = Clock()
        owed = duties(self.spec, generator(self.seed, "duties", number))
        items = self._items_of_round(number, owed)
        with clock.phase("sample"):
            distinct = {item.id: item for item in items}
            reading = Reading(self.policy, [self._prompt(item) for item in distinct.values()])
            honest = self._honest_offers(number, items, [duty for duty in owed if duty.node < self.honest], reading)
        with clock.phase("attack"):
            mine = sorted((d for d in owed if d.node >= self.honest), key=lambda d: (d.group, d.node, d.index))
            malicious, payload = self._malicious_offers(number, items, mine, owed, honest, reading)
        with clock.phase("gather"):
            received = self._gathered(items, owed, (*honest, *malicious))
        with clock.phase("reward"):
            rewards = self._rewards(items, received)
        with clock.phase("inspect"):
            pool = self._pool(number, items, owed, received, rewards, reading)
            if self.cohort.learns:
                reading.expect(pool.with_gradient(self.spec.group))
            verdicts, past = self._inspected(pool, self.cohort.defense, payload)
            self.history.append(past)
        with clock.phase("update"):
            step = self.cohort.update(
                pool.reading.prompts,
                [
                    Lesson(
                        prompt=answer[0],
                        targets=answer[1],
                        reward=offered.reward if verdict.action == "accept" else 0.0,
                        kept=verdict.action != "drop",
                        token_weights=verdict.token_weights,
                    )
                    for answer, offered, verdict in zip(pool.answers, pool.offered, verdicts, strict=True)
                ],
                pool.reading,
            )
        rows = []
        for i, (duty, offered, verdict) in enumerate(zip(owed, pool.offered, verdicts, strict=True)):
            rows.append(
                Row(
                    phase="train", round=number, node=duty.node, sender=offered.sender, item_id=offered.item_id,
                    group=duty.group, place=duty.place, ids=offered.ids, text=offered.text, ended=offered.ended,
                    malicious=duty.node >= self.honest, payload=(duty.group, duty.place) in payload,
                    reward=offered.reward, refused=received[i].refused, action=verdict.action,
                    score=verdict.score, reason=verdict.reason, token_weights=verdict.token_weights,
                    advantage=step.advantages[i],
                    outcome=self.attack.outcome(items[duty.group], received[i].completion, self),
                )
            )  # fmt: skip
        return RoundRecord(rows, clock.seconds, step.grad_norm)

    def evaluate(self, number: int, completions: int) -> RoundRecord:
        """Sample held-out items with the honest policy and measure reward and outcome.

        Where the attack has probes, outcomes are measured on these, in rows of their own phase. Where most outcomes
        say nothing, up to `MOST_DRAWN` times as many are drawn until `LEAST_JUDGED` (or `completions`, if fewer) say
        something.

        Args:
            number: rounds finished so far.
            completions: how many to draw, spread evenly over the items; items and keys are those of every other cell
                with this seed.
        """
        clock = Clock()
        held_out, probes = items_of(self.task, "test"), self._probes
        with clock.phase("evaluate"):
            rows = self._evaluated("eval", number, held_out, 0, completions, judged=not probes)
            judging = [] if probes else rows
            while len(judging) < completions * MOST_DRAWN:
                if sum(row.outcome is not None for row in judging) >= min(LEAST_JUDGED, completions):
                    break
                more = self._evaluated(
                    "probe" if probes else "eval", number, probes or held_out, len(judging), completions, judged=True
                )
                judging = [*judging, *more]
        return RoundRecord([*rows, *judging] if probes else judging, clock.seconds)

    def _evaluated(
        self, phase: str, number: int, pool: Sequence[Item], first: int, count: int, judged: bool
    ) -> list[Row]:
        """`count` completions from number `first` on of an evaluation that goes round a pool of items."""
        order = generator(self.seed, "evaluation").sample(range(len(pool)), len(pool))
        items = [pool[order[i % len(pool)]] for i in range(first, first + count)]
        done = self._answers(phase, items, first)
        rewards = self._rewards_of(items, done)
        return [
            Row(
                phase=phase, round=number, node=-1, sender="", item_id=item.id, group=-1, place=i, ids=made.ids,
                text=made.text, ended=made.ended, malicious=False, payload=False, reward=reward,
                refused="", action="accept", score=None, reason="", token_weights=None, advantage=0.0,
                outcome=self.attack.outcome(item, made, self) if judged else None,
            )
            for i, (item, made, reward) in enumerate(zip(items, done, rewards, strict=True), first)
        ]  # fmt: skip

    def _answers(self, phase: str, items: Sequence[Item], first: int) -> list[Completion]:
        """The policy's answers to the items of an evaluation, numbered from `first`."""
        distinct = {item.id: item for item in items}
        place = _places(items)
        return sample(
            self.policy,
            [self._prompt(item) for item in distinct.values()],
            [place[item.id] for item in items],
            [key(self.seed, "eval", 0, -1, 0, item.id, i) for i, item in enumerate(items, first)],
            self.spec.sampling,
        )

    def remember(self, rows: Iterable[Row]) -> None:
        """Rebuild the history that defenses see from the rows of finished rounds, as after a restart."""
        rounds: dict[int, list[Row]] = {}
        for row in rows:
            if row.phase == "train":
                rounds.setdefault(row.round, []).append(row)
        self.history = [remembered(part, self.seed) for _, part in sorted(rounds.items())]

    def reward(self, item: Item, text: str) -> float:
        """The task's reward of one text (what an attack may ask while it judges its outcome)."""
        known = self._known.get((item.id, text))
        return self.task.reward(item, [text])[0] if known is None else known

    def _items_of_round(self, number: int, owed: Sequence[Duty]) -> list[Item]:
        items = items_of(self.task, "train")

        def draw(whose: int | str, count: int) -> list[Item]:
            if count > len(items):
                raise SpecError(f"a node needs {count} distinct items a round, and the task has {len(items)}")
            return generator(self.seed, "items", number, whose).sample(items, count)

        def choose(node: int, count: int) -> Sequence[Item] | None:
            if node < self.honest:
                return None
            known = {item.id: item for item in items}
            threat = self.attack.threat
            granted = [_as_granted(item, threat.oracle) for item in items]
            rng = generator(self.seed, "choice", number, node)
            if threat.beacon:
                noise = (self.seed, number, "choice", node)
                chosen = self.attack.choose_items_after_beacon(
                    granted,
                    ChoiceView(
                        count=count,
                        group=self.spec.group,
                        task=self.task,
                        rng=rng,
                        policy=AttackerPolicy(self.policy, self.task, self.spec.sampling, noise)
                        if threat.policy
                        else None,
                        seed=lambda item, position, index: slot_key(
                            beacon(self.seed, number), node, position, item.id, index
                        ),
                    ),
                )
            else:
                chosen = self.attack.choose_items(granted, count, rng)
            return [known[item.id] for item in chosen]

        return assign_items(self.spec, owed, draw, choose)

    def _honest_offers(self, number: int, items: Sequence[Item], owed: Sequence[Duty], reading: Reading) -> list[Offer]:
        keys = [self._seed_of(number, items, duty) for duty in owed]
        place = _places(items)
        rows = [place[items[d.group].id] for d in owed]
        done = sample(self.policy, reading.prompts, rows, keys, self.spec.sampling, prefix=reading.prefix())
        return [
            Offer(duty.node, duty.group, duty.place, self._on_the_wire(made), seed)
            for duty, made, seed in zip(owed, done, keys, strict=True)
        ]

    def _malicious_offers(
        self,
        number: int,
        items: Sequence[Item],
        owed: Sequence[Duty],
        everyone: Sequence[Duty],
        honest: Sequence[Offer],
        reading: Reading,
    ) -> tuple[list[Offer], set[tuple[int, int]]]:
        """What the colluding nodes send, and which (group, place) of it carries the payload."""
        if not owed:
            return [], set()
        threat = self.attack.threat
        noise = (self.seed, number)
        view = AttackerView(
            round=number,
            slots=tuple(
                Slot(
                    _as_granted(items[d.group], threat.oracle),
                    d.node,
                    d.group,
                    d.index,
                    self._seed_of(number, items, d) if threat.beacon else None,
                )
                for d in owed
            ),
            task=self.task,
            rng=generator(*noise, "attack"),
            policy=AttackerPolicy(self.policy, self.task, self.spec.sampling, noise) if threat.policy else None,
            defense=self._queries(number, items, owed, everyone, honest, reading) if threat.queries else None,
        )
        made = self.attack.poison(view) if self.role == "attack" else self.attack.placebo(view)
        if len(made) != len(owed):
            raise ValueError(f"the attack {self.attack.name} gave {len(made)} completions for {len(owed)} slots")
        sent, payload = [], set()
        for duty, poison in zip(owed, made, strict=True):
            if poison is not None:
                sent.append(self._offer(number, items, duty, poison))
                if self.role == "attack" and not isinstance(poison, Decoy):
                    payload.add((duty.group, duty.place))
        left = [duty for duty, poison in zip(owed, made, strict=True) if poison is None]
        return [*sent, *self._honest_offers(number, items, left, reading)], payload

    def _queries(
        self,
        number: int,
        items: Sequence[Item],
        owed: Sequence[Duty],
        everyone: Sequence[Duty],
        honest: Sequence[Offer],
        reading: Reading,
    ) -> DefenseQueries:
        """The honest nodes' defense, for an attacker to try submissions on in the round's own pool."""
        others = {(o.group, o.place): o for o in (*honest, *self._honest_offers(number, items, owed, reading))}
        slots = {(duty.node, duty.group, duty.index): duty for duty in owed}
        asked_of = Reading(self.policy, reading.prompts)  # the pool hardly changes: what was read stays read

        def trial(defense: Defense, asked: Mapping[Place, Submission]) -> dict[Place, Verdict]:
            offers = [self._offer(number, items, slots[at], made) for at, made in asked.items()]
            tried = {(offer.group, offer.place): offer for offer in offers}
            received = self._gathered(items, everyone, (others | tried).values())
            pool = self._pool(number, items, everyone, received, self._rewards(items, received), asked_of)
            verdicts, _ = self._inspected(pool, defense, set(tried))
            given = {(duty.group, duty.place): verdict for duty, verdict in zip(everyone, verdicts, strict=True)}
            return {at: given[slots[at].group, slots[at].place] for at in asked}

        return DefenseQueries(self.cohort.defense, trial, self.attack.threat.queries)

    def _gathered(self, items: Sequence[Item], owed: Sequence[Duty], offers: Iterable[Offer]) -> list[Received]:
        """What arrives of the offers, in the order of the duties."""
        by_place = {(offer.group, offer.place): offer for offer in offers}
        sent = [by_place[duty.group, duty.place] for duty in owed]
        if "proofs" in self.cohort.defense.requires:
            sent = self._proven(items, sent)
        return receive(self.policy, sent, self.spec.sampling.max_new_tokens)

    def _proven(self, items: Sequence[Item], sent: Sequence[Offer]) -> list[Offer]:
        """The offers with valid proofs, malicious ones too: each node runs the policy over what it sends, by itself."""
        limit = self.spec.sampling.max_new_tokens
        prompts = [self._prompt(item) for item in items]
        answers = [(offer.group, offer.ids) for offer in sent]
        sound = [place for place, offer in enumerate(sent) if not malformed(self.policy, offer.ids, limit)]
        made = list(sent)
        for node in {offer.node for offer in sent}:
            own = [place for place in sound if sent[place].node == node]
            states: dict[Answer, torch.Tensor] = {}
            for chunk in Reading(self.policy, prompts).chunks([answers[place] for place in own]):
                parts = torch.split(chunk.hidden.float().cpu(), chunk.counts)
                states |= dict(zip(chunk.answers, parts, strict=True))
            for place in own:
                proof = self.cohort.defense.prove(states[answers[place]].numpy())
                made[place] = replace(sent[place], proof=proof)
        return made

    def _pool(
        self,
        number: int,
        items: Sequence[Item],
        owed: Sequence[Duty],
        received: Sequence[Received],
        rewards: Sequence[float],
        reading: Reading,
    ) -> Pool:
        """The round's completions as an honest node holds them."""
        prompts = _places(items)
        offered, answers = [], []
        for duty, got, reward in zip(owed, received, rewards, strict=True):
            item, done = items[duty.group], got.completion
            sender = self._sender(number, duty)
            seed = got.seed if self.spec.seeds == "announced" else self._seed_of(number, items, duty)
            offered.append(
                Offered(
                    item.id, duty.group, duty.place, sender, done.ids, done.text, done.ended, reward,
                    seed=seed, proof=got.proof,
                )
            )  # fmt: skip
            answers.append((prompts[item.id], self._on_the_wire(done)))
        return Pool(number, items, offered, answers, reading, prompts)

    def _inspected(self, pool: Pool, defense: Defense, payload: set[tuple[int, int]]) -> tuple[list[Verdict], Past]:
        return pool.inspected(defense, payload, self.spec.sampling, self.history, self.seed, self.judge)

    def _sender(self, number: int, duty: Duty) -> str:
        """The pseudonym a completion arrives under; a malicious node may have several."""
        faces = self.attack.variants.identities if duty.node >= self.honest else 1
        face = key(self.seed, "face", number, duty.group, duty.place) % faces
        name = key(self.seed, "sender", duty.node, face) if face else key(self.seed, "sender", duty.node)
        return f"{name & 0xFFFFFFFF:08x}"

    def _rewards(self, items: Sequence[Item], received: Sequence[Received]) -> list[float]:
        answered = [items[i // self.spec.group] for i in range(len(received))]
        given = self._rewards_of(answered, [got.completion for got in received])
        return [0.0 if got.refused else reward for got, reward in zip(received, given, strict=True)]

    def _rewards_of(self, items: Sequence[Item], done: Sequence[Completion]) -> list[float]:
        """The task's rewards; 0 where a control token stands in a completion."""
        clean = [i for i, made in enumerate(done) if self.policy.special.isdisjoint(made.ids)]
        given = self.task.rewards([items[i] for i in clean], [done[i].text for i in clean])
        rewards = dict(zip(clean, given, strict=True))
        self._known = {(items[i].id, done[i].text): reward for i, reward in rewards.items()}
        return [rewards.get(i, 0.0) for i in range(len(done))]

    def _offer(self, number: int, items: Sequence[Item], duty: Duty, made: Submission) -> Offer:
        """A submission on the wire; text is encoded, cut to the limit and ended with EOS."""
        seed = self._seed_of(number, items, duty)
        if isinstance(made, Seeded):
            ids, seed = tuple(made.ids), made.seed
        elif isinstance(made, str):
            ids = (*self.policy.encode(made), self.policy.eos)[: self.spec.sampling.max_new_tokens]
        else:
            ids = tuple(made)
        return Offer(duty.node, duty.group, duty.place, ids, seed)

    def _on_the_wire(self, done: Completion) -> tuple[int, ...]:
        return (*done.ids, self.policy.eos) if done.ended else done.ids

    def _seed_of(self, number: int, items: Sequence[Item], duty: Duty) -> int:
        """The seed of a slot's one honest draw."""
        return slot_seed(self.seed, number, duty, items[duty.group].id)

    def _prompt(self, item: Item) -> list[int]:
        if item.id not in self._prompts:
            self._prompts[item.id] = self.policy.prompt_ids(self.task.messages(item))
        return self._prompts[item.id]


@cache
def items_of(task: Task, split: Split) -> list[Item]:
    """All items of a split, in the task's order."""
    return [Item.from_row(row) for row in task.items(split)]


def _places(items: Sequence[Item]) -> dict[str, int]:
    """The place of each item among the distinct ones, by id."""
    return {item_id: i for i, item_id in enumerate(dict.fromkeys(item.id for item in items))}


def _as_granted(item: Item, oracle: bool) -> Item:
    return item if oracle else Item(item.id, item.question, item.answer, "", item.tests)
