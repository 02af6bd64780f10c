"""How two hosts come to trust a connection: set-up, resumption, join of a further path. Pure.

`noise` is the set-up's key exchange; `set_up` and `resume` are the two conversations, each with both
ends in one file; `acceptor` decides which of them a new connection is, under limits and cookies;
`messages` are their bytes, `outcome` what comes of them, `credentials` what a flow keeps. No clock,
no randomness of its own: `now` and `random` are handed in.
"""
