"""One swarm: its models, the assignment of items, the exchange of completions, learning, and the rounds."""
