"""The known facts of the networks: indicators, and whether each lives."""
