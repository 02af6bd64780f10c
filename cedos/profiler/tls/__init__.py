"""Server names from TLS and QUIC handshakes."""
