"""Modules that the programs over sessions share."""
