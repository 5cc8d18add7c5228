"""The ground on which defenses are compared across submissions."""
