"""Names looked up at the gateway, and here where they belong to this place."""
