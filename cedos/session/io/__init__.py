"""The paths of a session on real sockets: dialled, watched, and driven by one event loop."""
