"""Programs of their own that speak over sessions: `cedos-get`, `cedos-serve`, `cedos-cat`."""
