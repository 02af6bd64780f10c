"""The control socket: its messages, the daemon's server and the client of programs."""
