"""Defenses: one file each, following the contract in `thiefbench.defenses.base`."""
