"""How honest nodes sample where they never draw control tokens (`SwarmSpec.control_tokens`).

The setting is not a field of `Sampling`, because a change of a task's contract would give every stored cell another id.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from thiefbench.tasks.base import Sampling

ControlTokens = Literal["drawn", "excluded"]


@dataclass(frozen=True)
class ExcludingSampling(Sampling):
    """Settings of a sampler whose support has no control tokens but EOS."""

    control_tokens: Literal["excluded"] = "excluded"


def sampler(sampling: Sampling, control_tokens: ControlTokens) -> Sampling:
    """The settings by which tokens are drawn and draws are checked."""
    return ExcludingSampling(**_shared(sampling)) if control_tokens == "excluded" else without_setting(sampling)


def without_setting(sampling: Sampling) -> Sampling:
    """The settings as attacks and defenses see them."""
    return Sampling(**_shared(sampling)) if isinstance(sampling, ExcludingSampling) else sampling


def _shared(sampling: Sampling) -> dict[str, Any]:
    return {each.name: getattr(sampling, each.name) for each in fields(Sampling)}
