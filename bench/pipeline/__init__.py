"""A node that is a pipeline: its model is split over stages, each run by a participant of its own."""
