"""Workloads of the emulated laptop: single measured transfers and mixed loads."""
