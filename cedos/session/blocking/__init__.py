"""BSD-like sockets over sessions: what a program that uses `socket` needs to change is one import.

    import cedos.session.blocking as socket
    s = socket.create_connection(("server.example", 9000))

The server's key is the one in the user's file (`cedos.session.known_hosts`), or that of SO_SERVER_KEY. A
socket works from any thread, blocks or does not as `settimeout` says, has files (`makefile`), and its
`fileno` can be given to `select`. What wants to read and write that number itself (TLS, a child) calls
`detach`, as `ssl.SSLContext.wrap_socket` does. All other names are those of `socket`. IROBs are messages
with labels: `begin_irob`, `irob_send`, `end_irob`, `ms_send`, `ms_recv` (dissertation, Table 2.2).
"""

import errno
import socket as bsd
from socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_TCP,
    MSG_DONTWAIT,
    MSG_PEEK,
    MSG_WAITALL,
    SHUT_RD,
    SHUT_RDWR,
    SHUT_WR,
    SO_KEEPALIVE,
    SO_REUSEADDR,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_NODELAY,
)
from typing import Any, Final

from cedos.session.blocking.options import (
    SO_CHOOSER,
    SO_DEADLINE,
    SO_ESIZE,
    SO_KEY,
    SO_LABEL,
    SO_NETWORKS,
    SO_RCVBUFTH,
    SO_SCHEDULER,
    SO_SERVER_KEY,
    SOL_SESSION,
    SocketOption,
)
from cedos.session.blocking.os_errors import not_supported
from cedos.session.blocking.session_socket import EVERY_NETWORK, socket
from cedos.session.protocol.crypto import KeyPair

_DEFAULT_TIMEOUT: Final = object()
_NEVER_NAMED: Final = {"SocketType", "close", "dup", "fromfd", "recv_fds", "send_fds", "socketpair"}
"""Names of the standard library's module that make or take sockets of the kernel's."""


def create_connection(
    address: str | tuple[str, int],
    timeout: Any = _DEFAULT_TIMEOUT,
    source_address: tuple[str, int] | None = None,
    *,
    server_key: bytes | None = None,
    key: KeyPair | None = None,
    all_errors: bool = False,
) -> socket:
    """A socket that is connected, as the standard library's function of this name.

    Args:
        address: host and port, or the name of a server in the user's file.
        timeout: seconds, for this and every later call; None: they block; the default one without.
        source_address: a session has none of its own: it must be None.
        server_key: the server's public key; the one in the user's file without.
        key: who we are; this user's own key without.
        all_errors: of no meaning: the error names the last attempt.

    Raises:
        OSError: as `socket.connect`.
    """
    if source_address is not None:
        raise OSError(errno.EINVAL, EVERY_NETWORK)
    made = socket()
    if timeout is None or isinstance(
        timeout, int | float
    ):  # else the standard library's own "default"
        made.settimeout(timeout)
    for option, value in ((SocketOption.SERVER_KEY, server_key), (SocketOption.KEY, key)):
        if value is not None:
            made.setsockopt(SOL_SESSION, option, value)
    try:
        made.connect(address)
    except BaseException:
        made.close()
        raise
    return made


def create_server(
    address: tuple[str, int],
    *,
    family: int = AF_INET,
    backlog: int | None = None,
    reuse_port: bool = False,
    dualstack_ipv6: bool = False,
    key: KeyPair | None = None,
) -> socket:
    """A socket that listens, as the standard library's function of this name.

    Args:
        address: "" for all addresses, of both families.
        family, dualstack_ipv6: of no meaning.
        backlog: how many may wait in the kernel.
        reuse_port: a session has one process; it must be False.
        key: who the server is; this user's own key without.

    Raises:
        OSError: the address cannot be listened at.
    """
    if reuse_port:
        raise not_supported("all connections of a session come to one process")
    made = socket()
    if key is not None:
        made.setsockopt(SOL_SESSION, SocketOption.KEY, key)
    made.bind(address)
    try:
        made.listen(128 if backlog is None else backlog)
    except BaseException:
        made.close()
        raise
    return made


def __getattr__(name: str) -> Any:
    """Constants, errors and look-ups are the standard library's: `import blocking as socket` will do."""
    if name.startswith("_") or name in _NEVER_NAMED:
        raise AttributeError(f"sessions have no {name!r}")
    return getattr(bsd, name)


__all__ = [
    "AF_INET",
    "AF_INET6",
    "IPPROTO_TCP",
    "MSG_DONTWAIT",
    "MSG_PEEK",
    "MSG_WAITALL",
    "SHUT_RD",
    "SHUT_RDWR",
    "SHUT_WR",
    "SOCK_STREAM",
    "SOL_SESSION",
    "SOL_SOCKET",
    "SO_CHOOSER",
    "SO_DEADLINE",
    "SO_ESIZE",
    "SO_KEEPALIVE",
    "SO_KEY",
    "SO_LABEL",
    "SO_NETWORKS",
    "SO_RCVBUFTH",
    "SO_REUSEADDR",
    "SO_SCHEDULER",
    "SO_SERVER_KEY",
    "TCP_NODELAY",
    "SocketOption",
    "create_connection",
    "create_server",
    "socket",
]
