"""The journal: every change is on disk before it is made, so that it can be undone."""
