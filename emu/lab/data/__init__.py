"""Transfer data sets: measured, read, and judged."""
