"""Attacks that outsiders submit against listed defenses."""
