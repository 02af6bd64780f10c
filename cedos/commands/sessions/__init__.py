"""Programs of their own that speak over sessions: `cedos-get`, `-put`, `-serve`, `-cat`."""
