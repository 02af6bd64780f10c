"""Sockets that only the privileged may open: opened here, or by a process that still may (`delegate`).

What they are for is said with each, so that whoever opens them for others knows what it gives away.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from cedos.kernel.interface_socket import interface_socket

_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE, _SO_LOCK_FILTER = 26, 33, 44
_ETH_P_ALL, _ALL_INTERFACES = 0x0003, 0
_INSTRUCTION_BYTES: Final = 8
_libc = ctypes.CDLL(None, use_errno=True)
# A queued packet counts with all the memory that it was received in, up to 64 KB and more.
_PACKETS_BUFFER_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class EventSocket:
    """Events of a netlink protocol's multicast groups."""

    protocol: int
    groups: tuple[int, ...]
    receive_buffer_bytes: int

    def open(self) -> socket.socket:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        opened = socket.socket(socket.AF_NETLINK, kind, self.protocol)
        try:
            enlarge(opened, self.receive_buffer_bytes)
            opened.bind((0, 0))
            for group in self.groups:
                opened.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        except OSError:
            opened.close()
            raise
        return opened


@dataclass(frozen=True, slots=True)
class PacketSocket:
    """What a filter (classic BPF) lets through of one interface's packets, or of all interfaces'.

    The filter cannot be taken off again.
    """

    code: bytes
    interface: str | None

    def open(self) -> socket.socket:
        # Protocol 0 hears nothing: no packet gets in before the filter is there.
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, 0)
        try:
            index = socket.if_nametoindex(self.interface) if self.interface else _ALL_INTERFACES
            attach_filter(opened, self.code)
            opened.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)
            enlarge(opened, _PACKETS_BUFFER_BYTES)
            # By hand, as Python's own bind wants the name of one interface.
            address = struct.pack(
                "=HHiHBB8s", socket.AF_PACKET, socket.htons(_ETH_P_ALL), index, 0, 0, 0, b""
            )
            if _libc.bind(opened.fileno(), address, len(address)) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        except OSError:
            opened.close()
            raise
        return opened


@dataclass(frozen=True, slots=True)
class EchoSocket:
    """ICMP over one interface, with the kernel's time of what it receives."""

    interface: str
    version: int

    def open(self) -> socket.socket:
        protocol = socket.IPPROTO_ICMP if self.version == 4 else socket.IPPROTO_ICMPV6
        return interface_socket(
            self.interface, self.version, socket.SOCK_RAW, protocol, timestamps=True
        )


PrivilegedSocket = EventSocket | PacketSocket | EchoSocket
Open = Callable[[PrivilegedSocket], socket.socket]

_opener: Open | None = None


def opened(wanted: PrivilegedSocket) -> socket.socket:
    """Errors: OSError, PermissionError where it may not be opened."""
    return wanted.open() if _opener is None else _opener(wanted)


@contextmanager
def delegated(opener: Open) -> Iterator[None]:
    """Within the block they are opened by this one: this process has given up its privileges."""
    global _opener  # noqa: PLW0603
    before, _opener = _opener, opener
    try:
        yield
    finally:
        _opener = before


def attach_filter(opened: socket.socket, code: bytes) -> None:
    """Only what the filter (classic BPF) lets through is received from now on."""
    instructions = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HL", len(code) // _INSTRUCTION_BYTES, ctypes.addressof(instructions))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def enlarge(opened: socket.socket, receive_buffer_bytes: int) -> None:
    """Its receive buffer; without CAP_NET_ADMIN as far as the system's limit goes."""
    with suppress(PermissionError):
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, receive_buffer_bytes)
        return
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
