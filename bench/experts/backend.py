"""The nodes of experts: they ask about their own domain only, and answer evaluations together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import torch

from thiefbench.engine.backends.local import LocalBackend
from thiefbench.engine.context import items_of
from thiefbench.engine.keys import generator, key
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.round_plan import distinct_indices
from thiefbench.engine.spec import Batches
from thiefbench.engine.topology import Assignment
from thiefbench.experts.decoding import log_likelihoods, sample_ensemble
from thiefbench.experts.spec import ExpertsSpec
from thiefbench.experts.weighting import DomainClassifier, cached_prior
from thiefbench.tasks.base import Completion, Item


class DomainBackend(LocalBackend):
    """Simulates all nodes, of which the malicious ones, too, answer questions of their class's domain only.

    Receivers know the questions, and an expert's nodes learn from groups on its own domain.
    """

    def items(self, number: int, assignments: Sequence[Assignment]) -> list[Item]:
        """Items are drawn, except for those that malicious nodes pick."""
        return self.context.assign_items(number, assignments, partial(self._picked, number))

    def _picked(self, number: int, node: int, count: int) -> list[Item]:
        """The engine's `choose_items`, from the questions of a malicious node's domain."""
        context = self.context
        by_id = {item.id: item for item in context.items_for(node)}
        granted = [context.views.item(item) for item in by_id.values()]
        rng = generator(context.seed, "choice", number, node)
        view = context.views.choice(number, node, count, context.population.of(node), rng)
        if view is None:
            chosen = context.attack.choose_items(granted, count, rng)
        else:
            chosen = context.attack.choose_items_from(granted, view)
        return [by_id[item.id] for item in chosen]


class EnsembleBackend(DomainBackend):
    """A `DomainBackend` in which all experts answer evaluations together.

    Args:
        experts: how they do.
        batches: see `LocalBackend`.

    Attributes:
        led: by phase and number of an answer in the last evaluation, the cohort with the largest mean share.
    """

    def __init__(self, experts: ExpertsSpec, batches: Batches = "cohort") -> None:
        super().__init__(batches)
        self.experts = experts
        self.led: dict[tuple[str, int], int] = {}

    def answers(self, phase: str, items: Sequence[Item], first: int, cohorts: Sequence[Cohort]) -> list[Completion]:
        """Each answer is sampled from the ensemble with the key that a single model's has (see `LocalBackend`)."""
        context, experts = self.context, self._cohorts
        at = distinct_indices(items)
        distinct = list({item.id: item for item in items}.values())
        answered = sample_ensemble(
            [cohort.policy for cohort in experts],
            [context.prompt(item, experts[0]) for item in distinct],
            self._before(distinct),
            [at[item.id] for item in items],
            [key(context.seed, "eval", 0, -1, 0, item.id, number) for number, item in enumerate(items, first)],
            context.spec.sampler,
            updates=self.experts.weighting in ("uniform_prior", "cached_prior"),
            top=self.experts.top,
        )
        for number, answer in enumerate(answered, first):
            self.led[phase, number] = experts[answer.shares.index(max(answer.shares))].number
        return [answer.completion for answer in answered]

    @property
    def _cohorts(self) -> list[Cohort]:
        """One cohort for each expert, in the order of the classes."""
        return self.context.population.cohorts

    def _before(self, items: Sequence[Item]) -> torch.Tensor:
        """What speaks for each expert before the answers to some items begin, shape (items, experts)."""
        if self.experts.weighting == "classifier":
            return torch.stack([self._classifier.log_posterior(item.question) for item in items])
        scores = torch.zeros(len(items), len(self._cohorts), dtype=torch.float64)
        if self.experts.weighting == "average":
            return scores
        if self.experts.evidence == "all":
            scores += self._log_likelihoods([self._split(item) for item in items])
        if self.experts.weighting == "cached_prior":
            domains = [self.context.task.domain(item) for item in items]
            priors = {domain: self._prior(domain) for domain in dict.fromkeys(domains)}
            scores += torch.stack([priors[domain] for domain in domains])
        return scores

    def _prior(self, domain: str) -> torch.Tensor:
        """The experts' prior on a domain's questions, measured on training questions with their oracle solutions."""
        context, task, count = self.context, self.context.task, self.experts.prior_sequences
        known = [item for item in items_of(task, "train") if task.domain(item) == domain]
        drawn = generator(context.seed, "prior", domain).sample(known, min(count, len(known)))
        if not drawn:  # nothing is known of this domain
            return torch.zeros(len(self._cohorts), dtype=torch.float64)
        policy = self._cohorts[0].policy
        texts = []
        for item in drawn:
            answer = [*policy.encode(task.oracle(item)), policy.eos]
            before, question = self._split(item)
            texts.append(
                (before, [*question, *answer]) if self.experts.evidence == "all" else ([*before, *question], answer)
            )
        return cached_prior(self._log_likelihoods(texts), self.experts.prior_decay)

    def _split(self, item: Item) -> tuple[list[int], list[int]]:
        """An item's prompt as its first token, which nothing predicts, and the rest."""
        prompt = self.context.prompt(item, self._cohorts[0])
        return prompt[:1], prompt[1:]

    def _log_likelihoods(self, texts: Sequence[tuple[list[int], list[int]]]) -> torch.Tensor:
        """Of texts under every expert, shape (texts, experts)."""
        return torch.stack([log_likelihoods(cohort.policy, texts) for cohort in self._cohorts], 1)

    @cached_property
    def _classifier(self) -> DomainClassifier:
        """Of the experts' domains, in their order, trained on all training questions."""
        task, domains = self.context.task, [each.domain for each in self.context.spec.population]
        questions: dict[str, list[str]] = {domain: [] for domain in domains}
        for item in items_of(task, "train"):
            if (domain := task.domain(item)) in questions:
                questions[domain].append(item.question)
        return DomainClassifier(questions)
