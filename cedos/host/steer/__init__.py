"""Hands on the kernel: routes for new connections, subflows of living ones, and all of it undone."""
