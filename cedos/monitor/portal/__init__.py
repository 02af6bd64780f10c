"""Captive portals: when to check for one, and what was found."""
