"""What programs hold: connections, listeners and BSD-like sockets, with asyncio or without."""
