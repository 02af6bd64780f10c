"""Transfers with deadlines (Cedos, III-C and III-D): which of them are served now, and how."""
