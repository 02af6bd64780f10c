"""What is known of the networks: indicators, and whether each lives."""
