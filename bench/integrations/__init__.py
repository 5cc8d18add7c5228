"""ThiefBench inside other libraries' trainers; each module must be imported by name."""
