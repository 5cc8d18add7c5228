"""Backends for the work of a round: in this process, one rank per node, from a record, or in a trainer."""
