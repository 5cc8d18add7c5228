"""ThiefBench measures how well a defense protects a decentralised GRPO swarm from poisoned completions.

Importing this package is cheap: torch and the engine load when a swarm runs.
"""

__version__ = "0.1.0"
