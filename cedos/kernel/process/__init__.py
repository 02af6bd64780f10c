"""What a process asks of the kernel and of the C library for itself: memory, open files."""
