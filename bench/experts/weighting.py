"""The share of each expert in the next token. Pure functions of log-probabilities.

Notation: K experts, one for each domain D; x_<t the tokens so far. The ensemble's next-token probabilities are those of
Branch-Train-Merge (arXiv:2208.03306) and HDEE (arXiv:2502.19385), in the form of HDEE's code (`eval_ensemble.py`):

    p(x_t | x_<t) = sum_j p(x_t | x_<t, D = j) p(D = j | x_<t)
    p(D = j | x_<t) = softmax over j of (sum_s<t log p(x_s | x_<s, D = j) + log p(D = j))

`uniform_prior` takes equal p(D = j). `cached_prior` measures them before, on sequences of the domain that is asked
about, by HDEE's `precompute_domain_prior`. There, `average` ("simple_avg") adds log-probabilities without normalising
them; here it is the mean of the probabilities, as the formula has it with constant posteriors.

Chosen here: HDEE's experts are models of whole texts and are scored by perplexity. Here the mixture is sampled from,
and the built-in models have only learned to write answers, so `evidence: answer` leaves the question's tokens out. The
`classifier` takes the place of c-BTM's (arXiv:2303.14177), which weights experts by the distance of the text to
clusters; domains are known here, so it is trained on their questions. `top` keeps the largest shares, as in c-BTM.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import torch

_WORD = re.compile(r"[^\W\d_]+")


def shares(scores: torch.Tensor, top: int = 0) -> torch.Tensor:
    """Log-shares of the experts.

    Args:
        scores: log-likelihood plus log-prior of each expert, float64, shape (rows, experts).
        top: how many experts keep a share; 0 for all. Among equal scores, the first expert comes first.

    Returns:
        Log-shares that add up to 1 in every row, -inf for experts without one; shape (rows, experts).
    """
    if 0 < top < scores.shape[1]:
        kept = scores.sort(dim=1, descending=True, stable=True).indices[:, :top]
        scores = torch.full_like(scores, -torch.inf).scatter(1, kept, scores.gather(1, kept))
    return scores.log_softmax(1)


def mixture(logprobs: torch.Tensor, log_shares: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the ensemble's next token.

    Args:
        logprobs: of each expert over the vocabulary, shape (rows, experts, vocabulary).
        log_shares: from `shares`, shape (rows, experts).

    Returns:
        shape (rows, vocabulary).
    """
    return (logprobs + log_shares[:, :, None].to(logprobs.dtype)).logsumexp(1)


def cached_prior(log_likelihoods: torch.Tensor, decay: float) -> torch.Tensor:
    """The log-prior that HDEE measures on sequences of a domain.

    From p = (1, ..., 1), for the n-th sequence: posterior = softmax(log-likelihood + log p), then p <- decay^n p +
    posterior. As decay^n soon vanishes, each sequence's posterior becomes the prior of the next.

    Args:
        log_likelihoods: of whole sequences under each expert, float64, shape (sequences, experts).
        decay: HDEE uses 0.3.

    Returns:
        normalised, shape (experts,).
    """
    log_prior = torch.zeros(log_likelihoods.shape[1], dtype=torch.float64)
    for number, row in enumerate(log_likelihoods, 1):
        posterior = (row + log_prior).log_softmax(0)
        log_prior = torch.logaddexp(number * math.log(decay) + log_prior, posterior)
    return log_prior.log_softmax(0)


class DomainClassifier:
    """Naive Bayes on the words of questions: multinomial, with one added count for every known word.

    Args:
        questions: by domain, questions to learn from; at least one of each.

    Raises:
        ValueError: a domain has no question.
    """

    def __init__(self, questions: Mapping[str, Sequence[str]]) -> None:
        if empty := next((domain for domain, known in questions.items() if not known), None):
            raise ValueError(f"there is no question on {empty} to learn from")
        counts = {domain: Counter(_words(" ".join(known))) for domain, known in questions.items()}
        words = sorted(set().union(*counts.values()))
        total = sum(len(known) for known in questions.values())
        self._log_prior = torch.tensor(
            [math.log(len(known) / total) for known in questions.values()], dtype=torch.float64
        )
        table = torch.tensor([[count[word] + 1 for word in words] for count in counts.values()], dtype=torch.float64)
        self._log_words = (table / table.sum(1, keepdim=True)).log().T
        self._place = {word: place for place, word in enumerate(words)}

    def log_posterior(self, question: str) -> torch.Tensor:
        """Log-probabilities of the domains, in their order, shape (domains,); unknown words say nothing."""
        known = [self._place[word] for word in _words(question) if word in self._place]
        return (self._log_prior + self._log_words[known].sum(0)).log_softmax(0)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
