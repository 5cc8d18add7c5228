"""One swarm: policy, decoding, topology, transport, learner and the round that joins them."""

# Raised whenever the same cell may give other results; part of every cell's identity, held by a golden test.
ENGINE_REVISION = 3
