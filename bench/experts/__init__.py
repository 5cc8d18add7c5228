"""Experts by domain: nodes of one domain train their own model, and the models answer together."""
