"""Programs that use sessions: `cedos-get`, `-put`, `-pod`, `-serve`, `-cat`."""
