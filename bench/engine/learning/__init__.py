"""Advantages, losses and the update of one cohort."""
