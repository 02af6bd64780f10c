"""What a process asks of the C library for itself."""
