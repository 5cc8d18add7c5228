"""Attacks by one stage of a pipeline: what it adds to its weights, and what it sends to the next stage."""
