from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from thiefbench.defenses.anchors import AcceptAll
from thiefbench.defenses.logit import Logit
from thiefbench.engine.learning.cohort import Cohort, TrainingRow
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.model.stepping import GraphedStepper, PlainStepper, stepper
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.swarm import Swarm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("topology", ["horizontal", "vertical"])
def test_a_round_on_the_device(topology: str, build_swarm: Callable[..., Swarm]) -> None:
    swarm, again = (build_swarm(topology=topology, defense=Logit(), device="cuda") for _ in range(2))
    assert swarm.policy.device.type == "cuda"
    record = swarm.round(1)
    assert record.grad_norm > 0
    assert all(row.action == ("zero" if row.payload else "accept") for row in record.rows)
    assert len(swarm.evaluate(1, 20).rows) == 20
    assert again.round(1).rows == record.rows, "bit-identity is promised on the same machine"
    learned, relearned = swarm.cohort.state(), again.cohort.state()
    differing = [name for name, tensor in learned.items() if not torch.equal(tensor, relearned[name])]
    assert not differing, f"{len(differing)} of {len(learned)} tensors differ after the same update"

    restored = build_swarm(topology=topology, defense=Logit(), device="cuda")
    restored.cohort.restore({name: tensor.cpu() for name, tensor in swarm.cohort.state().items()})
    restored.remember(record.rows)
    assert restored.round(2).rows == swarm.round(2).rows, "a checkpoint goes through the CPU and goes on alike"


def test_the_device_draws_the_tokens_of_the_cpu(build_swarm: Callable[..., Swarm]) -> None:
    """The noise is the same; logits differ in their last bits, so near-ties may flip a token."""
    cpu, gpu = (build_swarm("control", device=device).round(1).rows for device in ("cpu", "cuda"))
    differing = sum(one.ids != other.ids for one, other in zip(cpu, gpu, strict=True))
    assert differing <= 1, f"{differing} of {len(cpu)} completions differ, more than near-ties explain"


@torch.inference_mode()
def test_the_graphed_step(load_policy: Callable[..., Policy], prompts: list[list[int]]) -> None:
    """Past two buffers and with rows dropped on the way: near the plain step, and the launched step bit for bit."""
    policy = load_policy(device="cuda")
    prompt = torch.tensor([0, 0, 1, 5, 5, 5, 2, 2], device="cuda")
    prefix = policy.prefill(prompts)
    graphed, plain, launched = (
        stepper(policy, prefix, prompt),
        PlainStepper(policy, prefix, prompt),
        Launched(policy, prefix, prompt),
    )
    assert isinstance(graphed, GraphedStepper)
    for step in range(150):
        if step in (20, 21, 90):
            kept = torch.arange(len(prompt), device="cuda").flip(0)[:-1]
            for each in (graphed, plain, launched):
                each.keep(kept)
            prompt = prompt[kept]
        tokens = torch.arange(len(prompt), device="cuda") + step % 50
        hidden = graphed.step(tokens)
        torch.testing.assert_close(hidden, plain.step(tokens), rtol=1e-3, atol=1e-3)
        assert torch.equal(hidden, launched.step(tokens))
    assert graphed.graph is not None


class Launched(GraphedStepper):
    """The same work without a graph."""

    def _capture(self, tokens: torch.Tensor) -> None:
        self.graph = torch.cuda.CUDAGraph()

    def _replayed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._advance(tokens)


def test_gradients_on_the_device_are_those_of_the_cpu(
    make_cohort: Callable[..., Cohort],
    load_policy: Callable[..., Policy],
    prompts: list[list[int]],
    pool: list[TrainingRow],
) -> None:
    cpu, gpu = make_cohort(), make_cohort(load_policy(device="cuda"))
    for cohort in (cpu, gpu):
        cohort.accumulate(prompts, pool, cohort.advantages(pool))
    for name, weight in cpu.weights.items():
        assert weight.grad is not None
        made = gpu.weights[name].grad
        assert made is not None
        difference = float((made.cpu() - weight.grad).norm() / weight.grad.norm())
        assert difference <= 1e-3, f"the gradient of {name} is {difference:.1e} off"


def test_gradients_in_bfloat16_repeat_bit_for_bit(load_policy: Callable[..., Policy]) -> None:
    """Attention of large heads in bfloat16 has kernels of its own, not all of which repeat."""
    config = Qwen2Config(
        vocab_size=2048, hidden_size=512, intermediate_size=1024, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(config).to(torch.bfloat16).eval()
    policy = Policy(model, load_policy().tokenizer)
    prompts = torch.randint(10, 1000, (4, 96)).tolist()
    rows = [TrainingRow(n % 4, tuple(torch.randint(10, 1000, (200,)).tolist()), float(n % 3 == 0)) for n in range(32)]
    rows.sort(key=lambda row: row.prompt)
    cohort = Cohort(policy, SwarmSpec(prompts=4, group=8), AcceptAll())
    made = []
    for _ in range(2):
        for weight in cohort.weights.values():
            weight.grad = None
        cohort.accumulate(prompts, rows, cohort.advantages(rows))
        made.append({name: weight.grad for name, weight in cohort.weights.items() if weight.grad is not None})
    differing = [name for name in made[0] if not torch.equal(made[0][name], made[1][name])]
    assert made[0] and not differing, f"{len(differing)} of {len(made[0])} gradients differ"
