"""The well-connected host: the gateway of invited sessions, and the MPTCP relay."""
