"""What tests of one's own defenses, attacks and tasks need."""
