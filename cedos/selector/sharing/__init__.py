"""The choice of helpers that sell bandwidth (CBSP), and what the gateway remembers of them. Pure."""
