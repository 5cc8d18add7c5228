"""One file per attack family, over the contract in `thiefbench.attacks.base`."""
