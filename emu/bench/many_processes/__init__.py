"""A gateway of several processes, measured."""
