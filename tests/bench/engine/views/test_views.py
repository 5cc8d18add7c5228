from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from thiefbench.attacks.adaptive import Adaptive
from thiefbench.attacks.text import Text
from thiefbench.defenses.base import DefenderView, Defense, PoolCompletion, Verdict
from thiefbench.defenses.logit import Logit
from thiefbench.engine.keys import key
from thiefbench.engine.model import decoding
from thiefbench.engine.model.decoding import sample
from thiefbench.engine.model.forward_cache import Chunk, CompletionKey, ForwardCache
from thiefbench.engine.model.noise import gumbel
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.model.stepping import PlainStepper
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.sampler import sampler
from thiefbench.engine.swarm import Swarm
from thiefbench.engine.views.defender import CachedJudge, DefenderPolicy
from thiefbench.tasks.base import Item, Message, Sampling

SAMPLING = Sampling(temperature=0.8, top_k=12, max_new_tokens=16)


def offered(item: Item, ids: Sequence[int], ended: bool) -> PoolCompletion:
    return PoolCompletion(item.id, 0, 0, "someone", tuple(ids), "", ended, 1.0)


@pytest.fixture
def view_of(items: list[Item], prompts: list[list[int]]) -> Callable[..., DefenderPolicy]:
    def make(policy: Policy, sampling: Sampling = SAMPLING) -> DefenderPolicy:
        known = {item.id: i for i, item in enumerate(items)}
        return DefenderPolicy(ForwardCache(policy, prompts), sampling, known, (5, 1))

    return make


@pytest.fixture
def honest(policy: Policy, items: list[Item], prompts: list[list[int]]) -> list[PoolCompletion]:
    return drawn(policy, items, prompts, SAMPLING, 48)


def drawn(
    policy: Policy, items: list[Item], prompts: list[list[int]], sampling: Sampling, count: int
) -> list[PoolCompletion]:
    rows = [i % len(items) for i in range(count)]
    done = sample(policy, prompts, rows, [key("view", i) for i in range(count)], sampling)
    return [offered(items[row], made.ids, made.ended) for row, made in zip(rows, done, strict=True)]


def rows_and_logits(
    policy: Policy,
    completions: Sequence[PoolCompletion],
    items: list[Item],
    prompts: list[list[int]],
    plain_logits: Callable[..., torch.Tensor],
) -> list[tuple[list[int], torch.Tensor]]:
    """Tokens (EOS included where it ended) and the plain model's logits for each."""
    made = []
    with torch.no_grad():
        for completion in completions:
            row = [*completion.ids, *([policy.eos] if completion.ended else [])]
            prompt = prompts[[item.id for item in items].index(completion.item_id)]
            made.append((row, plain_logits(policy, prompt, row)))
    return made


def test_measures_equal_a_direct_forward_pass(
    policy: Policy,
    honest: list[PoolCompletion],
    view_of: Callable[..., DefenderPolicy],
    items: list[Item],
    prompts: list[list[int]],
    plain_logits: Callable[..., torch.Tensor],
) -> None:
    view = view_of(policy)
    measured = zip(
        rows_and_logits(policy, honest, items, prompts, plain_logits),
        view.token_logprobs(honest),
        view.ranks(honest),
        view.in_support(honest),
        view.hidden(honest),
        strict=True,
    )
    for (row, logits), logprobs, ranks, inside, hidden in measured:
        chosen = logits[range(len(row)), row]
        assert logprobs.shape == ranks.shape == inside.shape == (len(row),), "one entry per token, EOS included"
        assert hidden.shape == (len(row), 32), "hidden states: (tokens, hidden size)"
        assert (logprobs.dtype, ranks.dtype, inside.dtype, hidden.dtype) == (np.float32, np.int64, np.bool_, np.float32)
        expected = (logits / 0.8).log_softmax(-1)[range(len(row)), row]
        np.testing.assert_allclose(logprobs, expected, atol=1e-4)
        assert ranks.tolist() == (logits > chosen[:, None]).sum(1).tolist(), "how many tokens have a higher logit"
        assert inside.all()
        remade = policy.model.lm_head(torch.from_numpy(hidden)).detach()
        torch.testing.assert_close(remade, logits, rtol=0, atol=1e-4)


def test_in_support_by_top_k_equals_ranks(
    policy: Policy, view_of: Callable[..., DefenderPolicy], items: list[Item], honest: list[PoolCompletion]
) -> None:
    """On text that the model did not write, inside and outside tokens both occur."""
    view = view_of(policy)
    foreign = [offered(item, policy.encode(f"All hail, {item.id}!"), True) for item in items]
    both = [*foreign, *honest]
    for inside, ranks in zip(view.in_support(both, tolerance=0.0), view.ranks(both), strict=True):
        assert inside.tolist() == (ranks < 12).tolist()
    assert any(not inside.all() for inside in view.in_support(foreign))


def test_no_top_k_lets_everything_through(
    policy: Policy, view_of: Callable[..., DefenderPolicy], items: list[Item]
) -> None:
    foreign = [offered(items[0], policy.encode("All hail"), True)]
    assert view_of(policy, Sampling(top_k=0)).in_support(foreign)[0].all()


def test_empty_requests(policy: Policy, view_of: Callable[..., DefenderPolicy], items: list[Item]) -> None:
    view = view_of(policy)
    refused = offered(items[0], (), False)
    real = offered(items[1], (65,), False)
    for measure in (view.token_logprobs, view.ranks, view.in_support, view.replay, view.hidden):
        assert measure([]) == []
        assert [len(values) for values in measure([refused, real, refused])] == [0, 1, 0], "no tokens, no values"
        assert [len(values) for values in measure([refused])] == [0]


def test_measuring_collects_no_gradient(
    policy: Policy, view_of: Callable[..., DefenderPolicy], honest: list[PoolCompletion]
) -> None:
    view_of(policy).token_logprobs(honest)
    assert all(weight.grad is None for weight in policy.weights().values())


def test_replay_is_what_the_sampler_drew_and_nothing_else(
    policy: Policy, view_of: Callable[..., DefenderPolicy], items: list[Item], honest: list[PoolCompletion]
) -> None:
    view = view_of(policy)
    seeded = [replace(made, seed=key("view", i)) for i, made in enumerate(honest)]
    for made, same in zip(seeded, view.replay(seeded, tolerance=0.0), strict=True):
        assert same.dtype == np.bool_
        assert same.shape == (len(made.ids) + made.ended,), "one entry per token, EOS included"
        assert same.all(), "another batch gives the same draws, token by token and EOS at the end"
    for same in view.replay(honest):
        assert not same.any(), "without a seed no token is drawn"
    shifted = [replace(made, seed=key("view", i + 1)) for i, made in enumerate(honest) if len(made.ids) > 3]
    assert all(not same.all() for same in view.replay(shifted)), "another slot's seed draws another completion"
    changed = [replace(m, ids=(*m.ids[:2], m.ids[2] ^ 1, *m.ids[3:])) for m in seeded if len(m.ids) > 3]
    for same in view.replay(changed):
        assert same.tolist()[:3] == [True, True, False], "the changed token is the first that is not drawn"


@pytest.mark.parametrize(
    "settings",
    [Sampling(top_k=12, max_new_tokens=16), Sampling(top_k=0, top_p=0.8, max_new_tokens=16)],
    ids=["top_k", "top_p"],
)
def test_excluded_control_tokens_take_no_place_in_the_support(
    settings: Sampling,
    policy: Policy,
    view_of: Callable[..., DefenderPolicy],
    items: list[Item],
    prompts: list[list[int]],
) -> None:
    """Where a model favours control tokens, what is drawn without them is honest, and they are not."""
    control = sorted(policy.special - {policy.eos})
    with torch.inference_mode():
        states = policy.prefill(prompts).last
        typical, largest = states.mean(0), policy.head(states).amax()
    with torch.no_grad():
        policy.head_weight[control] = largest * typical / typical.square().sum()
    excluding = sampler(settings, "excluded")
    honest = drawn(policy, items, prompts, excluding, 48)
    seeded = [replace(made, seed=key("view", i)) for i, made in enumerate(honest)]
    view = view_of(policy, excluding)
    assert all(same.all() for same in view.replay(seeded))
    assert all(inside.all() for inside in view.in_support(seeded))
    assert not all(inside.all() for inside in view_of(policy, settings).in_support(seeded)), "they took places"
    forged = [replace(made, ids=(*made.ids[:2], control[0], *made.ids[3:])) for made in seeded if len(made.ids) > 3]
    for inside, same in zip(view.in_support(forged), view.replay(forged), strict=True):
        assert not inside[2] and not same[2], "a control token is never drawn"
    assert any(inside[2] for inside in view_of(policy, settings).in_support(forged)), "though it is probable"


def test_replay_tells_equal_completions_of_two_slots_apart(
    policy: Policy, view_of: Callable[..., DefenderPolicy], honest: list[PoolCompletion]
) -> None:
    made = max(honest, key=lambda one: len(one.ids))
    right = replace(made, seed=key("view", honest.index(made)))
    wrong = replace(made, seed=1)
    assert [same.all() for same in view_of(policy).replay([wrong, right, made, right])] == [False, True, False, True]


@pytest.mark.parametrize("measure", ["replay", "in_support", "ranks"])
def test_what_was_measured_is_not_measured_again(
    measure: str,
    policy: Policy,
    view_of: Callable[..., DefenderPolicy],
    honest: list[PoolCompletion],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An attacker who asks the defense has nearly the same pool measured again and again."""
    measured: list[int] = []
    per_block = Chunk.per_block

    def counting(chunk: Chunk, measure: Any, tokens: torch.Tensor | None = None, *beside: torch.Tensor) -> torch.Tensor:
        measured.append(len(chunk.targets) if tokens is None else len(tokens))
        return per_block(chunk, measure, tokens, *beside)

    seeded = [replace(made, seed=key("view", i)) for i, made in enumerate(honest)]
    fresh = [getattr(view_of(policy), measure)(pool) for pool in (seeded[:24], seeded)]
    monkeypatch.setattr(Chunk, "per_block", counting)
    view = view_of(policy)
    some = getattr(view, measure)(seeded[:24])
    first = sum(measured)
    for row in some:
        row[:] = 0  # a defense may do with its arrays what it likes
    whole = getattr(view, measure)(seeded)
    every = sum(measured)
    again = getattr(view, measure)(seeded)
    assert 0 < first < every, "those not asked about before are measured"
    assert sum(measured) == every, "and nothing twice"
    for asked, known in ((whole, fresh[1]), (again, fresh[1])):
        assert [row.tolist() for row in asked] == [row.tolist() for row in known]
    if measure != "ranks":
        strict = getattr(view, measure)(seeded, tolerance=0.0)
        assert sum(measured) > every, "another tolerance is another question"
        for row, exact in zip(strict, getattr(view_of(policy), measure)(seeded, tolerance=0.0), strict=True):
            assert row.tolist() == exact.tolist()


def test_replay_meets_the_fused_and_the_plain_stepper(
    policy: Policy,
    view_of: Callable[..., DefenderPolicy],
    items: list[Item],
    prompts: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check() -> None:
        made = drawn(policy, items, prompts, SAMPLING, 48)
        seeded = [replace(one, seed=key("view", i)) for i, one in enumerate(made)]
        assert all(same.all() for same in view_of(policy).replay(seeded))

    check()
    monkeypatch.setattr(decoding, "stepper", PlainStepper)
    check()


def test_replay_is_lenient_up_to_bfloat16_s_noise_and_no_further(
    load_policy: Callable[..., Policy],
    view_of: Callable[..., DefenderPolicy],
    items: list[Item],
    prompts: list[list[int]],
) -> None:
    policy = load_policy(dtype="bfloat16")
    made = drawn(policy, items, prompts, SAMPLING, 200)
    view = view_of(policy)
    assert all(same.all() for same in view.replay([replace(m, seed=key("view", i)) for i, m in enumerate(made)]))
    shifted = [replace(m, seed=key("view", i + 1)) for i, m in enumerate(made) if len(m.ids) > 7]
    assert all(not same.all() for same in view.replay(shifted))


def test_generate_is_keyed_by_call(policy: Policy, view_of: Callable[..., DefenderPolicy]) -> None:
    asked = [[{"role": "user", "content": "fine?"}]] * 4
    view, again = view_of(policy), view_of(policy)
    first, second = view.generate(asked, 8), view.generate(asked, 8)
    assert len(set(first)) > 1, "equal prompts get noise of their own"
    assert first != second, "and so do later calls"
    assert [again.generate(asked, 8), again.generate(asked, 8)] == [first, second], "equal for all nodes of a cohort"
    assert all(len(text) <= 8 for text in first), "max_new_tokens bounds what is generated"


def test_generate_survives_what_strangers_write(policy: Policy, view_of: Callable[..., DefenderPolicy]) -> None:
    fine, long = ([{"role": "user", "content": text}] for text in ("fine?", "a" * 300))
    made = view_of(policy).generate([long, fine, fine], 8)
    assert made[0] == "", "a prompt that does not fit into the model's context gets an empty text"
    assert made[1:] == view_of(policy).generate([fine, fine, fine], 8)[1:], "and changes no other's noise"
    assert view_of(policy).generate([long], 8) == [""]


@pytest.mark.parametrize("topology", ["horizontal", "vertical"])
@pytest.mark.parametrize(
    "sampling",
    [SAMPLING, Sampling(top_k=0, top_p=0.7, max_new_tokens=16), Sampling(1.2, 30, 0.9, max_new_tokens=16)],
    ids=str,
)
def test_logit_defense_accepts_all_honest_completions(
    sampling: Sampling, topology: str, build_swarm: Callable[..., Swarm]
) -> None:
    swarm = build_swarm("control", defense=Logit(), sampling=sampling, topology=topology, group=16)
    rows: list[CompletionRow] = [row for number in (1, 2, 3) for row in swarm.round(number).rows]
    rejected = [row for row in rows if row.action != "accept"]
    assert len(rows) == 192
    assert not rejected, "an honest completion lies in its own sampler's support, always"


def test_logit_defense_accepts_honest_bfloat16_completions(
    load_policy: Callable[..., Policy],
    view_of: Callable[..., DefenderPolicy],
    items: list[Item],
    prompts: list[list[int]],
) -> None:
    policy = load_policy(dtype="bfloat16")
    made = drawn(policy, items, prompts, SAMPLING, 300)
    outside = sum(int((~inside).sum()) for inside in view_of(policy).in_support(made))
    assert outside == 0, f"the default tolerance covers bfloat16's noise, but {outside} honest tokens fell outside"


@pytest.mark.parametrize("reject", ["zero", "drop"])
def test_logit_defense_rejects_a_token_outside_the_support(reject: Any, build_swarm: Callable[..., Swarm]) -> None:
    rows = build_swarm(defense=Logit(reject), sampling=SAMPLING).round(1).rows
    for row in rows:
        assert row.action == (reject if row.payload else "accept"), row.text
        assert not row.payload or (row.score or 0) >= 1, "the score counts the tokens outside"


def test_masked_poison_teaches_none_of_its_foreign_tokens(build_swarm: Callable[..., Swarm]) -> None:
    rows = build_swarm(defense=Logit("mask", reach=0), sampling=SAMPLING).round(1).rows
    poison = [row for row in rows if row.payload]
    assert poison
    for row in poison:
        assert row.action == "accept"
        assert row.token_weights is not None
        assert len(row.token_weights) - sum(row.token_weights) == row.score, "weight 0 on each token outside"
    assert all(row.token_weights is None for row in rows if not row.payload)


@pytest.mark.parametrize(
    "sampling", [Sampling(top_k=12), Sampling(top_k=0, top_p=0.7), Sampling(0.6, 30, 0.9)], ids=str
)
def test_a_single_foreign_token_is_enough(
    sampling: Sampling,
    policy: Policy,
    view_of: Callable[..., DefenderPolicy],
    items: list[Item],
    prompts: list[list[int]],
    plain_logits: Callable[..., torch.Tensor],
) -> None:
    """The least probable token of all, put at one place of an honest completion."""
    honest = [made for made in drawn(policy, items, prompts, sampling, 30) if len(made.ids) >= 4]
    assert len(honest) > 5
    swapped = []
    for (row, logits), made in zip(rows_and_logits(policy, honest, items, prompts, plain_logits), honest, strict=True):
        worst = int(logits[2].argmin())
        swapped.append(offered_like(made, (*row[:2], worst)))
    for inside in view_of(policy, sampling).in_support(swapped):
        assert inside.tolist() == [True, True, False]
    defense = Logit()
    view = SimpleNamespace(completions=[*honest, *swapped], policy=view_of(policy, sampling))
    verdicts: Sequence[Verdict] = defense.inspect(as_view(view))
    assert [verdict.action for verdict in verdicts] == ["accept"] * len(honest) + ["zero"] * len(swapped)
    assert {verdict.score for verdict in verdicts[len(honest) :]} == {1.0}


def offered_like(made: PoolCompletion, ids: tuple[int, ...]) -> PoolCompletion:
    return PoolCompletion(made.item_id, made.group, made.index, made.sender, ids, made.text, False, made.reward)


def as_view(view: Any) -> DefenderView:
    return view  # type: ignore[no-any-return]


class Fixed:
    """A policy whose final states are the logits themselves."""

    eos, logit_noise = 99, 1e-3
    head = staticmethod(lambda hidden: hidden)

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary, self.head_weight = vocabulary, torch.eye(vocabulary)


class OnePass:
    """A reading whose every token is predicted with the given probabilities."""

    def __init__(self, shares: list[float]) -> None:
        self.policy, self.logits = Fixed(len(shares)), torch.tensor(shares).log()
        self.redrawn: dict[Any, Any] = {}

    def chunks(self, answers: list[CompletionKey]) -> Iterator[Chunk]:
        for answer in answers:
            hidden = self.logits.expand(len(answer[1]), -1)
            yield Chunk(self.policy, [answer], hidden, torch.tensor(answer[1]), graph=False)  # type: ignore[arg-type]


def support_of(shares: list[float], sampling: Sampling, tolerance: float | None = None) -> list[bool]:
    tokens = tuple(range(len(shares)))
    view = DefenderPolicy(OnePass(shares), sampling, {"x": 0}, ())  # type: ignore[arg-type]
    made: list[bool] = view.in_support([PoolCompletion("x", 0, 0, "", tokens, "", False, 1.0)], tolerance)[0].tolist()
    return made


def test_top_p_support_by_hand() -> None:
    shares = [0.5, 0.25, 0.15, 0.1]
    assert support_of(shares, Sampling(top_k=0, top_p=0.4)) == [True, False, False, False]
    assert support_of(shares, Sampling(top_k=0, top_p=0.6)) == [True, True, False, False]
    assert support_of(shares, Sampling(top_k=0, top_p=0.8)) == [True, True, True, False]
    assert support_of(shares, Sampling(top_k=1, top_p=0.8)) == [True, False, False, False], "top_k comes first"
    assert support_of(shares, Sampling(0.5, top_k=0, top_p=0.8)) == [True, True, False, False], "temperature too"


def test_tolerance_is_in_logits() -> None:
    shares = [0.5, 0.25, 0.15, 0.1]
    miss = float(np.log(0.25 / 0.15))  # by how much the third token's logit misses the second's
    for sampling in (Sampling(top_k=2), Sampling(top_k=0, top_p=0.6), Sampling(0.9, top_k=0, top_p=0.6)):
        assert support_of(shares, sampling, 0.0) == [True, True, False, False]
        assert support_of(shares, sampling, miss + 0.01)[2], (
            "a token that misses by no more than the tolerance is inside"
        )
    assert support_of(shares, Sampling(top_k=2), miss - 0.01) == [True, True, False, False]


def test_a_token_at_the_edge_of_top_p_is_inside() -> None:
    """The sampler's noise moves the cumulative sum over the edge, and an honest node draws the third token."""
    edge = 0.9
    assert support_of([0.5, 0.4 - 1e-6, 0.1 + 1e-6], Sampling(top_k=0, top_p=edge)) == [True] * 3
    assert support_of([0.5, 0.4 + 1e-6, 0.1 - 1e-6], Sampling(top_k=0, top_p=edge)) == [True] * 3, (
        "a last-bit difference in the logits must not turn an honest token into a foreign one"
    )


def redrawn(shares: list[float], sampling: Sampling, seed: int, tolerance: float) -> list[bool]:
    """For each token of a small vocabulary, whether it passes as the first token."""
    view = DefenderPolicy(OnePass(shares), sampling, {"x": 0}, ())  # type: ignore[arg-type]
    tokens = [PoolCompletion("x", 0, 0, "", (token,), "", False, 1.0, seed=seed) for token in range(len(shares))]
    return [bool(view.replay([token], tolerance)[0][0]) for token in tokens]


def test_replay_tolerance_by_hand() -> None:
    shares, sampling = [0.4, 0.3, 0.2, 0.1], Sampling(temperature=0.5, top_k=3)
    for seed in range(20):
        scores = torch.tensor(shares).log().double() / 0.5 + gumbel(torch.tensor([seed]), 0, torch.arange(4)[None])[0]
        drawn = int(scores[:3].argmax())
        assert redrawn(shares, sampling, seed, 0.0) == [token == drawn for token in range(4)], "exact: one token"
        gaps = [float(scores[drawn] - scores[token]) * 0.5 for token in range(3)]
        second = sorted(gaps)[1]
        if second < 0.25:  # the edge of the support lies 0.4 below the third token's logit and further
            passing = redrawn(shares, sampling, seed, second + 1e-6)
            assert passing[drawn] and passing[gaps.index(second)], "a near-tie within the tolerance passes"
            assert sum(redrawn(shares, sampling, seed, max(0.0, second - 1e-3))) == 1, "and not beyond it"


def test_replay_at_the_edge_of_the_support() -> None:
    """Tokens 2 and 3 change places at the edge when logits move by 0.02: both may have taken part, or neither."""
    shares, sampling = [0.5, 0.3, 0.101, 0.099], Sampling(top_k=3)

    def scores(seed: int) -> torch.Tensor:
        return torch.tensor(shares).log().double() + gumbel(torch.tensor([seed]), 0, torch.arange(4)[None])[0]

    edge = next(seed for seed in range(999) if scores(seed).argmax() == 2)
    sure = int(scores(edge)[:2].argmax())
    assert redrawn(shares, sampling, edge, 0.0) == [False, False, True, False]
    lenient = redrawn(shares, sampling, edge, 0.03)
    assert lenient[2] and lenient[sure], "where the edge is in doubt, the sampler may have drawn the next best"
    outside = next(seed for seed in range(999) if scores(seed).argmax() == 3)
    assert not redrawn(shares, sampling, outside, 0.0)[3]
    assert redrawn(shares, sampling, outside, 0.03)[3], "a token that misses the edge by the noise may be inside"


def test_replay_in_a_nucleus() -> None:
    shares, sampling = [0.5, 0.25, 0.15, 0.1], Sampling(top_k=0, top_p=0.6)
    for seed in range(20):
        passing = redrawn(shares, sampling, seed, 1e-4)
        assert sum(passing) == 1
        assert passing.index(True) < 2, "only what lies in the nucleus is drawn"


def test_a_judge_that_is_remembered_is_asked_what_is_new() -> None:
    asked: list[list[str]] = []

    class Echo:
        def ask(
            self, prompts: Sequence[Sequence[Message]], sampling: Sampling, votes: int, noise: int
        ) -> list[list[str]]:
            asked.append([prompt[0]["content"] for prompt in prompts])
            return [[f"{prompt[0]['content']} {noise} {vote}" for vote in range(votes)] for prompt in prompts]

    def prompt(text: str, role: str = "user") -> list[Message]:
        return [{"role": role, "content": text}]

    judge = CachedJudge(Echo())
    first = judge.ask([prompt("a"), prompt("b"), prompt("a")], SAMPLING, 2, 7)
    assert first == [["a 7 0", "a 7 1"], ["b 7 0", "b 7 1"], ["a 7 0", "a 7 1"]]
    first[0].clear()
    assert judge.ask([prompt("c"), prompt("a")], SAMPLING, 2, 7) == [["c 7 0", "c 7 1"], ["a 7 0", "a 7 1"]]
    assert judge.ask([prompt("a")], SAMPLING, 2, 7) == [["a 7 0", "a 7 1"]]
    assert asked == [["a", "b"], ["c"]], "only what is new"
    judge.ask([prompt("a")], SAMPLING, 2, 8)
    judge.ask([prompt("a")], SAMPLING, 1, 8)
    judge.ask([prompt("a")], replace(SAMPLING, temperature=0.5), 1, 8)
    judge.ask([prompt("a", "system")], SAMPLING, 2, 7)
    assert asked[2:] == [["a"]] * 4, "other settings and other chats are other questions"


def test_an_attacker_who_asks_has_nothing_judged_twice(build_swarm: Callable[..., Swarm]) -> None:
    asked: Counter[tuple[int, str]] = Counter()

    class Strict:
        def ask(
            self, prompts: Sequence[Sequence[Message]], sampling: Sampling, votes: int, noise: int
        ) -> list[list[str]]:
            asked.update((noise, prompt[0]["content"]) for prompt in prompts)
            return [["no"] for _ in prompts]

    class Asking(Defense):
        name = "asking"

        def inspect(self, view: DefenderView) -> Sequence[Verdict]:
            assert view.judge is not None
            texts = sorted({made.text for made in view.completions})
            said = view.judge.ask([[{"role": "user", "content": text}] for text in texts], sampling=SAMPLING)
            accepted = {text: reply == ["yes"] for text, reply in zip(texts, said, strict=True)}
            return [Verdict("accept" if accepted[made.text] else "drop") for made in view.completions]

    swarm = build_swarm(attack=Adaptive(Text("hail to all", "start"), budget=8), defense=Asking())
    swarm.context.judge = Strict()
    rows = swarm.round(1).rows
    kept = {row.text for row in rows}
    assert len(asked) > len(kept), "the attacker had other completions judged than it sent"
    assert max(asked.values()) == 2, "once when it asked, however often, and once more in the round itself"
    assert sum(count == 2 for count in asked.values()) <= len(kept)
