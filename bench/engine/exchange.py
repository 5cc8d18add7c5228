"""All-gather: what arrives of a round's offers, in whose tokens, and with which claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from thiefbench.defenses.base import Defense
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.model.forward_cache import CompletionKey, ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.population import Population
from thiefbench.engine.topology import Duty
from thiefbench.engine.transport import Offer, Received, carried_over, malformed, receive, stated_version
from thiefbench.tasks.base import Completion, Item

ClaimCache = dict[tuple[int, int, int, tuple[int, ...]], tuple[float, ...]]
"""Log-probs that were worked out in a round, by cohort number, version, group and token ids."""

UNREADABLE = "its log-probs are missing or cannot be read"


def on_the_wire(done: Completion, policy: Policy) -> tuple[int, ...]:
    """A completion's token ids, the closing EOS included."""
    return (*done.ids, policy.eos) if done.ended else done.ids


def arrived(population: Population, sent: Sequence[Offer]) -> list[Received]:
    """Offers after the receivers' checks, in order, each read with the tokenizer of its sender's class.

    Where log-probs travel, one without any that can be read is refused.
    """
    spec = population.spec
    made: dict[int, Received] = {}
    for kind in dict.fromkeys(population.classes):
        own = [i for i, offer in enumerate(sent) if population.classes[offer.node] == kind]
        policy = population.first(kind).policy
        got = receive(policy, [sent[i] for i in own], spec.sampling.max_new_tokens)
        made |= dict(zip(own, got, strict=True))
    received = [made[i] for i in range(len(sent))]
    if spec.logprobs == "none":
        return received
    return [got if got.refused or got.completion.logprobs else replace(got, refused=UNREADABLE) for got in received]


def read_by(
    cohort: Cohort, population: Population, owed: Sequence[Duty], received: Sequence[Received]
) -> list[Received]:
    """What a cohort makes of what arrived for the given duties: texts of another tokenizer in its own tokens."""
    made: dict[int, Received] = {}
    limit = population.spec.sampling.max_new_tokens
    for kind in dict.fromkeys(population.classes):
        own = [i for i, duty in enumerate(owed) if population.classes[duty.node] == kind]
        sender = population.first(kind).policy
        made |= dict(zip(own, carried_over([received[i] for i in own], sender, cohort.policy, limit), strict=True))
    return [made[i] for i in range(len(received))]


def with_logprobs(
    population: Population,
    number: int,
    items: Sequence[Item],
    sent: Sequence[Offer],
    prompt: Callable[[Item, Cohort], list[int]],
    found: ClaimCache,
) -> list[Offer]:
    """The offers with log-probs: recomputed by the receivers, or, where a malicious node reports none, true ones.

    Whoever recomputes runs the sender's model with the weights of the version that it claims.

    Args:
        population: whose models are run.
        number: of the round.
        items: of every group.
        sent: the offers.
        prompt: an item's prompt in a cohort's tokens.
        found: in this round so far, and what is worked out now: who asks the defense offers much of it again.
    """
    spec = population.spec
    made = list(sent)
    asked: dict[tuple[Cohort, int], list[int]] = {}
    for place, offer in enumerate(sent):
        cohort = population.of(offer.node)
        wanted = spec.logprobs == "recomputed" or offer.logprobs is None
        if wanted and not malformed(cohort.policy, offer.ids, spec.sampling.max_new_tokens):
            asked.setdefault((cohort, population.version(cohort, stated_version(offer), number)), []).append(place)
    for (cohort, version), places in asked.items():
        told = {place: (cohort.number, version, sent[place].group, sent[place].ids) for place in places}
        if missing := [at[2:] for at in told.values() if at not in found]:
            model = cohort.policy if version == number - 1 else cohort.as_of(version)
            reading = ForwardCache(model, [prompt(item, cohort) for item in items])
            with torch.no_grad():
                for chunk in reading.chunks(missing):
                    parts = torch.split(chunk.logprobs(spec.sampling.temperature), chunk.counts)
                    for answer, part in zip(chunk.answers, parts, strict=True):
                        found[cohort.number, version, *answer] = tuple(part.tolist())
        for place in places:
            made[place] = replace(sent[place], logprobs=found[told[place]])
    return made


def proven(
    population: Population, items: Sequence[Item], sent: Sequence[Offer], prompt: Callable[[Item, Cohort], list[int]]
) -> list[Offer]:
    """The offers with valid proofs, malicious ones too: each node runs its model over what it sends, by itself.

    Args:
        population: whose models are run; after a crash a node's may have other weights.
        items: of every group.
        sent: the offers.
        prompt: an item's prompt in a cohort's tokens.
    """
    limit = population.spec.sampling.max_new_tokens
    answers = [(offer.group, offer.ids) for offer in sent]
    made = list(sent)
    for node in {offer.node for offer in sent}:
        cohort = population.of(node)
        own = [i for i, o in enumerate(sent) if o.node == node and not malformed(cohort.policy, o.ids, limit)]
        prompts = [prompt(item, cohort) for item in items]
        proofs = proofs_of(cohort.policy, prompts, [answers[place] for place in own], cohort.defense)
        for place, proof in zip(own, proofs, strict=True):
            made[place] = replace(sent[place], proof=proof)
    return made


def proofs_of(
    policy: Policy, prompts: Sequence[Sequence[int]], answers: Sequence[CompletionKey], defense: Defense
) -> list[bytes]:
    """A node's valid proofs of what it sends: it runs its model over that, and nothing else.

    Args:
        policy: the node's own.
        prompts: token ids; answers name them by position.
        answers: of one token at least.
        defense: says how proofs are made.
    """
    states: dict[CompletionKey, torch.Tensor] = {}
    for chunk in ForwardCache(policy, prompts).chunks(answers):
        parts = torch.split(chunk.hidden.float().cpu(), chunk.counts)
        states |= dict(zip(chunk.answers, parts, strict=True))
    return [defense.prove(states[answer].numpy()) for answer in answers]
