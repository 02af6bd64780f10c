"""Connections that survive: one flow over one kernel TCP connection for each network.

`connect` and `listen` are what programs use (asyncio); `cedos.session.blocking` has the
same as BSD sockets. The protocol is in docs/session-protocol.md, what it promises in
docs/session-security.md.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection
    from cedos.session.sockets.listener import Listener
    from cedos.session.sockets.message import Message
    from cedos.session.sockets.sockets import connect, listen

__all__ = ["Connection", "Listener", "Message", "connect", "listen"]


def __getattr__(name: str) -> Any:
    """Import what programs use at its first use: the pure parts of this room know no sockets."""
    if name in ("connect", "listen"):
        from cedos.session.sockets import sockets  # noqa: PLC0415

        return getattr(sockets, name)
    if name == "Listener":
        from cedos.session.sockets.listener import Listener  # noqa: PLC0415

        return Listener
    if name == "Connection":
        from cedos.session.sockets.connection import Connection  # noqa: PLC0415

        return Connection
    if name == "Message":
        from cedos.session.sockets.message import Message  # noqa: PLC0415

        return Message
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
