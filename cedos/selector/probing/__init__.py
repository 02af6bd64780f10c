"""The cost of a probe, and when a transfer is tried over an idle network."""
