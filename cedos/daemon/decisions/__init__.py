"""Decisions of this host: the default network, destinations, moves and rescues."""
