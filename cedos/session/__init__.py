"""Connections that survive: one flow over one kernel TCP connection for each network.

`connect` and `listen` are what programs use (asyncio); `cedos.session.blocking` has the
same as BSD sockets. The protocol is in docs/session-protocol.md, what it promises in
docs/session-security.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection
    from cedos.session.sockets.listener import Listener
    from cedos.session.sockets.message import Message
    from cedos.session.sockets.sockets import connect, listen

__all__ = ["Connection", "Listener", "Message", "connect", "listen"]

_MODULES: Final = {"connect": "sockets", "listen": "sockets"}


def __getattr__(name: str) -> Any:
    """Import what programs use at its first use: the pure parts of this room know no sockets."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name, name.lower())
    return getattr(import_module(f"cedos.session.sockets.{module}"), name)
