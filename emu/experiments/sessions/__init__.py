"""The papers' experiments on sessions: DTP's downloads, IntNW's applications, Cedos' tables."""
