from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from scipy.stats import chisquare

from thiefbench.engine.keys import key
from thiefbench.engine.model import decoding
from thiefbench.engine.model.decoding import choose, sample, support
from thiefbench.engine.model.noise import gumbel
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.model.stepping import FusedStepper
from thiefbench.engine.sampler import sampler
from thiefbench.tasks.base import Completion, Sampling

ROWS = 48
SETTINGS = [
    Sampling(top_k=40, max_new_tokens=14),
    Sampling(top_k=0, max_new_tokens=14),
    Sampling(temperature=0.6, top_k=20, top_p=0.9, max_new_tokens=14),
]


def draw(
    policy: Policy, prompts: Sequence[Sequence[int]], which: Sequence[int], sampling: Sampling
) -> list[Completion]:
    """Completions of the given slots out of `ROWS`; slot i answers prompt i mod 12 with its own key."""
    return sample(policy, prompts, [i % 12 for i in which], [key("slot", i) for i in which], sampling, logprobs=True)


def tokens(policy: Policy, done: Completion) -> tuple[int, ...]:
    return (*done.ids, policy.eos) if done.ended else done.ids


@torch.no_grad()
def reference_row(policy: Policy, prompt: Sequence[int], row_key: int, sampling: Sampling) -> list[int]:
    """One row by the book: a full forward pass for each token, then the best of scaled logit plus noise."""
    ids: list[int] = []
    while len(ids) < sampling.max_new_tokens and policy.eos not in ids:
        logits = policy.model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, -1]
        allowed = slow_support(logits.tolist(), sampling)
        noise = gumbel(torch.tensor([row_key]), len(ids), torch.arange(len(logits))[None])[0].tolist()
        ids.append(max(allowed, key=lambda token: allowed[token] + noise[token]))
    return ids


def slow_support(logits: Sequence[float], sampling: Sampling) -> dict[int, float]:
    """Scaled logits of the support: sort, keep top_k, then the fewest whose probability reaches top_p."""
    best_first = sorted(range(len(logits)), key=lambda token: -logits[token])
    kept = {token: logits[token] / sampling.temperature for token in best_first[: sampling.top_k or None]}
    weights = torch.tensor(list(kept.values()), dtype=torch.float64).softmax(0).tolist()
    reached, allowed = 0.0, {}
    for (token, score), weight in zip(kept.items(), weights, strict=True):
        if reached >= sampling.top_p:
            break
        allowed[token] = score
        reached += weight
    return allowed


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_tokens_equal_a_plain_loop_with_the_same_noise(
    sampling: Sampling, policy: Policy, prompts: list[list[int]]
) -> None:
    done = draw(policy, prompts, range(ROWS), sampling)
    expected = [reference_row(policy, prompts[i % 12], key("slot", i), sampling) for i in range(ROWS)]
    differing = [i for i in range(ROWS) if list(tokens(policy, done[i])) != expected[i]]
    assert len(differing) == 0, f"in float32 no near-tie flips a token here, but rows {differing} differ from the loop"
    assert len({len(row) for row in expected}) > 5, "rows of many lengths, or compaction goes untested"


@pytest.mark.parametrize("share", [0.0, 1.01], ids=["every step", "never"])
def test_compaction_does_not_change_tokens(
    share: float, policy: Policy, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    compactions = []
    keep = FusedStepper.keep

    def counted(self: FusedStepper, rows: torch.Tensor) -> None:
        compactions.append(len(rows))
        keep(self, rows)

    monkeypatch.setattr(FusedStepper, "keep", counted)
    usual = draw(policy, prompts, range(ROWS), SETTINGS[0])
    assert compactions, "the usual run must compact at least once for this to say something"
    compactions.clear()
    monkeypatch.setattr(decoding, "COMPACT_AT", share)
    other = draw(policy, prompts, range(ROWS), SETTINGS[0])
    assert [made.ids for made in other] == [made.ids for made in usual], "compaction must not change tokens"
    assert bool(compactions) == (share == 0)


@pytest.mark.parametrize("rows", [5, ROWS])
def test_counting_the_running_rows_rarely_does_not_change_completions(
    rows: int, policy: Policy, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = draw(policy, prompts, range(rows), SETTINGS[0])
    monkeypatch.setitem(decoding.STEPS_PER_COUNT, "cpu", 8)
    other = draw(policy, prompts, range(rows), SETTINGS[0])
    assert [made.ids for made in other] == [made.ids for made in usual]
    assert [made.ended for made in other] == [made.ended for made in usual]
    for one, two in zip(usual, other, strict=True):
        assert two.logprobs == pytest.approx(one.logprobs, abs=1e-4)


def test_batch_composition_does_not_change_tokens(policy: Policy, prompts: list[list[int]]) -> None:
    whole = draw(policy, prompts, range(ROWS), SETTINGS[0])
    backwards = list(reversed(range(ROWS)))
    for which in (backwards, [3, 40, 7], [11], list(range(0, ROWS, 2))):
        part = draw(policy, prompts, which, SETTINGS[0])
        assert [made.ids for made in part] == [whole[i].ids for i in which], "a row's tokens depend on its key alone"


def test_many_rows_are_decoded_in_parts(
    policy: Policy, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = draw(policy, prompts, range(ROWS), SETTINGS[0])
    monkeypatch.setattr(decoding, "MOST_ROWS", 20)
    lengths: list[list[int]] = []
    prefill = policy.prefill
    monkeypatch.setattr(policy, "prefill", lambda asked: (lengths.append(list(map(len, asked))), prefill(asked))[1])
    parts = draw(policy, prompts, range(ROWS), SETTINGS[0])
    told = [length for part in lengths for length in part]
    assert len(lengths) == 3
    assert len(told) <= 12 + 2, "each part runs the prompts it needs, and two parts share one at most"
    assert told == sorted(told), "prompts of similar length are run together"
    assert [made.ids for made in parts] == [made.ids for made in whole]


def test_prompts_that_were_run_already(policy: Policy, prompts: list[list[int]]) -> None:
    rows, keys = [i % 12 for i in range(ROWS)], [key("slot", i) for i in range(ROWS)]
    prefix = policy.prefill(prompts).detached()
    made = sample(policy, prompts, rows, keys, SETTINGS[0], prefix=prefix)
    assert [each.ids for each in made] == [each.ids for each in draw(policy, prompts, range(ROWS), SETTINGS[0])]


def test_no_rows_give_no_completions(policy: Policy, prompts: list[list[int]]) -> None:
    assert sample(policy, prompts, [], [], SETTINGS[0]) == []


@pytest.mark.parametrize("rows", [1, 5, 15, 16, 17, 40])
def test_a_live_batch_is_never_under_16_rows(
    rows: int, policy: Policy, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    head = policy.head

    def watched(hidden: torch.Tensor) -> torch.Tensor:
        sizes.append(len(hidden))
        return head(hidden)

    monkeypatch.setattr(policy, "head", watched)
    assert len(draw(policy, prompts, range(rows), SETTINGS[0])) == rows
    assert min(sizes) >= 16, "a linear layer's last bits differ for very few rows, so a batch is padded to 16"
    assert sizes[0] == max(rows, 16)


def test_length_limit(policy: Policy, prompts: list[list[int]]) -> None:
    done = draw(policy, prompts, range(ROWS), Sampling(top_k=40, max_new_tokens=5))
    lengths = {ended: {len(made.ids) for made in done if made.ended == ended} for ended in (True, False)}
    assert lengths[False] == {5}, "a completion that did not end is exactly as long as the limit"
    assert max(lengths[True]) == 4, "the limit counts EOS: with 4 tokens before it a completion still ends"
    assert all(policy.eos not in made.ids for made in done), "ids are without the closing EOS"
    assert all(made.text == policy.decode([made.ids])[0] for made in done)


def test_limit_of_one_token(policy: Policy, prompts: list[list[int]]) -> None:
    done = draw(policy, prompts, range(ROWS), Sampling(top_k=40, max_new_tokens=1))
    assert all(len(made.ids) + made.ended == 1 for made in done)


@torch.no_grad()
def test_logprobs_are_those_of_the_whole_vocabulary(
    policy: Policy, prompts: list[list[int]], plain_logits: Callable[..., torch.Tensor]
) -> None:
    sampling = Sampling(temperature=0.7, top_k=10, max_new_tokens=14)
    for i, made in enumerate(draw(policy, prompts, range(ROWS), sampling)):
        row = tokens(policy, made)
        expected = (plain_logits(policy, prompts[i % 12], row) / 0.7).log_softmax(-1)[range(len(row)), row]
        assert made.logprobs is not None
        assert len(made.logprobs) == len(row), "one log-prob per token, EOS included where it ended"
        torch.testing.assert_close(torch.tensor(made.logprobs), expected, rtol=0, atol=1e-4)


def test_logprobs_only_on_request(policy: Policy, prompts: list[list[int]]) -> None:
    assert sample(policy, prompts, [0], [1], SETTINGS[0])[0].logprobs is None


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [0, 1, 7, 500])
@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.9, 1.0])
def test_support_equals_a_slow_reference(temperature: float, top_k: int, top_p: float) -> None:
    sampling = Sampling(temperature, top_k, top_p)
    logits = 2 * torch.randn(20, 60, generator=torch.Generator().manual_seed(1))
    scores, candidates = support(logits, sampling)
    assert scores.dtype == torch.float64
    for row in range(len(logits)):
        inside = scores[row].isfinite()
        made = dict(zip(candidates[row][inside].tolist(), scores[row][inside].tolist(), strict=True))
        assert made == pytest.approx(slow_support(logits[row].tolist(), sampling))


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_excluded_control_tokens_are_never_drawn(
    sampling: Sampling, policy: Policy, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    favoured = sorted(policy.special - {policy.eos})
    head = policy.head
    monkeypatch.setattr(policy, "head", lambda hidden: head(hidden).index_add(
        1, torch.tensor(favoured), torch.full((len(hidden), len(favoured)), 3.0)
    ))  # fmt: skip
    drawn = draw(policy, prompts, range(ROWS), sampling)
    kept = draw(policy, prompts, range(ROWS), sampler(sampling, "excluded"))
    assert any(policy.special & set(done.ids) for done in drawn), "a model that writes them, or nothing is shown"
    assert not any(policy.special & set(done.ids) for done in kept)
    assert any(done.ended for done in kept), "EOS is drawn like any other token"
    for row, done in zip(drawn, kept, strict=True):
        if sampling.top_k == 0:  # else other tokens take their places in the support
            clean = next((i for i, token in enumerate(row.ids) if token in policy.special), len(row.ids))
            assert tokens(policy, done)[:clean] == tokens(policy, row)[:clean], "where none is drawn, nothing changes"


def test_top_p_keeps_the_token_that_reaches_it() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()
    kept = [int(support(logits, Sampling(top_k=0, top_p=p))[0].isfinite().sum()) for p in (0.4, 0.6, 0.8, 0.95)]
    assert kept == [1, 2, 3, 4], "the smallest set of tokens whose probability reaches top_p"


@pytest.mark.parametrize("sampling", [Sampling(0.7, top_k=8), Sampling(1.3, top_k=0, top_p=0.8)], ids=str)
def test_frequencies_follow_softmax_on_the_support(sampling: Sampling) -> None:
    draws = 20_000
    logits = 1.5 * torch.randn(30, generator=torch.Generator().manual_seed(2))
    allowed = slow_support(logits.tolist(), sampling)
    shares = torch.tensor(list(allowed.values())).softmax(0)
    keys = torch.tensor([key("frequency", i) for i in range(draws)])
    for step in (0, 5):
        chosen = choose(logits.expand(draws, -1), keys, step, sampling)
        counts = chosen.bincount(minlength=30)
        assert int(counts[list(allowed)].sum()) == draws, "nothing outside the support is ever drawn"
        found = chisquare(counts[list(allowed)].numpy(), draws * shares.double().numpy() / float(shares.double().sum()))
        assert found.pvalue > 1e-3, "Gumbel-max draws each token with its softmax probability"


@pytest.mark.parametrize("width", [2048, 512, 500, 2047, 37])
def test_the_largest_are_those_of_a_plain_topk(width: int) -> None:
    values = torch.randn(64, width, generator=torch.Generator().manual_seed(width))
    for count in (1, 20, 37):
        made, places = decoding._largest(values, count)
        assert torch.equal(made, values.topk(count, 1).values), "best first, the same values as a whole sort"
        assert torch.equal(values.gather(1, places), made), "and the places they stand at"
