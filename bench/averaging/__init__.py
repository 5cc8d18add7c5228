"""Swarms that exchange weights: local rounds, then a step towards the others' weights."""
