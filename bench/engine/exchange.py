"""All-gather: adding claims and proofs to offers, and how every cohort reads received offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from thiefbench.defenses.base import Defense
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.model.forward_cache import CompletionKey, ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.population import Population
from thiefbench.engine.round_plan import ClaimCache
from thiefbench.engine.topology import Assignment
from thiefbench.engine.transport import Offer, Received, carried_over, malformed, receive, stated_version
from thiefbench.tasks.base import Completion, Item

UNREADABLE = "its log-probs are missing or cannot be read"


def on_the_wire(completion: Completion, policy: Policy) -> tuple[int, ...]:
    """A completion's token ids, the closing EOS included."""
    return (*completion.ids, policy.eos) if completion.ended else completion.ids


def arrived(
    population: Population, offers: Sequence[Offer], known: Mapping[int, Received] | None = None
) -> list[Received]:
    """Offers after the receivers' checks, in order, each read with the tokenizer of its sender's class.

    If log-probs are sent, an offer without readable ones is refused.

    Args:
        population: the senders and receivers.
        offers: the offers that were sent.
        known: results for offers that were already received, by the offer's `id`; these are not checked again.
    """
    spec, known = population.spec, known or {}
    received: dict[int, Received] = {}
    for kind in dict.fromkeys(population.classes):
        sent = [
            i for i, offer in enumerate(offers) if id(offer) not in known and population.classes[offer.node] == kind
        ]
        policy = population.first(kind).policy
        checked = receive(policy, [offers[i] for i in sent], spec.sampling.max_new_tokens)
        received |= dict(zip(sent, checked, strict=True))
    if spec.logprobs != "none":
        for i, arrival in received.items():
            if not arrival.refused and not arrival.completion.logprobs:
                received[i] = replace(arrival, refused=UNREADABLE)
    return [known[id(offer)] if id(offer) in known else received[i] for i, offer in enumerate(offers)]


def read_by(
    cohort: Cohort, population: Population, assignments: Sequence[Assignment], received: Sequence[Received]
) -> list[Received]:
    """The received completions for the given assignments in a cohort's own tokens."""
    carried: dict[int, Received] = {}
    limit = population.spec.sampling.max_new_tokens
    for kind in dict.fromkeys(population.classes):
        sent = [i for i, assignment in enumerate(assignments) if population.classes[assignment.node] == kind]
        sender = population.first(kind).policy
        in_own_tokens = carried_over([received[i] for i in sent], sender, cohort.policy, limit)
        carried |= dict(zip(sent, in_own_tokens, strict=True))
    return [carried[i] for i in range(len(received))]


def with_logprobs(
    population: Population,
    number: int,
    items: Sequence[Item],
    offers: Sequence[Offer],
    prompt: Callable[[Item, Cohort], list[int]],
    recomputed: ClaimCache,
) -> list[Offer]:
    """The offers with log-probs: recomputed by the receivers, or true ones if a malicious node reports none.

    To recompute, a receiver runs the sender's model with the weights of the claimed version.

    Args:
        population: the population, whose models are run.
        number: the round's number.
        items: of every group.
        offers: that are sent.
        prompt: an item's prompt in a cohort's tokens.
        recomputed: the log-probs recomputed so far in this round; new ones are added, because an attack that queries
            the defense offers many completions again.
    """
    spec = population.spec
    completed = list(offers)
    lacking: dict[tuple[Cohort, int], list[int]] = {}
    for i, offer in enumerate(offers):
        cohort = population.of(offer.node)
        wanted = spec.logprobs == "recomputed" or offer.logprobs is None
        if wanted and not malformed(cohort.policy, offer.ids, spec.sampling.max_new_tokens):
            version = population.version(cohort, stated_version(offer), number)
            lacking.setdefault((cohort, version), []).append(i)
    for (cohort, version), indices in lacking.items():
        keys = {i: (cohort.number, version, offers[i].group, offers[i].ids) for i in indices}
        if missing := [key[2:] for key in keys.values() if key not in recomputed]:
            model = cohort.policy if version == number - 1 else cohort.as_of(version)
            cache = ForwardCache(model, [prompt(item, cohort) for item in items])
            with torch.no_grad():
                for chunk in cache.chunks(missing):
                    parts = torch.split(chunk.logprobs(spec.sampling.temperature), chunk.counts)
                    for answer, part in zip(chunk.answers, parts, strict=True):
                        recomputed[cohort.number, version, *answer] = tuple(part.tolist())
        for i in indices:
            completed[i] = replace(offers[i], logprobs=recomputed[keys[i]])
    return completed


def proven(
    population: Population, items: Sequence[Item], offers: Sequence[Offer], prompt: Callable[[Item, Cohort], list[int]]
) -> list[Offer]:
    """The offers with valid proofs, malicious ones included: each node runs its model over its own offers.

    Args:
        population: the population, whose models are run; after a crash, a node may have other weights.
        items: of every group.
        offers: that are sent.
        prompt: an item's prompt in a cohort's tokens.
    """
    limit = population.spec.sampling.max_new_tokens
    proven_offers = list(offers)
    for node in {offer.node for offer in offers}:
        cohort = population.of(node)
        sent = [
            i for i, offer in enumerate(offers) if offer.node == node and not malformed(cohort.policy, offer.ids, limit)
        ]
        prompts = [prompt(item, cohort) for item in items]
        proofs = proofs_of(cohort.policy, prompts, [(offers[i].group, offers[i].ids) for i in sent], cohort.defense)
        for i, proof in zip(sent, proofs, strict=True):
            proven_offers[i] = replace(offers[i], proof=proof)
    return proven_offers


def proofs_of(
    policy: Policy, prompts: Sequence[Sequence[int]], answers: Sequence[CompletionKey], defense: Defense
) -> list[bytes]:
    """A node's valid proofs of its completions: it runs its model over these only.

    Args:
        policy: the node's own.
        prompts: token ids; answers name them by position.
        answers: with at least one token each.
        defense: computes the proofs.
    """
    states: dict[CompletionKey, torch.Tensor] = {}
    for chunk in ForwardCache(policy, prompts).chunks(answers):
        parts = torch.split(chunk.hidden.float().cpu(), chunk.counts)
        states |= dict(zip(chunk.answers, parts, strict=True))
    return [defense.prove(states[answer].numpy()) for answer in answers]
