"""Defenses of swarms that exchange weights: how a node joins the vectors that it receives with its own."""
