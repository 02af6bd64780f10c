"""The living flows as the daemon knows them, and what finished ones teach."""
