"""What a run leaves on disk: records, completions, weights; and stores joined."""
