"""What a process asks for itself: memory, open files."""
