"""Programs of their own that speak over sessions: `cedos-get`, `-put`, `-pod`, `-serve`, `-cat`."""
