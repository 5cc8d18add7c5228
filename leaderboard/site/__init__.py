"""The board as a static site."""
