"""The operating system as steering needs it: the real kernel, and one that is only read."""
