"""Filters of a swarm: one that works, and two that do not."""

from my_filters.habits import Habits
from my_filters.simple import KnownPhrase, ShortAnswers

__all__ = ["Habits", "KnownPhrase", "ShortAnswers"]
