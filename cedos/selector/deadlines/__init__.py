"""Transfers with deadlines (Cedos, III-C and III-D): who waits, who is carried, over which networks."""
