"""Informed Mobile Prefetching: mail and news while driving and walking (dissertation, 3.4)."""
