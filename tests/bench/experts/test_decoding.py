"""Sampling from a mixture: one expert's tokens where it has all shares, and shares that follow the evidence."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.bench import tiny
from thiefbench.engine.learning.cohort import DivergedError
from thiefbench.engine.model.decoding import sample
from thiefbench.engine.model.policy import Policy
from thiefbench.experts.decoding import log_likelihoods, sample_ensemble
from thiefbench.tasks.base import Sampling

SAMPLING = Sampling(max_new_tokens=12)
ROWS = [i % 3 for i in range(40)]
KEYS = [1000 + i for i in range(40)]


@pytest.fixture(scope="module")
def experts() -> list[Policy]:
    first = Policy.load(tiny.model())
    second = copy.deepcopy(first)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for weight in second.weights().values():
            weight += 0.05 * torch.randn(weight.shape, generator=generator)
    return [first, second]


@pytest.fixture(scope="module")
def prompts(experts: list[Policy]) -> list[list[int]]:
    return [experts[0].prompt_ids([{"role": "user", "content": text}]) for text in ("1 + 1?", "20 apples", "So?")]


def scores(*of: float) -> torch.Tensor:
    return torch.tensor([list(of)] * 3, dtype=torch.float64)


@pytest.mark.parametrize("updates", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_an_expert_with_all_shares_answers_as_it_would_alone(
    experts: list[Policy], prompts: list[list[int]], number: int, updates: bool
) -> None:
    of = scores(*(0.0 if i == number else -torch.inf for i in range(2)))
    answers = sample_ensemble(experts, prompts, of, ROWS, KEYS, SAMPLING, updates)
    alone = sample(experts[number], prompts, ROWS, KEYS, SAMPLING)
    assert [answer.completion for answer in answers] == alone
    assert all(answer.shares == pytest.approx([1 - number, number]) for answer in answers)


def test_experts_answer_otherwise_together(experts: list[Policy], prompts: list[list[int]]) -> None:
    together = [a.completion for a in sample_ensemble(experts, prompts, scores(0, 0), ROWS, KEYS, SAMPLING, False)]
    assert together != sample(experts[0], prompts, ROWS, KEYS, SAMPLING)
    assert together != sample(experts[1], prompts, ROWS, KEYS, SAMPLING)
    best = [a.completion for a in sample_ensemble(experts, prompts, scores(0, 1), ROWS, KEYS, SAMPLING, False, top=1)]
    assert best == sample(experts[1], prompts, ROWS, KEYS, SAMPLING)


def test_every_token_is_evidence_for_the_next_ones_shares(experts: list[Policy], prompts: list[list[int]]) -> None:
    before = scores(0.3, -0.2)
    answers = sample_ensemble(experts, prompts, before, ROWS, KEYS, SAMPLING, True)
    for answer, row in list(zip(answers, ROWS, strict=True))[:6]:
        ids = [*answer.completion.ids, experts[0].eos] if answer.completion.ended else list(answer.completion.ids)
        parts = [[(prompts[row], ids[:length])] for length in range(len(ids))]
        likelihoods = torch.stack(
            [torch.stack([log_likelihoods(expert, part)[0] for part in parts]) for expert in experts], 1
        )
        expected = (likelihoods + before[0]).softmax(1).mean(0)
        assert list(answer.shares) == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_likelihood_is_the_sum_over_its_tokens(experts: list[Policy], prompts: list[list[int]]) -> None:
    whole = log_likelihoods(experts[0], [(prompts[0][:1], prompts[0][1:]), (prompts[1], [])])
    ids = torch.tensor([prompts[0]])
    with torch.no_grad():
        logits = experts[0].model(ids).logits[0, :-1].log_softmax(1)
    assert whole[0].item() == pytest.approx(logits.gather(1, ids[0, 1:, None]).sum().item(), abs=1e-3)
    assert whole[1] == 0


def test_an_expert_that_is_not_finite_ends_it_in_words(experts: list[Policy], prompts: list[list[int]]) -> None:
    broken = copy.deepcopy(experts[1])
    with torch.no_grad():
        next(iter(broken.weights().values())).fill_(torch.nan)
    with pytest.raises(DivergedError, match="not finite"):
        sample_ensemble([experts[0], broken], prompts, scores(0, 0), ROWS, KEYS, SAMPLING, False)
    with pytest.raises(DivergedError, match="not finite"):
        sample_ensemble(experts, prompts, scores(0, torch.nan), ROWS, KEYS, SAMPLING, False)
