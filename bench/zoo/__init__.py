"""The built-in small models and the seeded recipe that trains them."""
