"""Traffic Profiler: how many bytes a transfer will move, told near its start (Delphi, section 4)."""
