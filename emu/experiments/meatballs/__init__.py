"""Meatballs: uncertainty and redundancy in small exchanges and offloaded work (dissertation, ch. 4)."""
