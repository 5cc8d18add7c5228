"""The settings of a swarm of experts: frozen values, part of a cell's identity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from thiefbench.engine.compatibility import domains_of
from thiefbench.engine.heterogeneity import STRICT
from thiefbench.engine.spec import SpecError, SwarmSpec, check_range
from thiefbench.limits import MOST_COMPLETIONS
from thiefbench.tasks.base import Task

Training = Literal["apart", "together"]
Weighting = Literal["average", "uniform_prior", "cached_prior", "classifier"]
Evidence = Literal["all", "answer"]


@dataclass(frozen=True)
class ExpertsSpec:
    """How experts by domain train and answer; `thiefbench.experts.weighting` has the formulas.

    Attributes:
        training: "apart" (the nodes of a class learn from the groups on their own domain, so that every class becomes
            an expert) or "together" (one model learns from all groups: what experts are compared with).
        weighting: what share an expert has in the next token's probabilities: "average" (equal shares),
            "uniform_prior" (the posterior of its domain given all tokens so far), "cached_prior" (the same, from a
            prior that was measured on the question's domain), or "classifier" (the posterior of its domain given the
            words of the question, by naive Bayes).
        evidence: which tokens count as evidence for a domain: "all" (question and answer) or "answer" (only those of
            the answer, for experts that never learned to write questions). `average` and `classifier` use none.
        top: at each token only so many experts with the largest shares answer; 0 for all of them.
        prior_sequences: on how many training questions with their solutions `cached_prior` measures its prior.
        prior_decay: its decay.
    """

    __pydantic_config__ = STRICT

    training: Training = "apart"
    weighting: Weighting = "cached_prior"
    evidence: Evidence = "all"
    top: int = 0
    prior_sequences: int = 100
    prior_decay: float = 0.3

    def __post_init__(self) -> None:
        for name, kinds in (("training", Training), ("weighting", Weighting), ("evidence", Evidence)):
            if getattr(self, name) not in get_args(kinds):
                raise SpecError(
                    f"experts.{name} must be one of {', '.join(get_args(kinds))}, got {getattr(self, name)!r}"
                )
        check_range("experts.prior_sequences", self.prior_sequences, 1, MOST_COMPLETIONS)
        if self.top < 0:
            raise SpecError(f"experts.top must be at least 0, got {self.top}")
        if not (math.isfinite(self.prior_decay) and 0 < self.prior_decay <= 1):
            raise SpecError(f"experts.prior_decay must lie in (0, 1], got {self.prior_decay}")

    def check(self, swarm: SwarmSpec) -> None:
        """See that a swarm's classes can be experts.

        Raises:
            SpecError: they cannot; the message says what to write.
        """
        domains = [each.domain for each in swarm.population]
        if len(domains) < 2:
            raise SpecError("experts need a population of at least two classes, each with a domain")
        if "" in domains:
            raise SpecError(
                f"each expert needs a domain, and {swarm.population[domains.index('')].label} has none; give its class "
                "one"
            )
        if twice := next((domain for domain in domains if domains.count(domain) > 1), ""):
            raise SpecError(f"two classes have the domain {twice}; give each expert a domain of its own")
        if self.top > len(domains):
            raise SpecError(f"experts.top must be at most the number of experts, {len(domains)} here, got {self.top}")
        honest = swarm.classes[: swarm.nodes - swarm.malicious]
        if empty := next((each for kind, each in enumerate(swarm.population) if kind not in honest), None):
            raise SpecError(f"no honest node is left for {empty.label}; add nodes, or make fewer of them malicious")
        if self.training == "together" and self != ExpertsSpec(training="together"):
            raise SpecError("with training: together one model answers; leave out the other fields of experts")
        models = dict.fromkeys(each.model for each in swarm.population)
        if self.training == "together" and len(models) > 1:
            raise SpecError(f"training: together starts one model, and the classes name {' and '.join(models)}")
        others = {"delay": swarm.delay, "churn": swarm.churn, "sharing": swarm.sharing}
        if given := next((name for name, value in others.items() if value), None):
            raise SpecError(f"a swarm of experts has no {given} yet; take it out, or take experts out")
        if swarm.truth != "public" or swarm.logprobs != "none" or swarm.reward != "rule":
            raise SpecError(
                "a swarm of experts learns from public answers, on-policy; leave out truth, logprobs, reward"
            )

    def check_task(self, swarm: SwarmSpec, task: Task) -> None:
        """See that a task has the experts' domains.

        Raises:
            SpecError: it lacks one.
        """
        domains_of(swarm, task)


def sides(swarm: SwarmSpec, task: Task) -> dict[str, str]:
    """The label of every domain's questions: inside or outside the malicious nodes' domains, if there are any.

    Args:
        swarm: its malicious nodes are those of the attacked swarm, in the control too.
        task: its domains may be more than the experts have.
    """
    attacked = {swarm.population[kind].domain for kind in swarm.classes[swarm.nodes - swarm.malicious :]}
    if not swarm.malicious:
        return {domain: domain for domain in task.domains}
    return {domain: f"{domain} ({'inside' if domain in attacked else 'outside'})" for domain in task.domains}
