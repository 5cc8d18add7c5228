"""What a store has to say to people: comparisons, tables, plots and pages."""
