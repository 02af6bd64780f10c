"""The Traffic Profiler: estimates the size of a transfer near its start (Delphi, section 4)."""
