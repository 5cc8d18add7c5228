"""The analysis of stored cells: scores, statistics, comparisons, replays and the ranking."""
