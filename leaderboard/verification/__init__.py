"""Does an entry hold: recomputed scores and repeated cells."""
