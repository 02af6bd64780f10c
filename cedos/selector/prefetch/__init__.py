"""Prefetching: which items are worth fetching ahead of time (dissertation, chapter 3)."""
