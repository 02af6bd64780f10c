"""The Network Monitor: which networks there are, which flows live on them, and how they do.

Everything is event-driven (netlink, D-Bus signals, answers to probes); nothing polls /proc.
"""
