"""A submitted defense in a process of its own, without labels, files or network."""
