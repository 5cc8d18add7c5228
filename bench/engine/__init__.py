"""One swarm: its models, who answers what, what nodes send each other, how they learn, and the rounds of all that."""
