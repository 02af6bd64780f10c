"""The Network Monitor: which networks there are, which flows live on them, and how they do.

Everything is event-driven (netlink, D-Bus signals, answers to probes); nothing polls /proc. The
interfaces that the daemon uses are in `events.py`, their stand-ins without a kernel in `doubles.py`.
"""
