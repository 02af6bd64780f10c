"""Many connections in one session (docs/stream-protocol.md)."""
