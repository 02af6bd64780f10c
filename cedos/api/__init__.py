"""The control socket: what a daemon answers, and how commands ask."""
