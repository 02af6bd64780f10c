"""Sockets that leave through one interface, whatever the host's default is."""

import errno
import socket
from contextlib import suppress
from typing import Any

from cedos.errors import HostError
from cedos.kernel.interface_socket import bind_to_interface

_BACKGROUND_BUFFER = 256 * 1024
"""What a fetch ahead of time lets a server send before it looks: it steps back within so many bytes."""

_TCP_WINDOW_CLAMP = 10


def bind_to(one: socket.socket, interface: str | None, *, background: bool) -> None:
    """Binds a socket that has not been connected yet.

    Raises:
        HostError: there is no such interface, or the host does not let us.
    """
    if background:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BACKGROUND_BUFFER)
    if interface is None:
        return
    try:
        bind_to_interface(one, interface)
    except OSError as error:
        if error.errno == errno.ENODEV:
            raise HostError(f"there is no network interface {interface}") from error
        raise HostError(f"cannot bind to {interface}: {error.strerror}") from error


def clamp_window(one: Any, size_bytes: int) -> None:
    """The other end may have no more on its way than this from now on; what it may already, it may."""
    # A connection that is over has nothing on its way.
    with suppress(OSError):
        one.setsockopt(socket.IPPROTO_TCP, _TCP_WINDOW_CLAMP, size_bytes)


def connected(
    host: str, port: int, interface: str | None, *, background: bool, timeout_s: float
) -> socket.socket:
    """A TCP connection, by the first address that answers.

    Raises:
        OSError: none does.
        HostError: see `bind_to`.
    """
    failure: OSError | None = None
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in found:
        one = socket.socket(family, kind, protocol)
        try:
            bind_to(one, interface, background=background)
            one.settimeout(timeout_s)
            one.connect(address)
        except OSError as error:
            one.close()
            failure = error
        except BaseException:
            one.close()
            raise
        else:
            return one
    raise failure or OSError(f"{host} has no address")
