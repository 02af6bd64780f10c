"""Captive portals: when to look for one, and what was found."""
