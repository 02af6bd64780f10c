"""What is worth fetching ahead of time (dissertation, chapter 3)."""
