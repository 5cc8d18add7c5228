"""Where the work of a round happens: in this process, one rank per node, from a record, or in a trainer."""
