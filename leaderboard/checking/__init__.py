"""Checks whether a defense may be submitted."""
