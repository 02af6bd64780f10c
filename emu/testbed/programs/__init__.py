"""Programs inside the testbed: servers, the relay, the daemon under test, and their watchers."""
