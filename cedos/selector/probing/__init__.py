"""When an active probe is worth sending, and what it costs."""
