"""Living MPTCP connections: our path manager, and the receive window that keeps moves quick."""
