"""Many cells: what to run, running it, the record it leaves, its scores and its report."""
