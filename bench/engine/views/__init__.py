"""What attackers and defenders get to see and may ask."""
