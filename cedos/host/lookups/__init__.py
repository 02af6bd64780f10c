"""Look-ups of programs: read, held, asked over another network, answered."""
