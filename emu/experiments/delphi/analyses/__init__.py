"""Delphi's tables and figures, each by one file, from data sets alone."""
