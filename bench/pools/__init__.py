"""Recorded pools of any swarm as lines of JSON: reading, writing, and scoring defenses on them."""
