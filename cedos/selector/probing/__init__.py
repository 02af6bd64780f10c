"""Active probes: when one is worth sending, and what it costs."""
