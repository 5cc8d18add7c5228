"""Attacks on swarms that exchange weights: what malicious nodes send instead of their own weights."""
