"""What a probe costs, and when a transfer is tried over an idle network."""
