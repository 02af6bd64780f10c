"""The relay: MPTCP towards the client, plain TCP towards the origin (Delphi, section 8).

Few servers speak MPTCP. A client whose connections end here can move them between its networks
whoever the server is. `request` and `answers` are the protocol and do no I/O; `admission` says who
may use the relay and where it may connect; `origin` is the side that faces the servers, `client` the
one that faces the users, `splice` carries bytes between them, and `relay` is the service.
"""
