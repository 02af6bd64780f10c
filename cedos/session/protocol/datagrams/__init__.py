"""Datagrams of a session: in time or not at all, and copied where a path does not answer."""
