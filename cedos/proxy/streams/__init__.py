"""The stream protocol: many connections in one session (docs/stream-protocol.md)."""
