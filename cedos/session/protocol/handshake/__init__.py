"""The handshakes that secure a connection: set-up, resumption, join of a further path. Pure.

`noise` is the set-up's key exchange, `set_up` and `resume` are the two conversations, `accepting` decides
which of them a new connection is. `now` and `random` are handed in.
"""
