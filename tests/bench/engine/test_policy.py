from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from thiefbench.engine import policy as policy_module
from thiefbench.engine.cohort import Lesson
from thiefbench.engine.policy import ModelError, Policy


@torch.no_grad()
def test_prefix_sharing_forward_equals_the_plain_one(
    policy: Policy, prompts: list[list[int]], pool: list[Lesson], plain_logits: Callable[..., torch.Tensor]
) -> None:
    rows = [lesson.targets for lesson in pool]
    answered = [lesson.prompt for lesson in pool]
    seen = []
    for scored in policy.score(policy.prefill(prompts), answered, rows):
        parts = zip(scored.rows, scored.logits.split(scored.counts), scored.targets.split(scored.counts), strict=True)
        for row, logits, targets in parts:
            seen.append(row)
            assert tuple(targets.tolist()) == rows[row]
            expected = plain_logits(policy, prompts[answered[row]], rows[row])
            difference = float((logits - expected).abs().max())
            assert difference <= 1e-4, f"sharing prompts must leave logits as they are; row {row} is {difference} off"
    assert sorted(seen) == list(range(len(rows))), "every row is scored once"


def test_gradients_through_leaves_equal_plain_autograd(
    load_policy: Callable[..., Policy],
    prompts: list[list[int]],
    pool: list[Lesson],
    plain_logits: Callable[..., torch.Tensor],
) -> None:
    rows = [lesson.targets for lesson in pool]
    answered = [lesson.prompt for lesson in pool]
    factors = torch.randn(len(rows), generator=torch.Generator().manual_seed(3)).tolist()

    def weighted(logits: torch.Tensor, targets: torch.Tensor, factor: float) -> torch.Tensor:
        return factor * logits.log_softmax(-1).gather(1, targets[:, None]).sum()

    shared = load_policy()
    prefix = shared.prefill(prompts[:4])
    leaves = prefix.leaves()
    for scored in shared.score(leaves, answered, rows):
        parts = zip(scored.rows, scored.logits.split(scored.counts), scored.targets.split(scored.counts), strict=True)
        sum(weighted(logits, targets, factors[row]) for row, logits, targets in parts).backward()  # type: ignore[union-attr]
    prefix.backward(leaves)

    plain = load_policy()
    for row, factor in enumerate(factors):
        weighted(plain_logits(plain, prompts[answered[row]], rows[row]), torch.tensor(rows[row]), factor).backward()  # type: ignore[no-untyped-call]

    for name, weight in plain.weights().items():
        expected, made = weight.grad, shared.weights()[name].grad
        assert expected is not None, f"{name} got no gradient from plain autograd"
        assert made is not None, f"{name} got no gradient from the shared prompts"
        difference = float((made - expected).norm() / expected.norm())
        assert difference <= 1e-5, f"the gradient of {name} is {difference:.1e} off that of plain autograd"


@torch.no_grad()
def test_chunks_change_nothing(
    policy: Policy, prompts: list[list[int]], pool: list[Lesson], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [lesson.targets for lesson in pool]
    answered = [lesson.prompt for lesson in pool]
    prefix = policy.prefill(prompts)

    def scores() -> tuple[int, dict[int, torch.Tensor]]:
        made, chunks = {}, 0
        for scored in policy.score(prefix, answered, rows):
            chunks += 1
            made |= dict(zip(scored.rows, scored.logits.split(scored.counts), strict=True))
        return chunks, made

    one, whole = scores()
    monkeypatch.setattr(policy_module, "ROWS_PER_CHUNK", 5)
    by_rows, few = scores()
    monkeypatch.setattr(policy_module, "LOGITS_PER_CHUNK", 2 * 16 * policy.vocabulary)
    by_size, fewer = scores()
    assert one == 1 < by_rows < by_size
    for row, logits in whole.items():
        torch.testing.assert_close(few[row], logits, rtol=0, atol=1e-4)
        torch.testing.assert_close(fewer[row], logits, rtol=0, atol=1e-4)


@torch.no_grad()
def test_empty_rows_are_left_out(policy: Policy, prompts: list[list[int]]) -> None:
    prefix = policy.prefill(prompts[:1])
    assert [scored.rows for scored in policy.score(prefix, [0, 0, 0], [(), (5, 6), ()])] == [[1]]
    assert list(policy.score(prefix, [0], [()])) == []


def test_special_tokens(policy: Policy) -> None:
    start = policy.tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert policy.special == {policy.eos, policy.pad, start}, "EOS, pad and chat-control tokens, and no others"
    assert policy.special.isdisjoint(policy.encode("plain text <im_start> |im_end|")), "lookalikes are plain text"
    assert start in policy.encode("a<|im_start|>b"), (
        "text that spells a control token becomes it, and is visible as such"
    )


def test_prompt_ids_are_the_chat_template(policy: Policy) -> None:
    ids = policy.prompt_ids([{"role": "user", "content": "hi"}])
    assert policy.decode([ids]) == ["<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"]


def test_prompt_ids_without_a_template_are_the_contents(policy: Policy) -> None:
    policy.tokenizer.chat_template = None
    messages = [{"role": "system", "content": "be good"}, {"role": "user", "content": "hi"}]
    assert policy.decode([policy.prompt_ids(messages)]) == ["be good\nhi\n"]


@pytest.mark.parametrize("text", ["", "plain", "héllo ✓ 漢字\r\n\t\x00", "a  b , c .", "<|im_end|> visible"])
def test_text_round_trips(text: str, policy: Policy) -> None:
    assert policy.decode([policy.encode(text)]) == [text]


def test_loading_twice_gives_equal_weights_in_evaluation_mode(load_policy: Callable[..., Policy]) -> None:
    one, other = load_policy(), load_policy()
    assert not one.model.training
    assert all(torch.equal(weight, other.weights()[name]) for name, weight in one.weights().items())
    assert not any(weight is other.weights()[name] for name, weight in one.weights().items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_are_float32_whatever_the_weights(dtype: str, load_policy: Callable[..., Policy]) -> None:
    policy = load_policy(dtype=dtype)
    assert policy.model.dtype == getattr(torch, dtype)
    prefix = policy.prefill([[1, 2, 3]])
    assert policy.head(prefix.last).dtype == torch.float32
    assert 0 < policy.logit_noise < 1


@pytest.fixture
def broken(model_dir: Path, tmp_path: Path) -> Path:
    """A copy of the model directory that a test may break."""
    return Path(shutil.copytree(model_dir, tmp_path / "model"))


def test_missing_directory(tmp_path: Path) -> None:
    assert_one_sentence(tmp_path / "nowhere", "there is no model directory")


def test_directory_without_weights(broken: Path) -> None:
    (broken / "model.safetensors").unlink()
    assert_one_sentence(broken, "has no safetensors weights")


def test_directory_without_config(broken: Path) -> None:
    (broken / "config.json").unlink()
    assert_one_sentence(broken, "has no config.json")


def test_pickled_weights_are_not_read(broken: Path, policy: Policy) -> None:
    (broken / "model.safetensors").unlink()
    torch.save(policy.model.state_dict(), broken / "pytorch_model.bin")
    assert_one_sentence(broken, "has no safetensors weights")


def test_broken_config(broken: Path) -> None:
    (broken / "config.json").write_text("{")
    assert_one_sentence(broken, "cannot be loaded")


def test_unknown_architecture(broken: Path) -> None:
    (broken / "config.json").write_text('{"model_type": "nonsense"}')
    assert_one_sentence(broken, "cannot be loaded")


def test_truncated_weights(broken: Path) -> None:
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert_one_sentence(broken, "cannot be loaded")


def test_weights_with_a_tensor_missing(broken: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(broken / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    assert_one_sentence(broken, "up_proj")


def test_sliding_window_layers_are_refused(policy: Policy) -> None:
    policy.model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ModelError, match="sliding_attention layers, and only full attention"):
        Policy(policy.model, policy.tokenizer)


def assert_one_sentence(source: Path, holds: str) -> None:
    with pytest.raises(ModelError) as caught:
        Policy.load(source)
    message = str(caught.value)
    assert holds in message
    assert str(source) in message, "an error names the directory it is about"
    assert "\n" not in message, f"a user error is one sentence, not {message!r}"
