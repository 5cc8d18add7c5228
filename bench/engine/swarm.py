"""A swarm and its rounds: generate, all-gather, inspect, reward, update (the figure of arXiv:2511.09780).

The engine knows the three contracts (task, attack, defense) and never a concrete one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

from thiefbench.attacks.base import Attack, Claimed, Decoy, DefenseAnswer, Seeded, Submission
from thiefbench.defenses.base import Defense, PastRound, PoolCompletion, Verdict
from thiefbench.engine.compatibility import check_requirements, domains_of, drawn
from thiefbench.engine.exchange import ClaimCache, arrived, on_the_wire, proven, read_by, with_logprobs
from thiefbench.engine.keys import generator, key
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.model.decoding import sample
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.pool import Pool
from thiefbench.engine.population import Population
from thiefbench.engine.round_record import Clock, CompletionRow, RoundRecord, remembered, slot_seed
from thiefbench.engine.spec import Batches, Role, SpecError, SwarmSpec
from thiefbench.engine.topology import Duty, assign_items, duties
from thiefbench.engine.transport import Offer, Received, told_by
from thiefbench.engine.views.attacker import AttackerPolicy, DefenseQueries, SlotKey, answered
from thiefbench.engine.views.attacker_views import AttackerViews
from thiefbench.engine.views.defender import CachedJudge, Judge
from thiefbench.tasks.base import Completion, Item, Split, Task

# An evaluation goes on until so many outcomes say something, but not past this multiple of what was asked for.
LEAST_JUDGED, MOST_DRAWN = 256, 8

# Items that an attack gets to teach a model with which it hands to a recovering node.
LESSONS_HANDED_OVER = 64


@dataclass(frozen=True)
class RoundPlan:
    """What a round asks of the nodes, known to all before anything is sampled.

    Attributes:
        number: the round's, from 1.
        items: of every group.
        owed: duties of the nodes that are there.
        readings: every cohort's reading of the items' prompts, with its current weights.
    """

    number: int
    items: Sequence[Item]
    owed: Sequence[Duty]
    readings: Mapping[Cohort, ForwardCache]

    def item(self, duty: Duty) -> Item:
        """What a duty is to answer."""
        return self.items[duty.group]

    def in_order(self, offers: Iterable[Offer]) -> list[Offer]:
        """A round's offers in the order of the duties."""
        by_place = {(offer.group, offer.index): offer for offer in offers}
        return [by_place[duty.group, duty.index] for duty in self.owed]


class Swarm:
    """m nodes, f of them malicious, learning together from one pool a round.

    Honest nodes that hold equal weights are one cohort (see `Population`).

    Args:
        spec: who answers what, how they sample and learn.
        role: "attack"; "placebo" (malicious slots and choices as in the attack, clean completions); "control" (every
            node honest, the attack only defines the outcome that is measured).
        policy: the start weights, or those of every class of a population; the swarm owns and changes them.
        task: what is asked.
        attack: the poisoner; its payload is drawn by `seed`.
        defense: the honest nodes' filter.
        seed: keys items, noise, payload, pseudonyms and shuffles.
        judge: whom the defense may ask.
        batches: what is sampled together: "cohort" (all completions that come from the same weights) or "node" (one
            node's, as where every node is a process of its own). Tokens are the same up to counted near-ties.

    Raises:
        SpecError: the attack does not fit the topology or the task, the defense needs what the swarm does not give, or
            the population is not one.
    """

    _learner: ClassVar[type[Cohort]] = Cohort

    def __init__(
        self,
        spec: SwarmSpec,
        role: Role,
        policy: Policy | Sequence[Policy],
        task: Task,
        attack: Attack,
        defense: Defense,
        seed: int,
        judge: Judge | None = None,
        batches: Batches = "cohort",
    ) -> None:
        if "judge" in defense.requires and judge is None:
            raise SpecError(f"the defense {defense.name} requires a judge; hand one to the swarm")
        self.attack = drawn(attack, seed, spec, task)
        # What an attacker has published is there for everyone, in the control as well.
        self.task = task.with_libraries(self.attack.libraries())
        self.spec, self.role, self.seed, self.judge, self.batches = spec, role, seed, judge, batches
        check_requirements(spec, defense)
        self.honest = spec.nodes if role == "control" else spec.nodes - spec.malicious
        policies = [policy] if isinstance(policy, Policy) else policy
        self.grants = AttackerViews(self.attack, self.task, spec, seed)
        self.population = Population(spec, policies, defense, self.honest, seed, self._learner)
        self._domains = domains_of(spec, self.task)
        self._probes = list(self.attack.probes(self.task) or ())
        self._prompts: dict[tuple[int, str], list[int]] = {}
        self._found: ClaimCache = {}
        self._known: dict[tuple[str, str], float] = {}  # the last rewards by item and text: attacks ask for them again

    @property
    def cohort(self) -> Cohort:
        """The first cohort: in a homogeneous swarm, all honest nodes."""
        return self.population.cohorts[0]

    @property
    def policy(self) -> Policy:
        """The first cohort's current model."""
        return self.cohort.policy

    @property
    def history(self) -> list[PastRound]:
        """What the first cohort remembers of finished rounds."""
        return self.cohort.history

    def round(self, number: int) -> RoundRecord:
        """Play round `number`, counted from 1."""
        clock, self._found = Clock(), {}
        with clock.phase("sample"):
            self.population.begin(number, lambda node: self._handed_over(number, node))
            everyone = self.owed(number)
            items = self._items_of_round(number, everyone)
            owed = self.population.present(number, everyone)
            readings = {cohort: self._reading(cohort, items) for cohort in self.population.cohorts}
            asked = RoundPlan(number, items, owed, readings)
            honest = self._sent_by_honest(asked, [duty for duty in owed if duty.node < self.honest])
        with clock.phase("attack"):
            mine = sorted((d for d in owed if d.node >= self.honest), key=lambda d: (d.group, d.node, d.sample))
            malicious, payload = self._sent_by_malicious(asked, mine, honest)
        with clock.phase("gather"):
            received = self._received(asked, (*honest, *malicious))
        with clock.phase("reward"):
            rewards = self._rewards(asked, received)
        rows, norms = [], []
        for cohort in self.population.learning():
            held = self.population.held_by(cohort, number, owed)
            own = [owed[i] for i in held]
            with clock.phase("inspect"):
                got = read_by(cohort, self.population, own, [received[i] for i in held])
                pool = self._pool(asked, own, got, [rewards[i] for i in held], readings[cohort])
                if cohort.learns:
                    pool.reading.expect(pool.with_gradient())
                verdicts, past = self._inspected(pool, cohort.defense, payload, cohort.history, self.judge)
                cohort.history.append(past)
            with clock.phase("update"):
                step = cohort.update(pool.reading.prompts, pool.lessons(verdicts), pool.reading)
            norms.append(step.grad_norm)
            for duty, each, offered, verdict, advantage in zip(
                own, got, pool.offered, verdicts, step.advantages, strict=True
            ):
                rows.append(
                    CompletionRow(
                        phase="train", round=number, node=duty.node, sender=offered.sender, item_id=offered.item_id,
                        group=duty.group, place=duty.index, ids=offered.ids, text=offered.text, ended=offered.ended,
                        malicious=duty.node >= self.honest, payload=(duty.group, duty.index) in payload,
                        reward=offered.reward, refused=each.refused, action=verdict.action, score=verdict.score,
                        reason=verdict.reason, token_weights=verdict.token_weights, advantage=advantage,
                        outcome=self.attack.outcome(asked.item(duty), each.completion, self),
                        cohort=cohort.number, label=self.population.label(cohort), version=offered.version,
                    )
                )  # fmt: skip
        self.population.done(number)
        return RoundRecord(rows, clock.seconds, sum(norms) / len(norms))

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
    ) -> list[CompletionRow]:
        """`count` completions from number `first` on of an evaluation that goes round a pool of items."""
        order = generator(self.seed, "evaluation").sample(range(len(pool)), len(pool))
        items = [pool[order[i % len(pool)]] for i in range(first, first + count)]
        answering = self.population.turns(first, count)
        done = self._answers(phase, items, first, answering)
        rewards = self._rewards_of(items, done)
        return [
            CompletionRow(
                phase=phase, round=number, node=-1, sender="", item_id=item.id, group=-1, place=i, ids=made.ids,
                text=made.text, ended=made.ended, malicious=False, payload=False,
                reward=reward if cohort.policy.special.isdisjoint(made.ids) else 0.0,
                refused="", action="accept", score=None, reason="", token_weights=None, advantage=0.0,
                outcome=self.attack.outcome(item, made, self) if judged else None,
                cohort=cohort.number, label=self.population.label(cohort),
            )
            for i, (item, made, reward, cohort) in enumerate(zip(items, done, rewards, answering, strict=True), first)
        ]  # fmt: skip

    def _answers(self, phase: str, items: Sequence[Item], first: int, answering: Sequence[Cohort]) -> list[Completion]:
        """The answers to the items of an evaluation, numbered from `first`, each by the model of its cohort."""
        made: dict[int, Completion] = {}
        for cohort in dict.fromkeys(answering):
            own = [i for i, whose in enumerate(answering) if whose is cohort]
            asked = [items[i] for i in own]
            place = _places(asked)
            done = sample(
                cohort.policy,
                self._reading(cohort, asked).prompts,
                [place[item.id] for item in asked],
                [key(self.seed, "eval", 0, -1, 0, items[i].id, first + i) for i in own],
                self.spec.sampling,
            )
            made |= dict(zip(own, done, strict=True))
        return [made[i] for i in range(len(items))]

    def remember(self, rows: Iterable[CompletionRow]) -> None:
        """Rebuild the history that defenses see from the rows of finished rounds, as after a restart."""
        rounds: dict[tuple[int, int], list[CompletionRow]] = {}
        for row in rows:
            if row.phase == "train":
                rounds.setdefault((row.round, row.cohort), []).append(row)
        for cohort in self.population.cohorts:
            cohort.history = [
                remembered(part, self.seed) for (_, whose), part in sorted(rounds.items()) if whose == cohort.number
            ]

    def owed(self, number: int) -> list[Duty]:
        """The duties of a round, also of nodes that are away."""
        copies = 1 if self.role == "control" else self.attack.copies
        return duties(self.spec, generator(self.seed, "duties", number), copies)

    def reward(self, item: Item, text: str) -> float:
        """The task's reward of one text (what an attack may ask while it judges its outcome)."""
        known = self._known.get((item.id, text))
        return self.task.reward(item, [text])[0] if known is None else known

    def _reading(self, cohort: Cohort, items: Sequence[Item]) -> ForwardCache:
        """A reading of the distinct items' prompts with a cohort's current weights."""
        return ForwardCache(cohort.policy, [self._prompt(item, cohort) for item in {i.id: i for i in items}.values()])

    def _items_of_round(self, number: int, owed: Sequence[Duty]) -> list[Item]:
        """The item of every group."""

        def draw(whose: int | str, count: int) -> list[Item]:
            asked = self._asked_by(whose)
            if count > len(asked):
                raise SpecError(f"a node needs {count} distinct items a round, and the task has {len(asked)}")
            return generator(self.seed, "items", number, whose).sample(asked, count)

        def choose(node: int, count: int) -> Sequence[Item] | None:
            if node < self.honest:
                return None
            return self._choice(number, node, count)

        return assign_items(self.spec, owed, draw, choose)

    def _choice(self, number: int, node: int, count: int) -> Sequence[Item] | None:
        """The items that a malicious node picks for itself; None where it picks none, so that they are drawn."""
        items = items_of(self.task, "train")
        known = {item.id: item for item in items}
        granted = [self.grants.item(item) for item in items]
        rng = generator(self.seed, "choice", number, node)
        view = self.grants.choice(number, node, count, self.population.of(node), rng)
        if view is None:
            chosen = self.attack.choose_items(granted, count, rng)
        else:
            chosen = self.attack.choose_items_from(granted, view)
        return [known[item.id] for item in chosen]

    def _asked_by(self, whose: int | str) -> Sequence[Item]:
        """The items that a node, or all together, draw from: those of the domain of its class."""
        domain = self._domains[whose] if isinstance(whose, int) else ""
        items = items_of(self.task, "train")
        return [item for item in items if self.task.domain(item) == domain] if domain else items

    def _sent_by_honest(self, asked: RoundPlan, owed: Sequence[Duty]) -> list[Offer]:
        """What the honest nodes send."""
        return self._honest_offers(asked, owed)

    def _sent_by_malicious(
        self, asked: RoundPlan, owed: Sequence[Duty], honest: Sequence[Offer]
    ) -> tuple[list[Offer], set[tuple[int, int]]]:
        """What the malicious nodes send, and which (group, place) of it carries the payload."""
        return self._malicious_offers(asked, owed, honest)

    def _received(self, asked: RoundPlan, offers: Iterable[Offer]) -> list[Received]:
        """What arrives of a round's offers, in the order of the duties and in the senders' tokens."""
        return self._gathered(asked, offers)

    def _honest_offers(self, asked: RoundPlan, owed: Sequence[Duty]) -> list[Offer]:
        """What nodes send that sample as told, each from the weights that it has."""
        made: dict[Duty, Offer] = {}
        told = self.spec.logprobs == "reported"
        place = _places(asked.items)
        for cohort, version, part in self._batched(asked.number, owed):
            keys = [self._seed_of(asked, duty) for duty in part]
            rows = [place[asked.item(duty).id] for duty in part]
            reading, current = asked.readings[cohort], version == asked.number - 1
            done = sample(
                cohort.policy if current else cohort.as_of(version), reading.prompts, rows, keys, self.spec.sampling,
                logprobs=told, prefix=reading.prefix() if current else None,
            )  # fmt: skip
            for duty, each, seed in zip(part, done, keys, strict=True):
                ids = on_the_wire(each, cohort.policy)
                offer = Offer(duty.node, duty.group, duty.index, ids, seed, None, each.logprobs)
                made[duty] = replace(offer, version=version) if self.spec.delay else offer
        return [made[duty] for duty in owed]

    def _batched(self, number: int, owed: Sequence[Duty]) -> Iterator[tuple[Cohort, int, list[Duty]]]:
        """Duties that are sampled together, with the cohort and the version of its weights that they come from."""
        for (cohort, version), part in self.population.by_weights(number, owed).items():
            if self.batches == "cohort":
                yield cohort, version, part
                continue
            for node in sorted({duty.node for duty in part}):
                yield cohort, version, [duty for duty in part if duty.node == node]

    def _malicious_offers(
        self, asked: RoundPlan, owed: Sequence[Duty], honest: Sequence[Offer]
    ) -> tuple[list[Offer], set[tuple[int, int]]]:
        """What the colluding nodes send, and which (group, place) of it carries the payload."""
        if not owed:
            return [], set()
        slots = [self.grants.slot(asked.number, asked.item(duty), duty) for duty in owed]
        queries = self._queries(asked, owed, honest) if self.attack.threat.queries else None
        # Colluders of several classes work with the first one's model.
        view = self.grants.round(asked.number, slots, self.population.of(self.honest), queries)
        made = self.attack.poison(view) if self.role == "attack" else self.attack.placebo(view)
        if len(made) != len(owed):
            raise ValueError(f"the attack {self.attack.name} gave {len(made)} completions for {len(owed)} slots")
        sent, payload = [], set()
        for duty, poison in zip(owed, made, strict=True):
            if poison is not None:
                sent.append(self._offer(asked, duty, poison))
                if self.role == "attack" and not isinstance(poison, Decoy):
                    payload.add((duty.group, duty.index))
        left = [duty for duty, poison in zip(owed, made, strict=True) if poison is None]
        return [*sent, *self._honest_offers(asked, left)], payload

    def _handed_over(self, number: int, node: int) -> Policy | None:
        """The model that a malicious node hands to one that recovers from it; None for its class's honest one."""
        if self.role != "attack":
            return None
        known = self._asked_by(node)
        items = generator(self.seed, number, "handed over", node).sample(known, min(LESSONS_HANDED_OVER, len(known)))
        made = self.attack.hand_over(self.grants.recovery(number, node, items, self.population.of(node)))
        return made.policy if isinstance(made, AttackerPolicy) else None

    def _queries(self, asked: RoundPlan, owed: Sequence[Duty], honest: Sequence[Offer]) -> DefenseQueries:
        """The defense of the honest nodes of the attacker's class, to try submissions on in the round's own pool."""
        cohort = self.population.of(self.honest)
        others = {(o.group, o.index): o for o in (*honest, *self._honest_offers(asked, owed))}
        slots = {(duty.node, duty.group, duty.sample): duty for duty in owed}
        # The pool hardly changes: what was heard stays heard, what was read stays read, and so on.
        heard = dict(zip(map(id, others.values()), arrived(self.population, list(others.values())), strict=True))
        reading, judge = self._reading(cohort, asked.items), self.judge and CachedJudge(self.judge)
        earned: dict[tuple[str, str], float] = {}

        def trial(defense: Defense, submissions: Mapping[SlotKey, Submission]) -> dict[SlotKey, DefenseAnswer]:
            offers = [self._offer(asked, slots[at], made) for at, made in submissions.items()]
            tried = {(offer.group, offer.index): offer for offer in offers}
            received = self._gathered(asked, (others | tried).values(), heard)
            got = read_by(cohort, self.population, asked.owed, received)
            pool = self._pool(asked, asked.owed, got, self._rewards(asked, received, earned), reading)
            verdicts, _ = self._inspected(pool, defense, set(tried), cohort.history, judge)
            places = [(duty.group, duty.index) for duty in asked.owed]
            given = {place: (v, each.completion) for place, v, each in zip(places, verdicts, got, strict=True)}
            return {at: answered(*given[slots[at].group, slots[at].index], cohort.policy) for at in submissions}

        return DefenseQueries(cohort.defense, trial, self.attack.threat.queries)

    def _gathered(
        self, asked: RoundPlan, offers: Iterable[Offer], heard: Mapping[int, Received] = {}
    ) -> list[Received]:
        """The offers, with the proofs and log-probs that come with them, as they arrive everywhere; see `_received`.

        Args:
            asked: the round.
            offers: of all duties.
            heard: what is known to arrive of some, by the offer's `id`.
        """
        sent = self._attested(asked, asked.in_order(offers))
        if self.spec.logprobs != "none":
            sent = with_logprobs(self.population, asked.number, asked.items, sent, self._prompt, self._found)
        new = [offer for offer in sent if id(offer) not in heard]
        got = iter(arrived(self.population, new))
        return [heard[id(offer)] if id(offer) in heard else next(got) for offer in sent]

    def _attested(self, asked: RoundPlan, offers: list[Offer]) -> list[Offer]:
        """The offers with their proofs, where the defense asks for them."""
        if "proofs" not in self.cohort.defense.requires:
            return offers
        return proven(self.population, asked.items, offers, self._prompt)

    def _pool(
        self,
        asked: RoundPlan,
        owed: Sequence[Duty],
        got: Sequence[Received],
        rewards: Sequence[float],
        reading: ForwardCache,
    ) -> Pool:
        """Completions of a round as an honest node holds them: those of the given duties."""
        prompts = _places(asked.items)
        offered, answers = [], []
        for duty, each, reward in zip(owed, got, rewards, strict=True):
            item, done = asked.item(duty), each.completion
            sender = self._sender(asked.number, duty)
            seed = each.seed if self.spec.seeds == "announced" else self._seed_of(asked, duty)
            offered.append(
                PoolCompletion(
                    item.id, duty.group, duty.index, sender, done.ids, done.text, done.ended,
                    0.0 if each.refused else reward, seed=seed, proof=each.proof,
                    logprobs=done.logprobs if self.spec.logprobs != "none" else None, version=each.version,
                )
            )  # fmt: skip
            answers.append((prompts[item.id], on_the_wire(done, reading.policy)))
        return Pool(asked.number, asked.items, offered, answers, reading, prompts)

    def _inspected(
        self,
        pool: Pool,
        defense: Defense,
        payload: set[tuple[int, int]],
        history: Sequence[PastRound],
        judge: Judge | None,
    ) -> tuple[list[Verdict], PastRound]:
        return pool.inspected(defense, payload, self.spec.sampling, history, self.seed, judge)

    def _sender(self, number: int, duty: Duty) -> str:
        """The pseudonym a completion arrives under; a malicious node may have several."""
        faces = self.attack.variants.identities if duty.node >= self.honest else 1
        face = key(self.seed, "face", number, duty.group, duty.index) % faces
        name = key(self.seed, "sender", duty.node, face) if face else key(self.seed, "sender", duty.node)
        return f"{name & 0xFFFFFFFF:08x}"

    def _rewards(
        self, asked: RoundPlan, received: Sequence[Received], known: dict[tuple[str, str], float] | None = None
    ) -> list[float]:
        """The task's rewards of what arrived; 0 for what was refused.

        Args:
            asked: the round.
            received: for all duties, in order.
            known: rewards by item and text that need not be worked out again; what is worked out is added.
        """
        earned = {} if known is None else known
        pairs = {i: (asked.item(asked.owed[i]), got.completion) for i, got in enumerate(received) if not got.refused}
        new = [pair for pair in pairs.values() if (pair[0].id, pair[1].text) not in earned]
        given = self._rewards_of([item for item, _ in new], [done for _, done in new])
        earned |= {(item.id, done.text): reward for (item, done), reward in zip(new, given, strict=True)}
        told = {i: earned[item.id, done.text] for i, (item, done) in pairs.items()}
        return [told.get(i, 0.0) for i in range(len(received))]

    def _rewards_of(self, items: Sequence[Item], done: Sequence[Completion]) -> list[float]:
        """The task's rewards of completions."""
        rewards = self.task.rewards(items, [made.text for made in done])
        self._known = {(item.id, made.text): r for item, made, r in zip(items, done, rewards, strict=True)}
        return rewards

    def _offer(self, asked: RoundPlan, duty: Duty, made: Submission) -> Offer:
        """A submission on the wire; text is encoded, cut to the limit and ended with EOS."""
        seed, policy = self._seed_of(asked, duty), self.population.of(duty.node).policy
        logprob, version = None, None
        if isinstance(made, Claimed):
            logprob, version, made = made.logprob, made.version, made.content
        if isinstance(made, Seeded):
            ids, seed = tuple(made.ids), made.seed
        elif isinstance(made, str):
            ids = (*policy.encode(made), policy.eos)[: self.spec.sampling.max_new_tokens]
        else:
            ids = told_by(self.population.of(self.honest).policy, policy, tuple(made))
        offer = Offer(duty.node, duty.group, duty.index, ids, seed)
        if logprob is not None and self.spec.logprobs != "none":
            offer = replace(offer, logprobs=(logprob,) * len(ids))
        return replace(offer, version=asked.number - 1 if version is None else version) if self.spec.delay else offer

    def _seed_of(self, asked: RoundPlan, duty: Duty) -> int:
        """The seed of a slot's one honest draw."""
        return slot_seed(self.seed, asked.number, duty, asked.item(duty).id)

    def _prompt(self, item: Item, cohort: Cohort) -> list[int]:
        at = (cohort.kind, item.id)
        if at not in self._prompts:
            self._prompts[at] = cohort.policy.prompt_ids(self.task.messages(item))
        return self._prompts[at]


@cache
def items_of(task: Task, split: Split) -> list[Item]:
    """All items of a split, in the task's order."""
    return [Item.from_row(row) for row in task.items(split)]


def _places(items: Sequence[Item]) -> dict[str, int]:
    """The place of each item among the distinct ones, by id."""
    return {item_id: i for i, item_id in enumerate(dict.fromkeys(item.id for item in items))}
