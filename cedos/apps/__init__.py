"""Applications over the transport: files, prefetching, sharing of bandwidth."""
