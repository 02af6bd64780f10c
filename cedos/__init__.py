"""cedos decides for every transfer which network to use, both, the same data on both, or not now."""
