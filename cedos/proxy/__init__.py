"""Programs' connections over sessions: the local proxy and the gateway."""
