"""Running cells: one after another, in several processes, on Ray, or with one process per node."""
