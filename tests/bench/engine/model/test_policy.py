from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from thiefbench.engine.model import policy as policy_module
from thiefbench.engine.model.policy import ModelError, Policy


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


def test_prompt_ids_without_a_template_are_the_contents(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy.tokenizer, "chat_template", None)  # copies of a policy share their tokenizer
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


def test_a_window_for_all_layers_bounds_the_context(policy: Policy) -> None:
    """Up to its length, attention is full; Mistral's models have one and no layer types."""
    config = policy.model.config
    config.layer_types, config.sliding_window = None, 40
    assert Policy(policy.model, policy.tokenizer).context == 40
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    assert Policy(policy.model, policy.tokenizer).context == config.max_position_embeddings


def test_a_tokenizer_without_files_is_refused(broken: Path) -> None:
    """transformers makes an empty one."""
    for path in broken.glob("token*"):
        path.unlink()
    assert_one_sentence(broken, "has a tokenizer that makes no tokens of a text")


def test_a_tokenizer_of_another_model_is_refused(broken: Path) -> None:
    tokens = AutoTokenizer.from_pretrained(broken)
    tokens.add_tokens([*(f"filler {number}" for number in range(1000)), "0123456789"])
    tokens.save_pretrained(broken)
    assert_one_sentence(broken, "its tokenizer gives the token")


def test_an_eos_behind_the_last_embedding_is_refused(broken: Path) -> None:
    """No completion would end."""
    tokens = AutoTokenizer.from_pretrained(broken)
    tokens.add_tokens([f"filler {number}" for number in range(1000)])
    tokens.add_special_tokens({"eos_token": "<the end>"})
    tokens.save_pretrained(broken)
    assert_one_sentence(broken, "its tokenizer gives the token")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(broken: Path, value: float) -> None:
    """They gave an ASR and a reward of 0."""
    from safetensors.torch import load_file, save_file

    weights = load_file(broken / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 2] = value
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    assert_one_sentence(broken, "has weights that are not finite, in model.layers.1.mlp.up_proj.weight")


def assert_one_sentence(source: Path, holds: str) -> None:
    with pytest.raises(ModelError) as caught:
        Policy.load(source)
    message = str(caught.value)
    assert holds in message
    assert str(source) in message, "an error names the directory it is about"
    assert "\n" not in message, f"a user error is one sentence, not {message!r}"


def test_prompts_run_in_parts_are_those_run_at_once(
    load_policy: Callable[..., Policy], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = load_policy()
    whole = policy.prefill(prompts)
    monkeypatch.setattr(policy_module, "PREFILL_TOKENS", {"cpu": 3 * max(map(len, prompts))})
    parts = policy.prefill(prompts)
    for one, other in zip(
        (*whole.keys, *whole.values, whole.last), (*parts.keys, *parts.values, parts.last), strict=True
    ):
        torch.testing.assert_close(one, other)
    assert torch.equal(whole.mask, parts.mask)


def test_no_rows_have_no_texts(policy: Policy) -> None:
    assert policy.decode([]) == [], "a class of nodes may send nothing in a round"
