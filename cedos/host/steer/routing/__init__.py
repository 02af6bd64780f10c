"""Policy rules and routes: where new connections go."""
