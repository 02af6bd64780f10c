"""The well-connected host: the MPTCP relay."""
