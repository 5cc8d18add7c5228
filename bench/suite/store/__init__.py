"""The results of runs on disk: records, completions, weights; and merging stores."""
