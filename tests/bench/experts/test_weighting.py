"""The experts' shares, their prior, and the classifier: against the formulas, written the long way."""

from __future__ import annotations

import math

import pytest
import torch

from thiefbench.experts.weighting import DomainClassifier, cached_prior, mixture, shares


def test_shares_are_a_posterior() -> None:
    likelihood, prior = torch.tensor([[0.2, 0.05, 0.1]], dtype=torch.float64), torch.tensor([0.1, 0.6, 0.3])
    posterior = shares(likelihood.log() + prior.double().log()).exp()
    expected = [0.02 / 0.08, 0.03 / 0.08, 0.03 / 0.08]
    assert posterior[0].tolist() == pytest.approx(expected)


def test_only_the_largest_shares_are_kept() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert shares(scores, top=1).exp().tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    two = shares(scores, top=2).exp()[0]
    assert (
        two[0] == 0 and two.sum().item() == pytest.approx(1) and two[1].item() == pytest.approx(1 / (1 + math.exp(-1)))
    )
    assert torch.equal(shares(scores, top=3), shares(scores))


def test_the_mixture_is_the_weighted_mean_of_probabilities() -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs = torch.randn(4, 3, 7, generator=generator).log_softmax(2)
    weights = torch.rand(4, 3, generator=generator, dtype=torch.float64)
    weights /= weights.sum(1, keepdim=True)
    expected = (logprobs.exp() * weights[:, :, None]).sum(1)
    mixed = mixture(logprobs, weights.log()).exp()
    assert torch.allclose(mixed.double(), expected.double(), atol=1e-6)
    assert torch.allclose(mixed.sum(1), torch.ones(4), atol=1e-6)


def test_an_expert_without_a_share_changes_nothing() -> None:
    logprobs = torch.randn(1, 2, 5, generator=torch.Generator().manual_seed(1)).log_softmax(2)
    assert torch.equal(mixture(logprobs, torch.tensor([[0.0, -torch.inf]])), logprobs[:, 0])


@pytest.mark.parametrize("decay", [0.3, 1.0])
def test_the_cached_prior_is_hdees(decay: float) -> None:
    """In probabilities instead of their logarithms, as the formula is written in the docstring."""
    likelihoods = torch.rand(5, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    prior = torch.ones(3, dtype=torch.float64)
    for number, row in enumerate(likelihoods, 1):
        posterior = row * prior / (row * prior).sum()
        prior = decay**number * prior + posterior
    assert torch.allclose(cached_prior(likelihoods.log(), decay).exp(), prior / prior.sum())


def test_the_cached_prior_survives_long_sequences() -> None:
    far = torch.tensor([[-9000.0, -10000.0]] * 100, dtype=torch.float64)
    prior = cached_prior(far, 0.3)
    assert prior[0] == pytest.approx(0.0) and prior.exp().sum().item() == pytest.approx(1)
    assert not prior.isnan().any()


def test_the_classifier_is_naive_bayes() -> None:
    learned = DomainClassifier({"fruit": ["apples and pears", "pears"], "tools": ["a saw"]})
    # Known words: a, and, apples, pears, saw. One is added to every count.
    fruit, tools = (2 / 3) * (3 / 9) * (1 / 9), (1 / 3) * (1 / 7) * (2 / 7)
    posterior = learned.log_posterior("Pears, saw... 7 unknowns").exp()
    assert posterior.tolist() == pytest.approx([fruit / (fruit + tools), tools / (fruit + tools)])
    assert learned.log_posterior("7?").exp().tolist() == pytest.approx([2 / 3, 1 / 3]), "no known word: the prior"


def test_a_domain_without_questions_is_named() -> None:
    with pytest.raises(ValueError, match="no question on tools"):
        DomainClassifier({"fruit": ["apples"], "tools": []})
