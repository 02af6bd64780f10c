"""Transfers with deadlines (Cedos, III-C and III-D): plans of which are served now, and how."""
