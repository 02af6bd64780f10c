"""This host: facts in (monitor), sizes in (profiler), commands out (steer), by a privileged process."""
