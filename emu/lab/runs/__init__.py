"""Experiments and the run folders that they leave."""
