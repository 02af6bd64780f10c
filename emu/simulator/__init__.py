"""The simulator: a place's networks, and TCP and MPTCP over them, without a kernel and without waiting.

`link` is Mahimahi's link, `tcp` one sender's congestion control, `connection` a transfer over one or two
networks, `run` the load of an experiment. `laptop` runs the daemon's controller; `gateway` runs the
shipped proxy and gateway, over the TCP connections of `sockets`. `stream` is data that a server writes
little by little, over any number of networks by a scheduler of `cedos`, and estimates the rate of each.
No module here reads a clock, and losses at random come from a generator that the caller seeds, so the
same load gives the same times. `cedos-emu figures fidelity` holds `run` against live runs.
"""
