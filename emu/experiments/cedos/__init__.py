"""Cedos' evaluation (V) again: its scheduler, ours, and one who knows the future, on the same worlds."""
