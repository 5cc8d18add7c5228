"""Reports of a store: comparisons, tables, plots and pages."""
