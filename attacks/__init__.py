"""Attacks: one file per family, each following the contract in `thiefbench.attacks.base`."""
