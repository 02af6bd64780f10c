"""Connections that survive: one flow over one kernel TCP connection for each network.

`connect` and `listen` are what programs use (asyncio); `cedos.session.blocking` has the same as BSD
sockets. The protocol is in docs/session-protocol.md, what it promises in docs/session-security.md.
"""
