"""ThiefBench inside other people's trainers; a module loads when it is imported by name."""
