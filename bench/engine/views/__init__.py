"""What attackers and defenders can see and query."""
