"""The gateway: a well-connected host that takes the sessions of invited laptops."""
