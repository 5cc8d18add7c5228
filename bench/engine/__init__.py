"""One swarm: its models, who answers what, what nodes send each other, how they learn, and the rounds of all that."""

# Raised whenever the same cell may give other results; part of every cell's identity, held by a golden test.
ENGINE_REVISION = 4
