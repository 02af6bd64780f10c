"""Modules that commands share: help pages, options, servers, progress, rendering."""
