"""The leaderboard: checking, submitting and verifying defenses, and building the board."""

from __future__ import annotations

from typing import Final

CURRENT: Final = "standard-v2"
"""The suite that is meant unless another one is named; the board begins with it."""
