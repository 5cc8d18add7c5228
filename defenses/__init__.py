"""One file per defense, over the contract in `thiefbench.defenses.base`."""
