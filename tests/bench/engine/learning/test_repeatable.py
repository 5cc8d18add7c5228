from __future__ import annotations

import pytest
import torch

from thiefbench.engine.learning import repeatable as module
from thiefbench.engine.learning.repeatable import repeatable
from thiefbench.engine.model.policy import _Repeated

DEVICE = torch.device("cuda")


def mode() -> tuple[int, bool]:
    return torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.parametrize("before", ["default", "warn"])
def test_the_settings_are_those_of_before_afterwards(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_possible", lambda device: True)
    torch.set_deterministic_debug_mode(before)
    try:
        kept = mode()
        with pytest.raises(ZeroDivisionError), repeatable(DEVICE):
            assert mode() == (2, False), "an operation without a deterministic algorithm is an error"
            raise ZeroDivisionError
        assert mode() == kept
    finally:
        torch.set_deterministic_debug_mode("default")


def test_nothing_changes_on_a_processor_or_where_it_is_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = mode()
    with repeatable(torch.device("cpu")):
        assert mode() == kept
    monkeypatch.setattr(module, "_possible", lambda device: False)
    with repeatable(DEVICE):
        assert mode() == kept


def test_a_device_that_refuses_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("Deterministic behavior was enabled ... uses CuBLAS")

    monkeypatch.setattr(torch, "ones", refused)
    device = torch.device("cuda", 7)
    with (
        pytest.warns(UserWarning, match="set CUBLAS_WORKSPACE_CONFIG=:4096:8 before Python starts"),
        repeatable(device),
    ):
        assert mode()[0] == 0
    with repeatable(device):
        assert mode()[0] == 0
    module._possible.cache_clear()


def test_the_gradient_of_repeated_prompts_is_the_sum_over_their_rows() -> None:
    torch.manual_seed(0)
    states = torch.randn(4, 2, 5, 3, requires_grad=True)
    prompt = torch.tensor([2, 0, 2, 2, 3])
    made: list[torch.Tensor] = []
    for repeated in (_Repeated.apply(states, prompt), states.index_select(0, prompt)):
        states.grad = None
        (repeated * torch.arange(5.0)[:, None, None, None]).square().sum().backward()
        assert states.grad is not None
        made.append(states.grad)
    torch.testing.assert_close(made[0], made[1])
    assert not made[0][1].any(), "nobody answers this prompt"
