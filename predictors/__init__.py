"""Predictors: pure numbers in, distributions out. No Linux, no sockets, no cedos."""
