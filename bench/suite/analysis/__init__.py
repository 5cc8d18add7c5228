"""What stored cells mean: scores, statistics, comparisons, replays and the ranking."""
