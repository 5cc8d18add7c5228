"""What this package uses of GenRL, importable beside the versions of hivemind that install today."""

from __future__ import annotations

from typing import Any

try:
    import hivemind
    import msgpack
    from hivemind.utils import get_dht_time
except ImportError as error:
    raise ImportError("GenRL is not installed; write pip install '.[genrl]' in a checkout") from error

# gensyn-genrl 0.3.0 imports get_dht_time from hivemind itself, and hivemind 1.1.12 has it only in hivemind.utils.
if not hasattr(hivemind, "get_dht_time"):
    hivemind.get_dht_time = get_dht_time

from genrl.communication.communication import Payload
from genrl.communication.hivemind.hivemind_backend import HivemindBackend
from genrl.examples.code_generation.solver_data import CodeGenerationDataManager
from genrl.examples.code_generation.solver_utils import get_solutions
from genrl.game import BaseGameManager
from genrl.rewards import DefaultRewardManager, RewardFnStore, RoundRewardFnStore
from genrl.serialization.msgpack_utils import _msgpack_decode, _msgpack_encode
from genrl.state import GameState, WorldState
from genrl.trainer.grpo_trainer import GRPOLanguageTrainerModule, GRPOTrainerConfig
from hivemind import DHT

__all__ = [
    "DHT",
    "BaseGameManager",
    "CodeGenerationDataManager",
    "DefaultRewardManager",
    "GRPOLanguageTrainerModule",
    "GRPOTrainerConfig",
    "GameState",
    "HivemindBackend",
    "Payload",
    "RewardFnStore",
    "RoundRewardFnStore",
    "WorldState",
    "get_solutions",
    "packer",
    "unpacker_settings",
]


def packer() -> Any:
    """A packer as `HivemindBackend` makes it."""
    return msgpack.Packer(use_bin_type=True, default=_msgpack_encode)


def unpacker_settings(max_buffer_size: int) -> dict[str, Any]:
    """Settings of an unpacker as `HivemindBackend` makes them."""
    return {"object_hook": _msgpack_decode, "raw": False, "max_buffer_size": max_buffer_size}
