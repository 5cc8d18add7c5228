"""What a run still has to do and how long that takes."""
