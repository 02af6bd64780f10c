"""Checks whether a network carries: the test page of captive portals, and a TLS handshake."""
