from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from thiefbench.defenses.logit import Logit
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

    restored = build_swarm(topology=topology, defense=Logit(), device="cuda")
    restored.cohort.restore({name: tensor.cpu() for name, tensor in swarm.cohort.state().items()})
    restored.remember(record.rows)
    assert restored.round(2).rows == swarm.round(2).rows, "a checkpoint goes through the CPU and goes on alike"


def test_the_device_draws_the_tokens_of_the_cpu(build_swarm: Callable[..., Swarm]) -> None:
    """The noise is the same; logits differ in their last bits, so near-ties may flip a token."""
    cpu, gpu = (build_swarm("control", device=device).round(1).rows for device in ("cpu", "cuda"))
    differing = sum(one.ids != other.ids for one, other in zip(cpu, gpu, strict=True))
    assert differing <= 1, f"{differing} of {len(cpu)} completions differ, more than near-ties explain"
