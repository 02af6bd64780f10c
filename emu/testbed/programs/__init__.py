"""Programs inside the testbed: servers, the daemon under test, and their watchers."""
