"""One secured TCP connection, as bytes in and records out."""
