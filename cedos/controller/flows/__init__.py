"""The living flows, and what finished ones teach."""
