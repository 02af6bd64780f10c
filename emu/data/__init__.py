"""Data sets of measured transfers and probes: collected, read, judged."""
