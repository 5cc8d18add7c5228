"""The leaderboard: checking, submitting and verifying defenses, and building the board."""
