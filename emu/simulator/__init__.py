"""The simulator: a place's networks, and TCP and MPTCP over them, without a kernel and without waiting.

`link` is Mahimahi's link, `tcp` one sender's congestion control, `connection` a transfer over one or two
networks, `run` the load of an experiment. No module here reads a clock or draws a random number, so the
same load gives the same times. `cedos-emu figures fidelity` holds it against live runs.
"""
