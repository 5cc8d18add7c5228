"""Recorded pools of any swarm, as lines of JSON: reading and writing them, and scoring defenses on them."""
