"""The daemon: joins monitor, profiler, selector and steering, and feeds what happened back."""
