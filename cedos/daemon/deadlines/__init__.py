"""Transfers with deadlines: the host's table, its plan each second, and who is told."""
