"""Rollouts that training runs of others left on disk, read as recorded pools."""
