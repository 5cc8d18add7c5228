"""One swarm: policy, decoding, topology, transport, learner and the round that joins them."""
