"""Suites of cells: what to run, running it, records, scores and reports."""
