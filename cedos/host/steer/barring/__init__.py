"""Networks that a spent hard budget closes to programs."""
