"""Objects of the web, fetched whole, kept, and handed on over sessions (Cedos, III-F: D2Prox)."""
