"""Sockets that need privileges, wherever these are held."""
